// Messages between the ranks of a group, for algorithms that do not know what carries them.
#ifndef SYNCLINE_BACKENDS_COMMON_MESSAGE_TRANSPORT_H_
#define SYNCLINE_BACKENDS_COMMON_MESSAGE_TRANSPORT_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace syncline::backends {

// A set of messages that are under way at once. Between two ranks they arrive in the order in which
// they were sent, in the receives in the order in which those were posted, also those of several
// sets of one transport. A receive is as long as the message that it gets: ranks compare their
// calls before. Messages without bytes are left out, on both sides.
//
// Not thread-safe. Borrows the memory of each message until Wait has returned. A transport that
// reports errors by exceptions throws them from any function.
class Messages {
 public:
  virtual ~Messages() = default;

  virtual void Send(int to, const void* data, size_t nbytes) = 0;
  virtual void Receive(int from, void* data, size_t nbytes) = 0;

  // Waits until all messages so far have been sent and received. An error if that cannot be, of
  // Send and Receive too; the group has then to be given up.
  virtual absl::Status Wait() = 0;

  // Memory of messages that lives as long as the transport may use it, also if Wait fails: for a
  // transport that cannot end what is under way.
  virtual void Keep(std::shared_ptr<void> /*memory*/) {}
};

// Where the messages of one operation go: it has the operation's deadline.
class MessageTransport {
 public:
  MessageTransport(int rank, int size) : rank_(rank), size_(size) {}
  virtual ~MessageTransport() = default;

  virtual std::unique_ptr<Messages> NewMessages() = 0;

  // This process's rank, and the number of ranks.
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  const int rank_;
  const int size_;
};

// All ranks of a group of `size` except `rank`, ascending.
std::vector<int> OtherRanks(int rank, int size);

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_MESSAGE_TRANSPORT_H_
