#include "launch/job_store.h"

#include <utility>

#include "store/common/listen_address.h"
#include "store/tcp/tcp_server.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

class TCPJobStore final : public JobStore {
 public:
  explicit TCPJobStore(std::unique_ptr<tcp_store::TCPServer> server) : server_(std::move(server)) {}

  std::string address() const override { return JoinHostPort(server_->host(), server_->port()); }

 private:
  const std::unique_ptr<tcp_store::TCPServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> StartJobStore(const JobStoreOptions& options) {
  tcp_store::TCPServer::Options server_options;
  server_options.host = options.host;
  server_options.port = options.port;
  server_options.secret = options.secret;
  absl::StatusOr<std::unique_ptr<tcp_store::TCPServer>> server =
      tcp_store::TCPServer::Start(server_options);
  if (!server.ok()) return Annotate(server.status(), "the job's store cannot be served");
  return std::make_unique<TCPJobStore>(*std::move(server));
}

}  // namespace syncline::launch
