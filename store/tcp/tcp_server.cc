#include "store/tcp/tcp_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/unique_fd.h"
#include "core/tls/context.h"
#include "core/tls/stream.h"
#include "store/common/listen_address.h"
#include "store/tcp/grpc_resources.h"
#include "store/tcp/store.grpc.pb.h"
#include "store/tcp/tcp_acceptor.h"
#include "store/tcp/tcp_limits.h"
#include "store/tcp/tcp_session.h"
#include "store/tcp/tls_relay.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using store::JoinHostPort;
using store::Listen;
using store::Listener;

// Fewer can be guessed, if they are not random: a client gives whoever takes the server's port
// something to try guesses on.
constexpr size_t kShortSecret = 16;
constexpr auto kTimeToDrain = std::chrono::seconds(1);

class Service final : public wire::StoreService::CallbackService {
 public:
  explicit Service(std::shared_ptr<TCPSession::Shared> shared) : shared_(std::move(shared)) {}

  grpc::ServerBidiReactor<wire::ClientMessage, wire::ServerMessage>* Connect(
      grpc::CallbackServerContext* context) override {
    return TCPSession::Start(shared_, context);
  }

 private:
  const std::shared_ptr<TCPSession::Shared> shared_;
};

}  // namespace

struct TCPServer::Impl {
  explicit Impl(const Options& options) : host(options.host) {}

  const std::string host;
  int port = 0;
  const std::shared_ptr<TCPSession::Shared> shared = std::make_shared<TCPSession::Shared>();
  Service service{shared};
  std::unique_ptr<TLSRelay> relay;  // Null if connections are not encrypted.
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<TCPAcceptor> acceptor;  // Passes connections to the server, so goes first.
  absl::Mutex shutdown_mutex;
};

TCPServer::TCPServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<TCPServer>> TCPServer::Start(const Options& options) {
  base::UniqueFd given;
  if (options.listen_fd.has_value()) given = base::UniqueFd(*options.listen_fd);
  if (options.port < 0 || options.port > 65535) {
    return ArgumentError(absl::StrCat("port ", options.port,
                                      " is not in [0, 65535]; pass 0 to let the system choose"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckGrpcResources());
  SYNCLINE_ASSIGN_OR_RETURN(
      Listener listener,
      options.listen_fd.has_value()
          ? store::AdoptListener(std::move(given), options.port)
          : Listen(options.host, options.port, Deadline(options.lookup_timeout)));
  auto impl = std::make_unique<Impl>(options);
  impl->port = listener.port;
  grpc::ServerBuilder builder;
  // A connection is idle while it has no stream.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(options.time_to_prove)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr) {
    return NetworkError("gRPC has started no server; see its messages in the log");
  }
  TCPAcceptor::Options acceptor_options;
  acceptor_options.secret = options.secret;
  acceptor_options.time_to_prove = options.time_to_prove;
  acceptor_options.name = absl::StrCat("tcp://", JoinHostPort(impl->host, impl->port));
  if (!options.secret.empty() && options.secret.size() < kShortSecret) {
    LogInBackground(LogLevel::kWarning,
                    absl::StrCat("store ", acceptor_options.name, ": the job's secret has only ",
                                 options.secret.size(), " bytes and might be guessed; make one ",
                                 "with `openssl rand -hex 32`"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(acceptor_options.tls, tls::Context::FromEnvironment(options.secret));
  if (acceptor_options.tls != nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(impl->relay, TLSRelay::Start());
  }
  const auto serve = [server = impl->server.get(), relay = impl->relay.get(),
                      name = acceptor_options.name](tls::Stream connection) {
    absl::StatusOr<base::UniqueFd> plain =
        relay == nullptr ? connection.TakeSocket() : relay->Add(std::move(connection));
    if (plain.ok()) {
      grpc::AddInsecureChannelFromFd(server, plain->release());
    } else {
      LogInBackground(
          LogLevel::kWarning,
          absl::StrCat("store ", name, " has closed a connection: ", plain.status().message()));
    }
  };
  SYNCLINE_ASSIGN_OR_RETURN(
      impl->acceptor, TCPAcceptor::Start(std::move(listener), std::move(acceptor_options), serve));
  return std::unique_ptr<TCPServer>(new TCPServer(std::move(impl)));
}

TCPServer::~TCPServer() { Shutdown(); }

const std::string& TCPServer::host() const { return impl_->host; }

int TCPServer::port() const { return impl_->port; }

int64_t TCPServer::NumClients() const {
  absl::MutexLock lock(&impl_->shared->mutex);
  return static_cast<int64_t>(impl_->shared->sessions.size()) + impl_->acceptor->NumUnproved();
}

int64_t TCPServer::NumWaits() const { return impl_->shared->table.NumWaits(); }

void TCPServer::Shutdown() {
  absl::MutexLock shutdown(&impl_->shutdown_mutex);
  if (impl_->server == nullptr) return;
  impl_->acceptor->Shutdown();
  std::vector<std::shared_ptr<TCPSession>> sessions;
  {
    absl::MutexLock lock(&impl_->shared->mutex);
    impl_->shared->closing = true;
    for (const auto& entry : impl_->shared->sessions) {
      if (auto session = entry.second.lock()) sessions.push_back(std::move(session));
    }
  }
  for (const auto& session : sessions) {
    session->Close({grpc::StatusCode::UNAVAILABLE, "the server has shut down"});
  }
  sessions.clear();
  impl_->server->Shutdown(std::chrono::system_clock::now() + kTimeToDrain);
  impl_->server.reset();
  impl_->relay.reset();
}

}  // namespace syncline::tcp_store
