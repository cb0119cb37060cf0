// What tests of etcd stores share: servers, certificates, and a network that loses answers.
#ifndef SYNCLINE_STORE_ETCD_ETCD_TESTING_H_
#define SYNCLINE_STORE_ETCD_ETCD_TESTING_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace syncline::etcd_store {

// A new folder, which is left to the test's runner to remove.
std::string NewTestFolder();

// A certificate and its key, as PEM files.
struct TestCertificate {
  std::string cert, key;
};

// An authority, and the certificates for 127.0.0.1 that it signs, for servers and clients.
class TestAuthority {
 public:
  TestAuthority();

  const std::string& ca_cert() const { return own_.cert; }
  TestCertificate Sign(const std::string& name) const;

 private:
  const std::string folder_;
  const TestCertificate own_;
};

// An etcd server on a free port of loopback. Dies with the object, and with the thread that made
// it. The test's target needs "@etcd_server//:usr/bin/etcd" in its data, and the tag block-network.
class EtcdServer {
 public:
  explicit EtcdServer(std::vector<std::string> flags = {});
  // Speaks TLS only, and only with clients whose certificates are signed by `authority`.
  explicit EtcdServer(const TestAuthority& authority);
  ~EtcdServer();

  EtcdServer(const EtcdServer&) = delete;
  EtcdServer& operator=(const EtcdServer&) = delete;

  int port() const { return port_; }
  std::string endpoint() const;

  void Kill();   // What it holds stays on disk.
  void Start();  // After Kill(), at the same port with the same contents; returns once it listens.
  void Pause();  // When this returns, it is stopped.
  void Resume();

  // From now on it asks for a user. "root" may do all, "worker" use what begins with `prefix`,
  // "stranger" nothing; each one's password is its name.
  void EnableAuth(const std::string& prefix) const;

 private:
  friend class EtcdCluster;

  EtcdServer(std::vector<std::string> flags, const std::string& scheme);

  void Spawn();
  void AwaitListening();

  const int port_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
};

// Servers that hold the same together, as long as most of them are there.
class EtcdCluster {
 public:
  explicit EtcdCluster(int size);

  std::string endpoints() const;
  EtcdServer& member(int i) { return *members_[i]; }

 private:
  std::vector<std::unique_ptr<EtcdServer>> members_;
};

// Stands between clients and a server on loopback.
class LossyProxy {
 public:
  enum class Mode {
    kForward,  // All is well.
    kSwallow,  // What the server says on the present connections is lost.
    kRefuse,   // There are no connections.
  };

  explicit LossyProxy(int server_port);
  ~LossyProxy();

  LossyProxy(const LossyProxy&) = delete;
  LossyProxy& operator=(const LossyProxy&) = delete;

  std::string endpoint() const;

  // All connections break, except with kSwallow.
  void Set(Mode mode);

 private:
  void Run();
  void Accept();
  bool Forward(int from, int to, bool keeps);
  void CloseAll();

  const int server_port_;
  int listener_;
  int port_ = 0;
  int wakeup_;
  absl::Mutex mutex_;
  Mode mode_ ABSL_GUARDED_BY(mutex_) = Mode::kForward;
  bool must_break_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<int, int>> pairs_;  // Client, server. Of thread_.
  std::thread thread_;
};

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_TESTING_H_
