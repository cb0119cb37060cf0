// Keeps the boards of the ranks of several hosts alike, through the group's store.
#ifndef SYNCLINE_BACKENDS_NCCL_FINGERPRINT_STORE_H_
#define SYNCLINE_BACKENDS_NCCL_FINGERPRINT_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "backends/common/disconnect_watch.h"
#include "backends/nccl/nccl_group.h"
#include "syncline/store.h"

namespace syncline::nccl {

// A thread that sends what this rank writes on its board to the others, and writes what they send
// on this one: in batches, since a call does not wait for it. Also looks whether the processes of
// other hosts have ended. docs/internals/nccl_protocol.md lists the keys.
//
// Owns the thread, which may be in a call of a store that does not answer: it is left behind then,
// and keeps the group and the store.
class FingerprintStore {
 public:
  FingerprintStore(std::shared_ptr<Store> store, std::shared_ptr<NcclGroup> group);
  // Sends what is left, such as that this rank has left, for kLastWords at most.
  ~FingerprintStore();

  FingerprintStore(const FingerprintStore&) = delete;
  FingerprintStore& operator=(const FingerprintStore&) = delete;

  // BackendError if no thread can be started.
  absl::Status Start();

  static constexpr absl::Duration kLastWords = absl::Seconds(2);

 private:
  class Exchange;

  const std::shared_ptr<Exchange> exchange_;
  std::thread thread_;
};

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_FINGERPRINT_STORE_H_
