#include "store/etcd/etcd_testing.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "etcd/etcdserver/etcdserverpb/rpc.grpc.pb.h"
#include "store/etcd/etcd_requests.h"
#include "syncline/deadline.h"

namespace syncline::etcd_store {
namespace {

namespace pb = etcdserverpb;

constexpr absl::Duration kTimeout = absl::Seconds(30);

[[noreturn]] void Die(const std::string& what) {
  std::perror(what.c_str());
  std::abort();
}

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("no free port");
  }
  close(fd);
  return ntohs(address.sin_port);
}

bool Listens(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

std::vector<std::string> TlsFlags(const TestAuthority& authority) {
  const TestCertificate own = authority.Sign("server");
  return {"--client-cert-auth",
          "--trusted-ca-file",
          authority.ca_cert(),
          "--cert-file",
          own.cert,
          "--key-file",
          own.key};
}

// One call, which must succeed.
template <typename Stub, typename Request, typename Response>
void Must(Stub* stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
          const Request& request) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kTimeout));
  Response response;
  const grpc::Status status = (stub->*method)(&context, request, &response);
  if (!status.ok()) Die(absl::StrCat("etcd: ", status.error_message()));
}

}  // namespace

std::string NewTestFolder() {
  std::string folder = absl::StrCat(base::GetEnv("TEST_TMPDIR").value_or("/tmp"), "/etcd-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) Die(folder);
  return folder;
}

EtcdServer::EtcdServer(std::vector<std::string> flags) : EtcdServer(std::move(flags), "http") {
  Start();
}

EtcdServer::EtcdServer(const TestAuthority& authority) : EtcdServer(TlsFlags(authority), "https") {
  Start();
}

EtcdServer::EtcdServer(std::vector<std::string> flags, const std::string& scheme)
    : port_(FreePort()) {
  const std::string folder = NewTestFolder();
  const std::string clients = absl::StrCat(scheme, "://", endpoint());
  const std::string peers = absl::StrCat("http://127.0.0.1:", FreePort());
  arguments_ = {base::GetEnv("TEST_SRCDIR").value_or("") + "/etcd_server/usr/bin/etcd",
                "--data-dir",
                folder + "/data",
                "--listen-client-urls",
                clients,
                "--advertise-client-urls",
                clients,
                "--listen-peer-urls",
                peers,
                "--initial-advertise-peer-urls",
                peers,
                "--initial-cluster",
                "default=" + peers,
                "--heartbeat-interval",
                "50",
                "--election-timeout",
                "500",
                "--unsafe-no-fsync",
                "--bcrypt-cost",
                "4",
                "--logger",
                "zap",
                "--log-outputs",
                folder + "/log"};
  // Of a flag that comes twice the last counts.
  for (std::string& flag : flags) arguments_.push_back(std::move(flag));
}

EtcdServer::~EtcdServer() { Kill(); }

std::string EtcdServer::endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

void EtcdServer::Start() {
  Spawn();
  AwaitListening();
}

void EtcdServer::Spawn() {
  std::vector<char*> argv;
  for (std::string& argument : arguments_) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) Die("fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    execv(argv[0], argv.data());
    std::perror(argv[0]);
    _exit(127);
  }
}

void EtcdServer::AwaitListening() {
  const Deadline deadline(kTimeout);
  while (!Listens(port_)) {
    if (waitpid(pid_, nullptr, WNOHANG) == pid_) Die("etcd has ended");
    if (deadline.Expired()) Die("etcd does not listen");
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void EtcdServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void EtcdServer::Pause() {
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);  // Its threads may run on for a while.
}

void EtcdServer::Resume() { kill(pid_, SIGCONT); }

void EtcdServer::EnableAuth(const std::string& prefix) const {
  const auto stub =
      pb::Auth::NewStub(grpc::CreateChannel(endpoint(), grpc::InsecureChannelCredentials()));
  for (const std::string name : {"root", "worker", "stranger"}) {
    pb::AuthUserAddRequest user;
    user.set_name(name);
    user.set_password(name);
    Must(stub.get(), &pb::Auth::Stub::UserAdd, user);
    pb::AuthRoleAddRequest role;
    role.set_name(name);
    Must(stub.get(), &pb::Auth::Stub::RoleAdd, role);
    pb::AuthUserGrantRoleRequest grant;
    grant.set_user(name);
    grant.set_role(name);
    Must(stub.get(), &pb::Auth::Stub::UserGrantRole, grant);
  }
  pb::AuthRoleGrantPermissionRequest permission;
  permission.set_name("worker");
  permission.mutable_perm()->set_permtype(authpb::Permission::READWRITE);
  permission.mutable_perm()->set_key(prefix);
  permission.mutable_perm()->set_range_end(EtcdPrefixEnd(prefix));
  Must(stub.get(), &pb::Auth::Stub::RoleGrantPermission, permission);
  Must(stub.get(), &pb::Auth::Stub::AuthEnable, pb::AuthEnableRequest());
}

EtcdCluster::EtcdCluster(int size) {
  std::vector<std::string> peers;
  std::string all;
  for (int i = 0; i < size; ++i) {
    peers.push_back(absl::StrCat("http://127.0.0.1:", FreePort()));
    absl::StrAppend(&all, i == 0 ? "" : ",", "member", i, "=", peers[i]);
  }
  for (int i = 0; i < size; ++i) {
    const std::vector<std::string> flags = {"--name",
                                            absl::StrCat("member", i),
                                            "--listen-peer-urls",
                                            peers[i],
                                            "--initial-advertise-peer-urls",
                                            peers[i],
                                            "--initial-cluster",
                                            all};
    members_.emplace_back(new EtcdServer(flags, "http"));
    members_.back()->Spawn();
  }
  // One alone does not listen: it waits for the others.
  for (const auto& member : members_) member->AwaitListening();
}

std::string EtcdCluster::endpoints() const {
  std::string endpoints;
  for (const auto& member : members_) {
    absl::StrAppend(&endpoints, endpoints.empty() ? "" : ",", member->endpoint());
  }
  return endpoints;
}

}  // namespace syncline::etcd_store
