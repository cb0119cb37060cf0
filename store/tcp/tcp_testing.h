// What the tests of the tcp store share.
#ifndef SYNCLINE_STORE_TCP_TCP_TESTING_H_
#define SYNCLINE_STORE_TCP_TCP_TESTING_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "store/tcp/tcp_server.h"
#include "syncline/deadline.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {

inline constexpr absl::Duration kTimeout = absl::Seconds(30);

using Strings = std::vector<std::string>;

inline TCPStore::Options Client(int port, const std::string& secret = "") {
  TCPStore::Options options;
  options.port = port;
  options.secret = secret;
  options.timeout = kTimeout;
  return options;
}

inline TCPStore::Options Server(const std::string& secret = "") {
  TCPStore::Options options = Client(0, secret);
  options.role = StoreConfig::Role::kServer;
  return options;
}

inline std::shared_ptr<TCPStore> Create(const TCPStore::Options& options) {
  auto store = TCPStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

inline std::unique_ptr<TCPServer> Start(const TCPServer::Options& options) {
  auto server = TCPServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// The message of the error, which must be of `kind`.
inline std::string CreateError(const TCPStore::Options& options, ErrorKind kind) {
  absl::Status status = TCPStore::Create(options).status();
  EXPECT_FALSE(status.ok());
  if (status.ok()) return "";
  EXPECT_EQ(KindOf(status), kind) << status;
  return std::string(status.message());
}

// A server in a process of its own, which is killed when this goes. The test's main() must be
// RunTestsOrServe.
class ServerProcess {
 public:
  // With `max_descriptors` (0: as this process), which the process may not exceed.
  explicit ServerProcess(const std::string& secret = "", int max_descriptors = 0);
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess();

  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  void Signal(int signal);  // When this returns after SIGSTOP, it is stopped.
  int NumDescriptors() const;
  int64_t MostMemory() const;  // Bytes resident, at the peak.

 private:
  pid_t pid_ = -1;
  int port_ = 0;
};

// Runs the tests or, where this process is a ServerProcess, serves until its parent is gone.
int RunTestsOrServe(int argc, char** argv);

// Polls `condition` until it holds or kTimeout has passed; whether it held.
template <typename Condition>
bool Eventually(Condition condition) {
  const Deadline deadline(kTimeout);
  while (!condition()) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_TESTING_H_
