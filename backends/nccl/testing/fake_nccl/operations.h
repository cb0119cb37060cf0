// The operations of the stand-in for NCCL, as transfers between pairs of ranks.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_OPERATIONS_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "backends/nccl/nccl_api.h"
#include "backends/nccl/testing/fake_nccl/segment.h"

namespace fake_nccl {

enum class Kind : uint32_t {
  kAllReduce = 1,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,  // kReceive's messages are kSend's.
  kReceive,
  kControl,
};

// The factor of a pre-multiplied sum.
struct Scalar {
  const void* address = nullptr;  // Of the device's, read when the operation runs; else:
  unsigned char value[8] = {};
};

// One call. Buffers are as in NCCL; `count` is that of one rank's part where there are parts.
struct Operation {
  Kind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  syncline::nccl::NcclDataType dtype = syncline::nccl::kNcclInt8;
  syncline::nccl::NcclRedOp op = syncline::nccl::kNcclSum;  // A built-in one.
  std::shared_ptr<const Scalar> scalar;                     // Null without.
  int root = 0;                                             // Or the peer.
  syncline::nccl::NcclStream stream = nullptr;
  int64_t number = 0;  // Of the communicator's operations, from 1.
};

// Messages of one channel between this rank and others, which all go on at once; those between the
// same two ranks in order. A message that is not what the receiver expects stops the receiver for
// good, as a kernel of NCCL waits for flags that never come. If FAKE_NCCL_MISMATCH is "garbage", it
// takes what there is instead.
class Transfers {
 public:
  Transfers(Segment& segment, Channel channel, int rank)
      : segment_(segment), channel_(channel), rank_(rank) {}

  // Memory stays until the transfer is done. `root` is compared, as kind and size are.
  void Send(int peer, Kind kind, int root, const void* data, size_t bytes);
  void Receive(int peer, Kind kind, int root, void* data, size_t bytes);

  // Moves what can be moved. Returns whether anything was.
  bool Progress();
  bool IsDone() const { return sends_.empty() && receives_.empty(); }

 private:
  struct Header {
    Kind kind;
    int32_t root;
    uint64_t bytes;
  };
  struct Message {
    Header header;
    unsigned char* data;
    size_t header_done = 0;
    size_t done = 0;
    // Of receives, once the header has come.
    Header sent = {};
    bool is_stuck = false;
    size_t discarded = 0;
  };

  // These return whether anything was moved.
  static bool ProgressSend(Ring& ring, Message& message);
  static bool ProgressReceive(Ring& ring, Message& message);
  static bool IsSent(const Message& message);
  static bool IsReceived(const Message& message);

  Segment& segment_;
  const Channel channel_;
  const int rank_;
  // By peer. Without empty queues.
  std::map<int, std::deque<Message>> sends_;
  std::map<int, std::deque<Message>> receives_;
};

// One collective operation, on one rank.
class Collective {
 public:
  Collective(Segment& segment, int rank, int ranks, const Operation& operation);

  bool Progress();
  bool IsDone() const { return is_done_; }

 private:
  // Adds the transfers of the next step. Returns false after the last one.
  bool BeginStep();
  void PrepareSource();
  // Receives `count` elements from every peer, to be reduced with those at `source_` + `begin`.
  void ReceiveParts(size_t count);
  void ReduceParts(size_t begin, size_t count, unsigned char* to);

  size_t Bytes(size_t count) const { return count * size_; }
  // Where block `rank` of an all-reduce begins, in elements.
  size_t BlockOf(int rank) const;
  void SendTo(int peer, const unsigned char* data, size_t bytes);
  void ReceiveFrom(int peer, unsigned char* data, size_t bytes);

  const int rank_;
  const int ranks_;
  const Operation operation_;
  const size_t size_;
  Transfers transfers_;
  int step_ = 0;
  bool is_done_ = false;
  const unsigned char* source_ = nullptr;
  std::vector<unsigned char> copy_;   // Of the source, where that is needed.
  std::vector<unsigned char> parts_;  // What was received from each rank, to be reduced.
};

// The operations of one group, on one rank: the collectives in order, and the messages beside them.
class Execution {
 public:
  Execution(Segment& segment, int rank, int ranks, const std::vector<Operation>& operations);

  bool Progress();
  bool IsDone() const { return collectives_.empty() && messages_.IsDone(); }

 private:
  std::deque<Collective> collectives_;
  Transfers messages_;
};

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_OPERATIONS_H_
