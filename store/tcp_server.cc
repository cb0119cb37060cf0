#include "store/tcp_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/status.h"
#include "store/listen_address.h"
#include "store/store.grpc.pb.h"
#include "store/tcp_limits.h"
#include "store/tcp_session.h"

namespace syncline {
namespace {

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
  explicit Impl(const Options& options) : host(options.host), port(options.port) {
    shared->secret = options.secret;
    shared->time_to_prove = options.time_to_prove;
  }

  const std::string host;
  int port;
  const std::shared_ptr<TCPSession::Shared> shared = std::make_shared<TCPSession::Shared>();
  Service service{shared};
  std::unique_ptr<grpc::Server> server;
  absl::Mutex shutdown_mutex;
};

TCPServer::TCPServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<TCPServer>> TCPServer::Start(const Options& options) {
  if (options.port < 0 || options.port > 65535) {
    return ArgumentError(absl::StrCat("port ", options.port,
                                      " is not in [0, 65535]; pass 0 to let the system choose"));
  }
  // gRPC does not say why it cannot listen, and logs it by itself.
  SYNCLINE_RETURN_IF_ERROR(CheckListen(options.host, options.port));
  auto impl = std::make_unique<Impl>(options);
  const std::string wanted = JoinHostPort(options.host, options.port);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // Or two servers could share a port.
  const int patience_ms = static_cast<int>(absl::ToInt64Milliseconds(options.time_to_prove));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, patience_ms);
  // A connection is idle while it has no stream.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, patience_ms);
  builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  builder.AddListeningPort(wanted, grpc::InsecureServerCredentials(), &impl->port);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    SYNCLINE_RETURN_IF_ERROR(CheckListen(options.host, options.port));
    return NetworkError(absl::StrCat("cannot listen on ", wanted, "; try again"));
  }
  {
    absl::MutexLock lock(&impl->shared->mutex);
    impl->shared->address = JoinHostPort(impl->host, impl->port);
  }
  return std::unique_ptr<TCPServer>(new TCPServer(std::move(impl)));
}

TCPServer::~TCPServer() { Shutdown(); }

const std::string& TCPServer::host() const { return impl_->host; }

int TCPServer::port() const { return impl_->port; }

int64_t TCPServer::NumClients() const {
  absl::MutexLock lock(&impl_->shared->mutex);
  return static_cast<int64_t>(impl_->shared->sessions.size());
}

int64_t TCPServer::NumWaits() const { return impl_->shared->table.NumWaits(); }

void TCPServer::Shutdown() {
  absl::MutexLock shutdown(&impl_->shutdown_mutex);
  if (impl_->server == nullptr) return;
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
}

}  // namespace syncline
