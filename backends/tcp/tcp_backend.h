// Backend tcp: processes of any hosts, over TCP connections of its own.
#ifndef SYNCLINE_BACKENDS_TCP_TCP_BACKEND_H_
#define SYNCLINE_BACKENDS_TCP_TCP_BACKEND_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/common/lifecycle.h"
#include "backends/common/message_backend.h"
#include "backends/common/message_collectives.h"
#include "backends/common/scratch_arena.h"
#include "backends/common/twin_receive.h"
#include "backends/tcp/collective_sockets.h"
#include "backends/tcp/tcp_connections.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/tensor.h"

namespace syncline::tcp {

// One rank's end of a group. Threads, ownership and errors are those of Backend.
//
// A backend that is built on this one (backends/hierarchical) uses Execute, what is beside it for
// messages, lost and the callback of Make. It gets deadlines, the watch over the peers and the
// diagnosis of failures from here, and moves the data itself:
//
//   tcp->Execute(context, [&](TcpBackend::Operation& operation) -> absl::Status {
//     SYNCLINE_RETURN_IF_ERROR(MoveSomeData());
//     return operation.collectives().Gather(outputs, input, root);
//   });
class TcpBackend final : public backends::MessageBackend {
 public:
  // Called on the watch's thread, also before Make returns, whenever a peer has left or was lost.
  using OnPeerGone = std::function<void(const TcpBackend& tcp)>;

  // Collective: returns once all ranks have connected and watch each other. Errors are those of
  // TcpConnections::Connect.
  static absl::StatusOr<std::unique_ptr<TcpBackend>> Make(const BackendConfig& config,
                                                          OnPeerGone on_peer_gone = nullptr);

  ~TcpBackend() override;

  absl::string_view name() const override { return "tcp"; }

  absl::Status Barrier(const CallContext& context) override;
  absl::Status Send(const Tensor& tensor, int dst, const CallContext& context) override;
  absl::StatusOr<int> Recv(const Tensor& tensor, int src, const CallContext& context) override;

  void Abort(const absl::Status& cause) override { lifecycle_.Abort(cause); }

  // One collective under way, inside of Execute. All methods are collective. Valid until the
  // function that got it returns.
  class Operation {
   public:
    // Compares the ranks' calls; see backends::CompareCalls.
    absl::Status CompareCalls();

    // For ranks that know that their calls differ; see backends::GatherCalls. No rank returns the
    // mismatch before all have read it, or kReadingGrace is over.
    absl::Status GatherCalls();

    // Moves data over the connections. Requires that all ranks' calls go together.
    backends::MessageCollectives collectives();

   private:
    friend class TcpBackend;
    Operation(TcpBackend& backend, const CallContext& context);
    // `deadline` must outlive it.
    TcpTransport TransportUntil(const Deadline& deadline) const;
    absl::Status OnceAllHaveRead(const absl::Status& compared);

    TcpConnections& connections_;
    TcpTransport transport_;
    backends::ScratchArena& scratch_;
    const CallContext& context_;
  };

  // Runs `body` as the collective of `context`. If it fails, the group fails on all ranks, and the
  // result says which ranks are at fault. The ranks' calls are not compared: `body` sees to that.
  // With `awaited_now`, ranks need not meet in it.
  using Body = absl::FunctionRef<absl::Status(Operation& operation)>;
  using Awaited = backends::Lifecycle::Awaited;
  using AwaitedNow = backends::Lifecycle::AwaitedNow;
  absl::Status Execute(const CallContext& context, Body body,
                       const AwaitedNow* awaited_now = nullptr);

  // Runs `body` as the send or receive of `context`, which needs the ranks `awaited`. If it fails,
  // as Execute. Thread-safe.
  absl::Status ExecuteMessage(const CallContext& context, absl::Span<const int> awaited,
                              absl::FunctionRef<absl::Status()> body) {
    return lifecycle_.Run({context, awaited}, [&] { return OrViolation(body()); });
  }
  // For the body of a receive from any rank: returns the rank whose message has come over the
  // connections, or kAnySource if one has come to the twin.
  absl::StatusOr<int> RecvUnlessTwin(const Tensor& tensor, const CallContext& context,
                                     backends::TwinReceive& twin) {
    return connections_->point_to_point().Recv(tensor, context, &twin);
  }
  // Whether the connection to `rank`, another one, stands. Otherwise it has left or was lost.
  bool IsConnected(int rank) const { return connections_->point_to_point().is_open(rank); }
  // Wakes a receive of `rank`, which may be this one, that sleeps in RecvUnlessTwin.
  void Ring(int rank) { connections_->point_to_point().Ring(rank); }
  // All ranks except this one.
  const std::vector<int>& others() const { return others_; }

  // The peers whose connection has broken without a leave message. Then the group has failed.
  // Thread-safe.
  std::vector<int> lost() const { return connections_->lost(); }

  // Whether Abort has made this rank leave the group, in which no operation was under way, or is
  // about to; and whether it has done so, and could tell the others.
  bool is_leaving() { return lifecycle_.is_leaving(); }
  bool has_left() const { return connections_->has_left_in_order(); }

  // The TimeoutError of a collective's wait, see SocketStreams. For the thread that was in it.
  absl::Status late() const { return connections_->collectives().late(); }

  // See TcpConnections.
  int streams() const { return connections_->streams(); }

 private:
  TcpBackend(std::unique_ptr<TcpConnections> connections, const BackendConfig& config,
             OnPeerGone on_peer_gone);

  absl::Status Start(const Deadline& deadline);
  absl::Status RunCompared(const CallContext& context, Algorithm algorithm) override;
  void HandlePeerGone();
  // The same status; but where an operation has failed because connections have ended, the error of
  // the peer that has broken the protocol, if one has: its end was the first.
  absl::Status OrViolation(const absl::Status& status) const;

  const std::vector<int> others_;
  const MismatchCheck mismatch_check_;
  const OnPeerGone on_peer_gone_;
  const std::unique_ptr<TcpConnections> connections_;
  backends::ScratchArena scratch_;  // Of the collective under way.
  backends::Lifecycle lifecycle_;
};

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_TCP_BACKEND_H_
