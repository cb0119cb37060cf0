// What the server of a tcp store does with the messages of one client.
#ifndef SYNCLINE_STORE_TCP_REQUEST_HANDLER_H_
#define SYNCLINE_STORE_TCP_REQUEST_HANDLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "store/common/table.h"
#include "store/tcp/store.pb.h"

namespace syncline::tcp_store {

// Answers requests from a table. A wait is parked in the table, so takes no thread, and goes when
// the client cancels it or the handler is closed. Knows nothing of the connection. Thread-safe, and
// owned by shared pointers, as the table may hold a wait for a moment longer than its session.
class RequestHandler final : public std::enable_shared_from_this<RequestHandler> {
 public:
  // Takes an answer, on the thread that has it: that of Handle, or the one that sets the last key
  // of a wait. Must not block. The handler holds no lock.
  using Send = std::function<void(wire::ServerMessage answer)>;

  RequestHandler(std::shared_ptr<store::Table> table, Send send);

  // Answers `message`, which is taken apart: each request once, a cancellation by ending the wait
  // that it names. Messages of one client come one after another.
  void Handle(wire::ClientMessage* message);

  // The client has gone: forgets its waits, and sets what it has asked for by set_on_disconnect.
  // Later waits are not answered. Only the first call does anything.
  void Close();

 private:
  using FillReply = void (*)(std::vector<std::string> values, wire::ServerMessage* reply);
  // GetOrPark or QueuePopOrPark of the table.
  using Park = absl::FunctionRef<std::optional<std::vector<std::string>>(store::Table::Ready,
                                                                         store::Table::WaitId*)>;

  absl::Status SetOnDisconnect(wire::Pairs* pairs);
  void Wait(uint64_t id, wire::Keys* keys, store::Table::Needs needs, FillReply fill);
  void QueuePop(uint64_t id, const std::string& key);
  absl::Status ParkOrFill(wire::ServerMessage* reply, FillReply fill, Park park, bool* is_parked);
  void EndWait(uint64_t id, std::vector<std::string> values, FillReply fill);
  void Cancel(uint64_t id);
  void Answer(wire::ServerMessage answer);

  const std::shared_ptr<store::Table> table_;
  const Send send_;

  absl::Mutex mutex_;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<uint64_t, store::Table::WaitId> parked_
      ABSL_GUARDED_BY(mutex_);  // By request.
  absl::flat_hash_map<std::string, std::string> on_disconnect_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_REQUEST_HANDLER_H_
