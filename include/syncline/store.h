// Store: a small key-value store, shared by all processes of a job, through which they find each
// other.
#ifndef SYNCLINE_STORE_H_
#define SYNCLINE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "syncline/registry.h"
#include "syncline/status.h"

namespace syncline {

// Keys are non-empty strings, values are bytes. Every operation is atomic, and all clients see the
// operations in one order. Thread-safe; a call that waits never holds up another thread's call.
// Clients share a store object by shared_ptr; the last one closes the connection.
//
// A call that does not wait for a key still waits for the medium (a server, a file lock), for at
// most timeout(). Errors are of kind kStore, kNetwork or kTimeout and name the key and the store;
// an empty key is an ArgumentError. A wait can be interrupted (see interrupt.h).
//
//   StoreConfig config;
//   config.host = "node1";
//   config.port = 29500;
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
//   SYNCLINE_RETURN_IF_ERROR(store->Set("address/0", "10.0.0.1:4711"));
//   SYNCLINE_ASSIGN_OR_RETURN(std::string peer, store->Get("address/1", absl::Seconds(30)));
class Store {
 public:
  struct CompareSetResult {
    bool swapped = false;
    std::string value;  // The value after the call; empty if the key is still absent.
  };

  virtual ~Store() = default;

  // Sets `key`, replacing any earlier value.
  virtual absl::Status Set(absl::string_view key, absl::string_view value) = 0;

  // Waits until `key` is set and returns its value.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) = 0;

  // Adds `amount` to the decimal number that `key` holds (0 if it is absent); returns the sum.
  // Fails, changing nothing, if the value is not a decimal 64-bit number or the sum overflows.
  virtual absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) = 0;

  // Sets `key` to `desired` if it now holds `expected`. An empty `expected` stands for "absent",
  // which a key with an empty value is not.
  virtual absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key,
                                                      absl::string_view expected,
                                                      absl::string_view desired) = 0;

  // Waits until all `keys` are set. On timeout the error lists those that are not.
  virtual absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) = 0;

  // Whether all `keys` are set now.
  virtual absl::StatusOr<bool> Check(absl::Span<const std::string> keys) = 0;

  // Removes `key`; returns whether it was set.
  virtual absl::StatusOr<bool> Delete(absl::string_view key) = 0;

  // The keys that begin with `prefix`, sorted.
  virtual absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) = 0;

  // Appends to the value of `key`, which is created if it is absent.
  virtual absl::Status Append(absl::string_view key, absl::string_view value) = 0;

  // Waits until all `keys` are set; returns their values in the same order.
  virtual absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                            absl::Duration timeout) = 0;

  // Sets keys[i] to values[i] for all i in one step. ArgumentError if the lengths differ.
  virtual absl::Status MultiSet(absl::Span<const std::string> keys,
                                absl::Span<const std::string> values) = 0;

  // Has the store set `key` to `value` once this client's connection has ended, whatever ends it:
  // its process may have died. For others to learn of that. UnsupportedError where the store
  // watches no connections; "tcp" does.
  virtual absl::Status SetOnDisconnect(absl::string_view, absl::string_view) {
    return UnsupportedError(ToString() + " does not watch the connections of its clients");
  }

  // Whether this process hosts the store, which ends with it.
  virtual bool is_hosted_here() const { return false; }

  // Whether this client has seen that the store has ended, so that its calls fail. Asks nobody: one
  // that has ended just now, or whose host has lost its power, may not be known to have.
  virtual bool is_lost() const { return false; }

  // The default for waits: 5 minutes unless the store was made with another.
  virtual absl::Duration timeout() const = 0;

  // For messages: "tcp://127.0.0.1:41327", "file:///tmp/x".
  virtual std::string ToString() const = 0;

  // "host:port" where other processes reach the store; empty if it is not on a network.
  virtual std::string address() const { return {}; }
};

inline constexpr absl::Duration kDefaultStoreTimeout = absl::Minutes(5);

// For requests that a live store answers at once, such as Wait for a key that is known to be there.
// If one takes longer, the store counts as gone.
inline constexpr absl::Duration kStoreProbeTimeout = absl::Seconds(2);

// How to open a store. Each implementation reads the fields that its comment names.
struct StoreConfig {
  std::string host;                                           // tcp
  int port = 0;                                               // tcp; 0 lets the server choose.
  std::string path;                                           // file
  enum class Role { kClient, kServer } role = Role::kClient;  // tcp; a server is also a client.
  absl::Duration timeout = kDefaultStoreTimeout;
  std::optional<absl::Duration> connect_timeout;  // tcp, etcd; as for calls if not given.
  std::string secret;  // tcp; empty: that of SYNCLINE_SECRET_FILE, if it is set.

  struct Etcd {
    std::string endpoints;             // Of one cluster: "host1:2379,host2:2379".
    std::string ca_cert, cert, key;    // PEM files; any of them makes the connections TLS.
    std::string user, password;        // Of the cluster, if it asks for them.
    std::string prefix = "/syncline";  // Stores with different prefixes share nothing.
    absl::Duration ttl;  // How long contents outlive their last client; zero: for ever.
  } etcd;
};

// Store implementations by the scheme of their URL: "tcp", "file", "hash", "etcd".
using StoreRegistry = Registry<Store, const StoreConfig&>;

}  // namespace syncline

#endif  // SYNCLINE_STORE_H_
