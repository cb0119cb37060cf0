#include "store/etcd/etcd_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "etcd/etcdserver/etcdserverpb/rpc.grpc.pb.h"
#include "store/etcd/etcd_channel.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

namespace pb = etcdserverpb;
using grpc::StatusCode;

// A server that has not answered for so long is not waited for.
constexpr absl::Duration kAttempt = absl::Seconds(2);
// Between attempts, if the connection stands.
constexpr absl::Duration kPause = absl::Milliseconds(20);
// How long a connection is waited for, if another endpoint may do better.
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLastWait = absl::Seconds(1);

// `limit` from now, on the monotonic clock.
gpr_timespec After(absl::Duration limit) {
  const gpr_timespec span = gpr_time_from_nanos(absl::ToInt64Nanoseconds(limit), GPR_TIMESPAN);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), span);
}

// Waits for a connection, for at most `limit`; a moment if there is one. Only sleeping would not
// do: gRPC gets on with a connection while somebody waits for it. InterruptedError if this thread
// is interrupted.
absl::Status AwaitConnection(grpc::Channel& channel, absl::Duration limit) {
  if (channel.GetState(true) == GRPC_CHANNEL_READY) {
    return SleepInterruptibly(std::min(kPause, limit));
  }
  const Deadline deadline(limit);
  while (!channel.WaitForConnected(After(std::min(deadline.Remaining(), kInterruptInterval)))) {
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    if (deadline.Expired()) break;
  }
  return absl::OkStatus();
}

// The steps of one call, each waited for here. gRPC's blocking functions would not look around: an
// interrupt of this thread cancels the call. The context must have a deadline.
class CallSteps {
 public:
  explicit CallSteps(grpc::ClientContext* context) : context_(context) {}
  ~CallSteps() {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  CallSteps(const CallSteps&) = delete;
  CallSteps& operator=(const CallSteps&) = delete;

  grpc::CompletionQueue* queue() { return &queue_; }

  // Waits for the step that has been started last; returns whether it has succeeded.
  bool Await() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.AsyncNext(&tag, &ok, After(kInterruptInterval)) ==
           grpc::CompletionQueue::TIMEOUT) {
      if (!CheckInterrupt().ok()) context_->TryCancel();
    }
    return ok;
  }

 private:
  grpc::ClientContext* const context_;
  grpc::CompletionQueue queue_;
};

// A call with one request and one answer; `start` begins it on a queue.
template <typename Response, typename Start>
grpc::Status Call(grpc::ClientContext* context, Response* response, Start start) {
  CallSteps steps(context);
  const auto call = start(steps.queue());
  grpc::Status status;
  call->Finish(response, &status, nullptr);
  steps.Await();
  return status;
}

// etcd's servers and gRPC describe an error by a code and words, without details. Several causes
// share a code, so where no code tells them apart, as below, this looks for the words of one.
// `words` are in lower case.
bool Says(const grpc::Status& status, absl::string_view words) {
  return absl::StrContains(absl::AsciiStrToLower(status.error_message()), words);
}

// The server does not know who asks, or not any more: a token that it does not know has a code of
// its own. That there is no token is INVALID_ARGUMENT, as all else that is wrong with a request;
// and a token from before a change of users is UNKNOWN.
bool IsAnonymous(const grpc::Status& status) {
  return status.error_code() == StatusCode::UNAUTHENTICATED || Says(status, "user name is empty") ||
         Says(status, "revision in header is old");
}

// One end does not trust the other, or does not speak TLS; that will not change. To gRPC this is
// UNAVAILABLE, as every connection that cannot be made.
bool IsUntrusted(const grpc::Status& status) {
  return Says(status, "handshake failed: ssl_error_ssl") || Says(status, "peer name");
}

// INVALID_ARGUMENT of etcd, RESOURCE_EXHAUSTED of gRPC.
bool IsTooLarge(const grpc::Status& status) {
  return Says(status, "request is too large") || Says(status, "larger than max");
}

// Whether another try, or another server, may do better.
bool MayPass(const grpc::Status& status) {
  switch (status.error_code()) {
    case StatusCode::UNAVAILABLE:
    case StatusCode::DEADLINE_EXCEEDED:
    case StatusCode::CANCELLED:
    case StatusCode::ABORTED:
    case StatusCode::INTERNAL:
    case StatusCode::UNKNOWN:
      return true;
    case StatusCode::RESOURCE_EXHAUSTED:  // Also of a database that is full.
      return Says(status, "too many requests");
    default:
      return false;
  }
}

}  // namespace

absl::Status ContentsExpiredError() {
  return StoreError(
      "its contents have expired: for longer than their ttl none of its clients has reached etcd; "
      "open it again");
}

struct EtcdClient::Server {
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<pb::KV::Stub> kv;
  std::shared_ptr<pb::Watch::Stub> watch;
  std::shared_ptr<pb::Lease::Stub> lease;
  std::shared_ptr<pb::Auth::Stub> auth;
};

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(const StoreConfig::Etcd& options) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                            ParseEtcdEndpoints(options.endpoints));
  SYNCLINE_ASSIGN_OR_RETURN(auto credentials, EtcdCredentials(options));
  if (options.user.empty() && !options.password.empty()) {
    return ArgumentError("a password for etcd needs the user's name too");
  }
  std::vector<Server> servers;
  for (const std::string& address : addresses) {
    std::shared_ptr<grpc::Channel> channel = NewEtcdChannel(address, credentials);
    servers.push_back({channel, pb::KV::NewStub(channel), pb::Watch::NewStub(channel),
                       pb::Lease::NewStub(channel), pb::Auth::NewStub(channel)});
  }
  return std::unique_ptr<EtcdClient>(
      new EtcdClient(std::move(servers), options.user, options.password));
}

struct EtcdClient::Outcome {
  grpc::Status status;
  bool is_of_login = false;  // The server has refused the login, before the call itself.
};

EtcdClient::EtcdClient(std::vector<Server> servers, std::string user, std::string password)
    : servers_(std::move(servers)), user_(std::move(user)), password_(std::move(password)) {}

EtcdClient::~EtcdClient() = default;

absl::StatusOr<pb::RangeResponse> EtcdClient::Range(const pb::RangeRequest& request,
                                                    const Deadline& deadline) {
  pb::RangeResponse response;
  SYNCLINE_RETURN_IF_ERROR(
      Repeat(deadline, [&](const Server& server, grpc::ClientContext* context) {
        return Call(context, &response, [&](grpc::CompletionQueue* queue) {
          return server.kv->AsyncRange(context, request, queue);
        });
      }));
  return response;
}

absl::StatusOr<pb::TxnResponse> EtcdClient::Txn(const pb::TxnRequest& request,
                                                const Deadline& deadline) {
  pb::TxnResponse response;
  SYNCLINE_RETURN_IF_ERROR(
      Repeat(deadline, [&](const Server& server, grpc::ClientContext* context) {
        grpc::Status status = Call(context, &response, [&](grpc::CompletionQueue* queue) {
          return server.kv->AsyncTxn(context, request, queue);
        });
        if (!status.ok() && MayPass(status)) has_lost_answers_ = true;
        return status;
      }));
  return response;
}

absl::StatusOr<int64_t> EtcdClient::Grant(absl::Duration ttl, const Deadline& deadline) {
  pb::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  pb::LeaseGrantResponse response;
  SYNCLINE_RETURN_IF_ERROR(
      Repeat(deadline, [&](const Server& server, grpc::ClientContext* context) {
        return Call(context, &response, [&](grpc::CompletionQueue* queue) {
          return server.lease->AsyncLeaseGrant(context, request, queue);
        });
      }));
  return response.id();
}

absl::Status EtcdClient::Revoke(int64_t lease, const Deadline& deadline) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse response;
  return Repeat(deadline, [&](const Server& server, grpc::ClientContext* context) {
    grpc::Status status = Call(context, &response, [&](grpc::CompletionQueue* queue) {
      return server.lease->AsyncLeaseRevoke(context, request, queue);
    });
    return status.error_code() == StatusCode::NOT_FOUND ? grpc::Status::OK : status;
  });
}

absl::StatusOr<bool> EtcdClient::KeepAlive(int64_t lease, const Deadline& deadline) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  pb::LeaseKeepAliveResponse response;
  SYNCLINE_RETURN_IF_ERROR(
      Repeat(deadline, [&](const Server& server, grpc::ClientContext* context) {
        CallSteps steps(context);
        const auto stream = server.lease->AsyncLeaseKeepAlive(context, steps.queue(), nullptr);
        bool answered = steps.Await();
        if (answered) {
          stream->Write(request, nullptr);
          answered = steps.Await();
        }
        if (answered) {
          stream->Read(&response, nullptr);
          answered = steps.Await();
        }
        if (answered) context->TryCancel();
        grpc::Status status;
        stream->Finish(&status, nullptr);
        steps.Await();
        if (answered) return grpc::Status::OK;
        return status.ok() ? grpc::Status(StatusCode::UNAVAILABLE, "the stream ended") : status;
      }));
  return response.ttl() > 0;
}

bool EtcdClient::AwaitPuts(absl::Span<const std::string> keys, int64_t revision,
                           const Deadline& deadline) {
  const Server& server = servers_[current_ % servers_.size()];
  grpc::ClientContext context;
  context.set_deadline(After(deadline.Remaining()));
  // A server that loses touch with the others shall say so, rather than see nothing happen.
  context.AddMetadata("hasleader", "true");
  const std::string token = this->token().value_or("");
  if (!token.empty()) context.AddMetadata("token", token);
  auto stream = server.watch->Watch(&context);
  bool alive = true;
  for (const std::string& key : keys) {
    pb::WatchRequest request;
    request.mutable_create_request()->set_key(key);
    request.mutable_create_request()->set_start_revision(revision + 1);
    request.mutable_create_request()->add_filters(pb::WatchCreateRequest::NODELETE);
    alive = alive && stream->Write(request);
  }
  std::set<std::string> awaited(keys.begin(), keys.end());
  pb::WatchResponse response;
  while (alive && !awaited.empty() && stream->Read(&response)) {
    for (const auto& event : response.events()) awaited.erase(event.kv().key());
    // Such as "permission denied" to a token that has run out since the last call.
    if (response.canceled()) alive = false;
  }
  context.TryCancel();
  stream->Finish();
  return awaited.empty();
}

// Makes attempts, of servers in turn, until one succeeds, is refused, or time is up.
absl::Status EtcdClient::Repeat(const Deadline& deadline, Attempt attempt) {
  absl::Duration wait = kFirstWait;
  grpc::Status cause;
  size_t untrusted = 0;
  while (true) {
    const size_t current = current_;
    // Even with no time left one attempt must be possible.
    const absl::Duration limit =
        std::min(std::max(deadline.Remaining(), absl::Milliseconds(1)), kAttempt);
    const Outcome outcome = TryOnce(servers_[current % servers_.size()], limit, attempt);
    const grpc::Status& status = outcome.status;
    if (status.ok()) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(Interruption());
    if (IsAnonymous(status) && !user_.empty()) {
      cause = status;
    } else if (!MayPass(status) || (IsUntrusted(status) && ++untrusted >= servers_.size())) {
      return Refused(outcome);
    } else {
      if (cause.ok() || status.error_code() != StatusCode::DEADLINE_EXCEEDED) cause = status;
      size_t expected = current;
      current_.compare_exchange_strong(expected, current + 1);
    }
    if (deadline.Expired()) return GivenUp(cause, deadline.timeout());
    SYNCLINE_RETURN_IF_ERROR(AwaitConnection(*servers_[current_ % servers_.size()].channel,
                                             std::min(wait, deadline.Remaining())));
    wait = std::min(2 * wait, kLastWait);
  }
}

EtcdClient::Outcome EtcdClient::TryOnce(const Server& server, absl::Duration limit,
                                        Attempt attempt) {
  grpc::ClientContext context;
  std::optional<std::string> token = this->token();
  if (!user_.empty() && !token.has_value()) {
    const grpc::Status status = Authenticate(server, limit);
    if (!status.ok()) return {status, /*is_of_login=*/true};
    token = this->token();
  }
  context.set_deadline(After(limit));
  if (token.has_value() && !token->empty()) context.AddMetadata("token", *token);
  grpc::Status status = attempt(server, &context);
  if (IsAnonymous(status)) Forget(token.value_or(""));
  return {status};
}

grpc::Status EtcdClient::Authenticate(const Server& server, absl::Duration limit) {
  grpc::ClientContext context;
  context.set_deadline(After(limit));
  pb::AuthenticateRequest request;
  request.set_name(user_);
  request.set_password(password_);
  pb::AuthenticateResponse response;
  grpc::Status status = Call(&context, &response, [&](grpc::CompletionQueue* queue) {
    return server.auth->AsyncAuthenticate(&context, request, queue);
  });
  // Of a login, the code says that authentication is not enabled. As etcd's own clients do: who
  // names a user need not know whether the cluster asks for one.
  if (status.error_code() == StatusCode::FAILED_PRECONDITION) status = grpc::Status::OK;
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  token_ = response.token();
  return status;
}

absl::Status EtcdClient::Refused(const Outcome& outcome) const {
  const grpc::Status& status = outcome.status;
  const std::string& said = status.error_message();
  if (IsUntrusted(status)) {
    return NetworkError(absl::StrCat("one end does not trust the other (", said,
                                     "); see whether ca_cert is of the authority that signed the ",
                                     "servers' certificates, whether these name the host, and ",
                                     "whether the servers speak TLS"));
  }
  if (outcome.is_of_login && status.error_code() == StatusCode::INVALID_ARGUMENT) {
    return NetworkError(absl::StrCat("etcd does not accept user '", user_, "' (", said,
                                     "); check the user's name and password"));
  }
  if (IsAnonymous(status)) {
    return NetworkError(absl::StrCat("etcd asks who we are (", said, "); give user and password"));
  }
  switch (status.error_code()) {
    case StatusCode::NOT_FOUND:  // Of the calls that are made here: the lease that a put names.
      return ContentsExpiredError();
    case StatusCode::PERMISSION_DENIED:
      return StoreError(absl::StrCat("user '", user_, "' may not use these keys (", said,
                                     "); grant the user's role readwrite on the store's prefix"));
    case StatusCode::UNIMPLEMENTED:
      return NetworkError(absl::StrCat("what listens there does not speak etcd's v3 API (", said,
                                       "); check host and port"));
    default:
      return StoreError(absl::StrCat(
          "refused: ", said,
          IsTooLarge(status) ? "; the servers' --max-request-bytes is the limit" : ""));
  }
}

absl::Status EtcdClient::GivenUp(const grpc::Status& status, absl::Duration timeout) const {
  const std::string after = absl::FormatDuration(std::max(timeout, absl::ZeroDuration()));
  if (status.error_code() == StatusCode::DEADLINE_EXCEEDED) {
    return TimeoutError(absl::StrCat("no server has answered for ", after,
                                     "; see whether etcd is stopped, or has no leader"));
  }
  return NetworkError(absl::StrCat("no answer after ", after, " (", status.error_message(),
                                   "); see whether etcd runs there, whether host and port are ",
                                   "right, and whether it expects TLS, or a client's certificate"));
}

std::optional<std::string> EtcdClient::token() const {
  absl::MutexLock lock(&mutex_);
  return token_;
}

void EtcdClient::Forget(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  if (token_.has_value() && *token_ == token) token_.reset();
}

}  // namespace syncline::etcd_store
