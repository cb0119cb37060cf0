// One client's connection, as its server sees it.
#ifndef SYNCLINE_STORE_TCP_TCP_SESSION_H_
#define SYNCLINE_STORE_TCP_TCP_SESSION_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "store/common/table.h"
#include "store/tcp/request_handler.h"
#include "store/tcp/store.grpc.pb.h"

namespace syncline::tcp_store {

// One stream, whose client knows the job's secret. A RequestHandler answers what comes.
// Thread-safe; gRPC calls the reactions on its own threads.
class TCPSession final : public grpc::ServerBidiReactor<wire::ClientMessage, wire::ServerMessage>,
                         public std::enable_shared_from_this<TCPSession> {
 public:
  // What the sessions of one server share.
  struct Shared {
    store::Table table;

    absl::Mutex mutex;
    bool closing ABSL_GUARDED_BY(mutex) = false;  // New sessions end at once.
    absl::flat_hash_map<TCPSession*, std::weak_ptr<TCPSession>> sessions ABSL_GUARDED_BY(mutex);
  };

  // The session owns itself until OnDone.
  static TCPSession* Start(std::shared_ptr<Shared> shared, grpc::CallbackServerContext* context);

  TCPSession(std::shared_ptr<Shared> shared, grpc::CallbackServerContext* context);

  // Ends the stream with `status` once the answers that are under way have been sent, or cancels it
  // if the client has not read them within a second.
  void Close(const grpc::Status& status);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Begin();
  void Send(wire::ServerMessage message);
  void CancelUnlessDone();
  void BeginClosing(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<Shared> shared_;
  grpc::CallbackServerContext* const context_;  // Valid until OnDone.
  std::shared_ptr<TCPSession> self_;
  std::shared_ptr<RequestHandler> requests_;  // Set by Begin.
  wire::ClientMessage incoming_;              // Used by one read at a time.
  grpc::Alarm drain_;                         // For the client to read the last answers.

  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // gRPC takes one write at a time.
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;   // Nothing more is queued.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called.
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;  // drain_ is set.
  bool done_ ABSL_GUARDED_BY(mutex_) = false;      // context_ is gone.
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::deque<wire::ServerMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // The first is being written.
};

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_SESSION_H_
