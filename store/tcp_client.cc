#include "store/tcp_client.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/status.h"
#include "store/handshake.h"
#include "store/listen_address.h"
#include "store/store.grpc.pb.h"
#include "store/tcp_limits.h"

namespace syncline {
namespace {

// How long a server may take to confirm that a wait is cancelled.
constexpr absl::Duration kCancelGrace = absl::Seconds(1);
// How long closing may take; gRPC needs microseconds.
constexpr absl::Duration kCloseGrace = absl::Seconds(5);
// What a request's id adds to its size, at most.
constexpr size_t kIdBytes = 11;
// Abseil waits on the wall clock, so no single wait may be long.
constexpr absl::Duration kSlice = absl::Seconds(1);
constexpr absl::Duration kFirstRetry = absl::Milliseconds(20);
constexpr absl::Duration kLastRetry = absl::Milliseconds(50);

// A channel of its own for each connection and each try: no connection is shared with another
// store of the process, and gRPC's back-off, of seconds, never starts.
std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  return grpc::CreateCustomChannel("dns:///" + address, grpc::InsecureChannelCredentials(),
                                   arguments);
}

absl::Status RefusedError(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::PERMISSION_DENIED:
      return NetworkError(
          absl::StrCat("the job secret does not match the server's (", status.error_message(),
                       "); SYNCLINE_SECRET_FILE must name the job's secret file in ",
                       "every process, the server's included"));
    case grpc::StatusCode::UNIMPLEMENTED:
      return NetworkError("what listens there is not a tcp store; check host and port");
    default:
      return NetworkError(absl::StrCat("cannot connect: ", status.error_message()));
  }
}

}  // namespace

// Owned by the thread that opened it, never by gRPC's: a channel that is destroyed on a thread of
// gRPC's waits for that thread to end.
class TCPClient::Stream final
    : public grpc::ClientBidiReactor<wire::ClientMessage, wire::ServerMessage> {
 public:
  static std::unique_ptr<Stream> Open(std::shared_ptr<grpc::Channel> channel, std::string secret) {
    auto stream = std::make_unique<Stream>(std::move(channel), std::move(secret));
    stream->stub_->async()->Connect(&stream->context_, stream.get());
    stream->AddHold();  // Calls write from threads of their own.
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }

  Stream(std::shared_ptr<grpc::Channel> channel, std::string secret)
      : secret_(std::move(secret)),
        nonce_(NewNonce()),
        channel_(std::move(channel)),
        stub_(wire::StoreService::NewStub(channel_)) {}

  // The end of the stream if it does not open; DEADLINE_EXCEEDED if that is not known in time.
  grpc::Status AwaitOpen(const Deadline& deadline) {
    absl::MutexLock lock(&mutex_);
    const auto known = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ || done_; };
    if (!deadline.Await(mutex_, absl::Condition(&known))) {
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "it does not answer"};
    }
    return done_ ? status_ : grpc::Status::OK;
  }

  // Ends the stream and frees it, unless gRPC will not let go of it.
  static void Close(std::unique_ptr<Stream> stream) {
    bool done = false;
    {
      absl::MutexLock lock(&stream->mutex_);
      stream->context_.TryCancel();
      stream->Release();
      done = Deadline(kCloseGrace).Await(stream->mutex_, absl::Condition(&stream->done_));
    }
    if (!done) static_cast<void>(stream.release());
  }

  absl::StatusOr<wire::ServerMessage> Call(wire::ClientMessage request, const Deadline& deadline) {
    if (const size_t size = request.ByteSizeLong() + kIdBytes; size > kMaxMessageBytes) {
      return StoreError(TooLargeMessage("the request", size));
    }
    Pending pending;
    absl::MutexLock lock(&mutex_);
    if (!held_) Deadline(kCloseGrace).Await(mutex_, absl::Condition(&done_));
    if (done_) return LostError();
    const uint64_t id = ++last_id_;
    const bool waits = request.has_get() || request.has_wait();
    request.set_id(id);
    pending_.emplace(id, &pending);
    Send(std::move(request));
    AwaitReply(&pending, deadline);
    if (!pending.answered && !done_ && waits) {
      wire::ClientMessage cancel;
      cancel.set_id(id);
      cancel.mutable_cancel();
      Send(std::move(cancel));
      AwaitReply(&pending, Deadline(kCancelGrace));
    }
    pending_.erase(id);
    if (pending.answered) return std::move(pending.reply);
    if (done_) return LostError();
    return TimeoutError(absl::StrCat("the server has not answered for ",
                                     absl::FormatDuration(deadline.timeout()),
                                     "; see whether the process that hosts the store is stopped"));
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (!ok) return Release();
    if (!open_) {
      if (!Handshake()) return Release();
    } else {
      auto pending = pending_.find(incoming_.id());
      if (pending != pending_.end()) {
        pending->second->reply.Swap(&incoming_);
        pending->second->answered = true;
        pending->second->changed.Signal();
      }
    }
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    outgoing_.pop_front();
    if (!ok) {
      outgoing_.clear();
      return Release();
    }
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!refused_) status_ = status;
    done_ = true;  // Once the lock is released, the stream may be gone.
    for (auto& entry : pending_) entry.second->changed.Signal();
  }

 private:
  // A call that waits for its answer.
  struct Pending {
    absl::CondVar changed;
    bool answered = false;
    wire::ServerMessage reply;
  };

  // Answers the challenge, or examines the welcome; whether the stream goes on.
  bool Handshake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (incoming_.has_challenge()) {
      server_nonce_ = incoming_.challenge().nonce();
      if (!secret_.empty() && server_nonce_.size() != kNonceBytes) {
        return Refuse("it has no secret, this process has one");
      }
      wire::ClientMessage message;
      if (!secret_.empty()) {
        message.mutable_hello()->set_nonce(nonce_);
        message.mutable_hello()->set_proof(Proof(secret_, Party::kClient, server_nonce_, nonce_));
      } else {
        message.mutable_hello();
      }
      Send(std::move(message));
      return true;
    }
    if (!incoming_.has_welcome()) return Refuse("it does not keep to the protocol");
    if (!secret_.empty() && !SameProof(incoming_.welcome().proof(),
                                       Proof(secret_, Party::kServer, server_nonce_, nonce_))) {
      return Refuse("it did not prove that it knows the secret");
    }
    open_ = true;
    return true;
  }

  bool Refuse(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    refused_ = true;
    status_ = {grpc::StatusCode::PERMISSION_DENIED, why};
    context_.TryCancel();
    return false;
  }

  void Send(wire::ClientMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!held_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  // Lets OnDone come: there will be no more writes.
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!held_) return;
    held_ = false;
    RemoveHold();
  }

  void AwaitReply(Pending* pending, const Deadline& deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (!pending->answered && !done_ && !deadline.Expired()) {
      pending->changed.WaitWithTimeout(&mutex_, std::min(deadline.Remaining(), kSlice));
    }
  }

  absl::Status LostError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string cause =
        status_.error_message().empty() ? "it has closed the connection" : status_.error_message();
    return NetworkError(absl::StrCat("the connection to the server is lost (", cause,
                                     "); see whether the process that hosts the store has ended"));
  }

  const std::string secret_;
  const std::string nonce_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<wire::StoreService::Stub> stub_;
  grpc::ClientContext context_;
  wire::ServerMessage incoming_;  // Used by one read at a time.

  absl::Mutex mutex_;
  std::string server_nonce_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = true;      // Writes may be started.
  bool open_ ABSL_GUARDED_BY(mutex_) = false;     // The handshake has succeeded.
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // By us; status_ says why.
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);  // Why it has ended.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<wire::ClientMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // The first is being written.
  absl::flat_hash_map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mutex_);
};

TCPClient::TCPClient(std::unique_ptr<Stream> stream) : pid_(getpid()), stream_(std::move(stream)) {}

absl::StatusOr<std::unique_ptr<TCPClient>> TCPClient::Connect(const Options& options,
                                                              const Deadline& deadline) {
  const std::string address = JoinHostPort(options.host, options.port);
  absl::Duration pause = kFirstRetry;
  std::string cause = "it does not answer";
  while (true) {
    std::unique_ptr<Stream> stream = Stream::Open(NewChannel(address), options.secret);
    const grpc::Status status = stream->AwaitOpen(deadline);
    if (status.ok()) return std::unique_ptr<TCPClient>(new TCPClient(std::move(stream)));
    Stream::Close(std::move(stream));
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      cause = status.error_message();
    } else if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
      return RefusedError(status);
    }
    if (deadline.Expired()) {
      return NetworkError(absl::StrCat(
          "no connection after ", absl::FormatDuration(deadline.timeout()), " (", cause,
          "); see whether the process that hosts the store is running, and whether its host and ",
          "port are right"));
    }
    absl::SleepFor(std::min(pause, deadline.Remaining()));
    pause = std::min(2 * pause, kLastRetry);
  }
}

TCPClient::~TCPClient() {
  if (getpid() == pid_) {
    Stream::Close(std::move(stream_));
  } else {
    static_cast<void>(stream_.release());  // gRPC does not survive a fork; leave it alone.
  }
}

absl::StatusOr<wire::ServerMessage> TCPClient::Call(wire::ClientMessage request,
                                                    const Deadline& deadline) {
  if (getpid() != pid_) {
    return StoreError(absl::StrCat("it was opened by process ", pid_,
                                   " and cannot be used in process ", getpid(),
                                   ", which was forked from it; open it anew there"));
  }
  return stream_->Call(std::move(request), deadline);
}

}  // namespace syncline
