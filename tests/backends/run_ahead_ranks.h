// Ranks that go on as soon as they have given their data, for the tests of that.
#ifndef SYNCLINE_TESTS_BACKENDS_RUN_AHEAD_RANKS_H_
#define SYNCLINE_TESTS_BACKENDS_RUN_AHEAD_RANKS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backends/common/comparison.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline::run_ahead {

inline constexpr absl::Duration kTimeout = absl::Seconds(60);
// Long enough for what others do meanwhile on a busy machine.
inline constexpr absl::Duration kShort = absl::Seconds(2);

// Joins a group of backend shm or tcp. The former takes the comparison; the latter, what
// SYNCLINE_DEBUG says.
absl::StatusOr<std::shared_ptr<Backend>> JoinComparing(const std::string& backend,
                                                       std::shared_ptr<Store> store, int rank,
                                                       int size, backends::Comparison comparison);

absl::Status Broadcast(Backend& backend, uint64_t sequence, int root, int64_t count,
                       absl::Duration timeout = kTimeout);
absl::Status Barrier(Backend& backend, uint64_t sequence);

// The status of the first of the calls from `first` to `last` that fails.
template <typename Call>  // absl::Status(uint64_t sequence)
absl::Status FirstFailure(uint64_t first, uint64_t last, const Call& call) {
  for (uint64_t sequence = first; sequence <= last; ++sequence) {
    SYNCLINE_RETURN_IF_ERROR(call(sequence));
  }
  return absl::OkStatus();
}

void ExpectMismatch(const absl::Status& status, const std::string& a, const std::string& b);

// A fixture of so many ranks of a backend: shm, tcp, or tcp_streams, which is tcp with several
// connections between two ranks.
using Case = std::tuple<std::string, int>;

class RunAheadTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override;
  void TearDown() override;

  bool is_shm() const { return backend() == "shm"; }
  // As the contract of Backend says.
  uint64_t ahead() const { return is_shm() && size() == 2 ? 32 : 128; }
  std::string backend() const { return std::get<0>(GetParam()).substr(0, 3); }
  int size() const { return std::get<1>(GetParam()); }
  absl::StatusOr<std::shared_ptr<Backend>> Join(
      int rank, backends::Comparison comparison = backends::Comparison::kAsTheyGo,
      std::shared_ptr<Store> store = nullptr) const {
    if (store == nullptr) store = store_;
    return JoinComparing(backend(), std::move(store), rank, size(), comparison);
  }

  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

std::string NameOf(const testing::TestParamInfo<Case>& info);

}  // namespace syncline::run_ahead

#endif  // SYNCLINE_TESTS_BACKENDS_RUN_AHEAD_RANKS_H_
