#include "store/tcp/tcp_client.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "store/tcp/grpc_resources.h"
#include "store/tcp/store.grpc.pb.h"
#include "store/tcp/tcp_limits.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

// How long a server may take to confirm that a wait is cancelled.
constexpr absl::Duration kCancelGrace = absl::Seconds(1);
// How long closing may take; gRPC needs microseconds.
constexpr absl::Duration kCloseGrace = absl::Seconds(5);
// What a request's id adds to its size, at most.
constexpr size_t kIdBytes = 11;

// Over a connection that is there already, so gRPC looks up no name, and never connects again.
std::shared_ptr<grpc::Channel> NewChannel(base::UniqueFd connection) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  return grpc::CreateCustomInsecureChannelFromFd("store", connection.release(), arguments);
}

}  // namespace

// Owned by the thread that opened it, never by gRPC's: a channel that is destroyed on a thread of
// gRPC's waits for that thread to end.
class TCPClient::Stream final
    : public grpc::ClientBidiReactor<wire::ClientMessage, wire::ServerMessage> {
 public:
  static std::unique_ptr<Stream> Open(std::shared_ptr<grpc::Channel> channel) {
    auto stream = std::make_unique<Stream>(std::move(channel));
    stream->stub_->async()->Connect(&stream->context_, stream.get());
    stream->AddHold();  // Calls write from threads of their own.
    stream->StartRead(&stream->incoming_);
    stream->StartCall();
    return stream;
  }

  explicit Stream(std::shared_ptr<grpc::Channel> channel)
      : channel_(std::move(channel)), stub_(wire::StoreService::NewStub(channel_)) {}

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
    const bool waits = request.has_get() || request.has_wait() ||
                       request.body_case() == wire::ClientMessage::kQueuePop;
    Pending pending;
    uint64_t id = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (!held_) Deadline(kCloseGrace).Await(mutex_, absl::Condition(&done_));
      if (done_) return LostError();
      id = ++last_id_;
      request.set_id(id);
      pending_.emplace(id, &pending);
      Send(std::move(request));
    }
    const bool ended = pending.Await(deadline);
    if (!ended && waits) {
      wire::ClientMessage cancel;
      cancel.set_id(id);
      cancel.mutable_cancel();
      {
        absl::MutexLock lock(&mutex_);
        Send(std::move(cancel));
      }
      if (Interruption().ok()) pending.Await(Deadline(kCancelGrace));
    }
    absl::MutexLock lock(&mutex_);
    pending_.erase(id);
    std::optional<wire::ServerMessage> reply = pending.Take();
    // The server answers a cancellation with `not_set`, sometimes before this thread looks.
    const bool is_cancelled = !reply.has_value() || reply->has_not_set();
    if (is_cancelled) SYNCLINE_RETURN_IF_ERROR(Interruption());
    if (reply.has_value()) return *std::move(reply);
    if (done_) return LostError();
    return TimeoutError(absl::StrCat("the server has not answered for ",
                                     absl::FormatDuration(deadline.timeout()),
                                     "; see whether the process that hosts the store is stopped"));
  }

  bool is_lost() {
    absl::MutexLock lock(&mutex_);
    return done_ || !held_;
  }

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    if (!ok) return Release();
    auto pending = pending_.find(incoming_.id());
    if (pending != pending_.end()) pending->second->Answer(&incoming_);
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
    status_ = status;
    done_ = true;  // Once the lock is released, the stream may be gone.
    for (auto& entry : pending_) entry.second->End();
  }

 private:
  // A call that waits for its answer. It has a mutex of its own, so that an answer wakes no other
  // call.
  class Pending {
   public:
    void Answer(wire::ServerMessage* reply) {
      absl::MutexLock lock(&mutex_);
      reply_.Swap(reply);
      answered_ = ended_ = true;
    }
    void End() {  // There will be no answer.
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    bool Await(const Deadline& deadline) {  // Whether it has been answered, or never will be.
      absl::MutexLock lock(&mutex_);
      return deadline.AwaitInterruptibly(mutex_, absl::Condition(&ended_));
    }
    std::optional<wire::ServerMessage> Take() {
      absl::MutexLock lock(&mutex_);
      if (!answered_) return std::nullopt;
      return std::move(reply_);
    }

   private:
    absl::Mutex mutex_;
    bool answered_ ABSL_GUARDED_BY(mutex_) = false;
    bool ended_ ABSL_GUARDED_BY(mutex_) = false;
    wire::ServerMessage reply_ ABSL_GUARDED_BY(mutex_);
  };

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

  absl::Status LostError() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const std::string cause =
        status_.error_message().empty() ? "it has closed the connection" : status_.error_message();
    return NetworkError(absl::StrCat("the connection to the server is lost (", cause,
                                     "); see whether the process that hosts the store has ended"));
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<wire::StoreService::Stub> stub_;
  grpc::ClientContext context_;
  wire::ServerMessage incoming_;  // Used by one read at a time.

  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = true;  // Writes may be started.
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);  // Why it has ended.
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<wire::ClientMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // The first is being written.
  absl::flat_hash_map<uint64_t, Pending*> pending_ ABSL_GUARDED_BY(mutex_);
};

TCPClient::TCPClient(std::unique_ptr<TLSRelay> relay, std::unique_ptr<Stream> stream)
    : pid_(getpid()), relay_(std::move(relay)), stream_(std::move(stream)) {}

absl::StatusOr<std::unique_ptr<TCPClient>> TCPClient::Connect(const ServerAddress& server,
                                                              const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(CheckGrpcResources());
  SYNCLINE_ASSIGN_OR_RETURN(tls::Stream connection, ConnectToServer(server, deadline));
  std::unique_ptr<TLSRelay> relay;
  base::UniqueFd plain;
  if (connection.is_encrypted()) {
    SYNCLINE_ASSIGN_OR_RETURN(relay, TLSRelay::Start());
    SYNCLINE_ASSIGN_OR_RETURN(plain, relay->Add(std::move(connection)));
  } else {
    plain = connection.TakeSocket();
  }
  return std::unique_ptr<TCPClient>(
      new TCPClient(std::move(relay), Stream::Open(NewChannel(std::move(plain)))));
}

TCPClient::~TCPClient() {
  if (getpid() == pid_) {
    Stream::Close(std::move(stream_));
  } else {
    // gRPC does not survive a fork, nor does the relay; leave them alone.
    static_cast<void>(stream_.release());
    static_cast<void>(relay_.release());
  }
}

bool TCPClient::is_lost() const { return getpid() == pid_ && stream_->is_lost(); }

absl::StatusOr<wire::ServerMessage> TCPClient::Call(wire::ClientMessage request,
                                                    const Deadline& deadline) {
  if (getpid() != pid_) {
    return StoreError(absl::StrCat("it was opened by process ", pid_,
                                   " and cannot be used in process ", getpid(),
                                   ", which was forked from it; open it again there"));
  }
  return stream_->Call(std::move(request), deadline);
}

}  // namespace syncline::tcp_store
