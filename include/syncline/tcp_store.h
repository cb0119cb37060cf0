// A store over the network, with a server in one of the processes.
#ifndef SYNCLINE_TCP_STORE_H_
#define SYNCLINE_TCP_STORE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "syncline/extended_store.h"
#include "syncline/store.h"

namespace syncline {

namespace tcp_store {
class TCPClient;
class TCPServer;
}  // namespace tcp_store

// Its contents live in the memory of the server, and end with it: from then on calls of all
// clients fail with a NetworkError. A value and its key may have about 64 MiB.
//
// A store cannot be used in a fork()ed child of the process that made it: calls fail there.
class TCPStore final : public ExtendedStore {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int port = 0;  // A server's 0 lets the system choose; see port().
    StoreConfig::Role role = StoreConfig::Role::kClient;
    absl::Duration timeout = kDefaultStoreTimeout;
    std::optional<absl::Duration> connect_timeout;  // As for calls if not given.
    // A server's: a socket that listens at `host` already, in place of one made here. The server
    // owns it then, even if Create fails. With `port` 0 its port is taken.
    std::optional<int> listen_fd;
    // A server's: if a store of this process serves at `port` already, this one is another client
    // of that server, which ends with the last of the two.
    bool multi_tenant = false;
    std::string secret;  // The job's: both sides prove that they know it. Empty: none is asked for.
  };

  // A client tries until the timeout; a server listens when this returns.
  static absl::StatusOr<std::shared_ptr<TCPStore>> Create(const Options& options);
  ~TCPStore() override;

  const std::string& host() const { return host_; }
  int port() const { return port_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override;
  absl::Status Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override;
  absl::Status SetOnDisconnect(absl::string_view key, absl::string_view value) override;
  bool is_hosted_here() const override { return server_ != nullptr; }
  bool is_lost() const override;
  absl::Duration timeout() const override { return timeout_.Get(); }
  void set_timeout(absl::Duration timeout) override { timeout_.Set(timeout); }
  // A clone of a server's store is hosted here, too: the server ends with the last of them.
  absl::StatusOr<std::shared_ptr<Store>> Clone() override;
  absl::Status QueuePush(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> QueuePop(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::optional<std::string>> QueueTryPop(absl::string_view key) override;
  absl::StatusOr<int64_t> QueueLength(absl::string_view key) override;
  std::string ToString() const override;
  std::string address() const override;

 private:
  TCPStore(const Options& options, int port, std::shared_ptr<tcp_store::TCPServer> server,
           std::unique_ptr<tcp_store::TCPClient> client);

  // A client of `server`, or of one elsewhere if that is null.
  static absl::StatusOr<std::shared_ptr<TCPStore>> Connect(
      const Options& options, std::shared_ptr<tcp_store::TCPServer> server);

  const std::string host_;
  const int port_;
  AtomicDuration timeout_;
  const Options options_;  // For clones.
  const pid_t pid_;
  std::shared_ptr<tcp_store::TCPServer> server_;  // Null if it is elsewhere. Outlives client_.
  std::unique_ptr<tcp_store::TCPClient> client_;
};

}  // namespace syncline

#endif  // SYNCLINE_TCP_STORE_H_
