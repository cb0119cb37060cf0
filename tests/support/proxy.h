// Proxies between the TCP connections of ranks, which do to what they carry what bad networks do.
#ifndef SYNCLINE_TESTS_SUPPORT_PROXY_H_
#define SYNCLINE_TESTS_SUPPORT_PROXY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "core/base/unique_fd.h"
#include "core/testing/forwarding_store.h"
#include "syncline/store.h"

namespace syncline {

// Carries connections of loopback, all on one thread. Thread-safe.
class Proxy {
 public:
  // What happens to one connection, once it has carried `bytes` more.
  struct Fault {
    enum class Kind {
      // "One way" is that of the byte which is the last to be carried.
      kStall,        // Neither direction carries anything any more, and nothing ends.
      kStallOneWay,  // The same one way.
      kLoseOneWay,   // What is sent one way from now on is acknowledged, and lost.
      kHalfOpen,     // Who has sent that byte sees an end; the other one sees none, and goes on.
      kEnd,          // Both sides see its end.
      kReset,        // Both sides see a reset.
      kChange,       // A byte is changed on its way.
    };
    Kind kind = Kind::kStall;
    int64_t bytes = 0;
    // Of the connections that carry something after the fault was made, so many do so before the
    // one that has it.
    int skip = 0;
  };

  // At most so many bytes are passed on at a time, each after so many microseconds.
  explicit Proxy(int piece = 64 << 10, int delay = 0);
  ~Proxy();

  // A port that stands for `port`, now and later.
  int PortFor(int port);

  void Make(const Fault& fault);
  // Whether it has happened.
  bool has_happened() const { return has_happened_; }

 private:
  struct Connection;

  void Run();
  void Accept(int listener, int port);
  // False once it is of no more use.
  bool Carry(Connection& connection, int from);

  const int piece_, delay_;
  std::atomic<bool> is_over_{false}, has_happened_{false};
  absl::Mutex mutex_;
  std::vector<std::pair<base::UniqueFd, int>> listeners_ ABSL_GUARDED_BY(mutex_);  // And for whom.
  Fault fault_ ABSL_GUARDED_BY(mutex_);
  bool is_armed_ ABSL_GUARDED_BY(mutex_) = false;
  int generation_ ABSL_GUARDED_BY(mutex_) = 0;            // Of the fault.
  std::vector<std::unique_ptr<Connection>> connections_;  // Of the thread.
  std::thread thread_;
};

// A store in which every "127.0.0.1 PORT " that a rank tells the others leads to a proxy.
class ProxiedStore final : public ForwardingStore {
 public:
  // `proxy` must outlive it.
  ProxiedStore(std::shared_ptr<Store> store, Proxy& proxy)
      : ForwardingStore(std::move(store)), proxy_(proxy) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;

 private:
  Proxy& proxy_;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_PROXY_H_
