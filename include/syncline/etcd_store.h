// A store in an etcd cluster.
#ifndef SYNCLINE_ETCD_STORE_H_
#define SYNCLINE_ETCD_STORE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "syncline/store.h"

namespace syncline {

// Speaks etcd's v3 API; etcd 3.4 or later. Key "a" is etcd's key "PREFIX/keys/a", its value as it
// is; PREFIX/calls/ and PREFIX/lease are for the store's own use. A user needs readwrite on all
// that begins with PREFIX.
//
// A server that goes away and comes back, or another endpoint that takes its place, within a call's
// timeout is not noticed: waits go on, and calls are repeated. Each change takes effect exactly
// once, also if an answer was lost and the call repeated. Only where a call ends with an error is
// it unknown whether it took effect.
//
// With a `ttl` the contents, and nothing else in etcd, live as long as any client of the store, and
// `ttl` longer (etcd may raise it, to 2 seconds; the first client's is in force). If for so long
// none could reach etcd, the contents are gone, and calls of these clients fail from then on.
// Without one they stay until somebody removes them.
//
// etcd's limits are the store's: 1.5 MiB in a request (--max-request-bytes), and 128 operations in
// one (--max-txn-ops), which suffices for about 3900 keys in a MultiSet.
//
// A store cannot be used in a fork()ed child of the process that made it: calls fail there.
class EtcdStore final : public Store {
 public:
  struct Options {
    StoreConfig::Etcd etcd;  // endpoints must be given.
    absl::Duration timeout = kDefaultStoreTimeout;
    std::optional<absl::Duration> connect_timeout;  // As for calls if not given.
  };

  // Tries until the timeout to reach the cluster; user and certificates have then been accepted.
  static absl::StatusOr<std::shared_ptr<EtcdStore>> Create(const Options& options);
  ~EtcdStore() override;

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
  absl::Duration timeout() const override { return timeout_; }
  std::string ToString() const override { return name_; }
  std::string address() const override;  // The first endpoint.

 private:
  struct Connection;
  // From the value that a key has, null if it is absent, to the one that it shall have.
  using Update = absl::FunctionRef<absl::StatusOr<std::string>(const std::string* present)>;

  EtcdStore(const Options& options, std::unique_ptr<Connection> connection);

  absl::Status CheckUsable() const;
  absl::Status AnnotateCall(const absl::Status& status, absl::Span<const std::string> keys) const;
  absl::StatusOr<std::string> Replace(const std::string& key, Update update);

  const std::string name_;
  const std::string endpoints_;
  const absl::Duration timeout_;
  const pid_t pid_;
  std::unique_ptr<Connection> connection_;
};

}  // namespace syncline

#endif  // SYNCLINE_ETCD_STORE_H_
