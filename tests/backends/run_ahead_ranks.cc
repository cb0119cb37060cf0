#include "tests/backends/run_ahead_ranks.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "backends/shm/shm_backend.h"
#include "gmock/gmock.h"
#include "syncline/backend_registry.h"
#include "syncline/deadline.h"
#include "tests/support/backend_config.h"

namespace syncline::run_ahead {

absl::StatusOr<std::shared_ptr<Backend>> JoinComparing(const std::string& backend,
                                                       std::shared_ptr<Store> store, int rank,
                                                       int size, backends::Comparison comparison) {
  BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
  return backend == "shm" ? shm::MakeShm(config, comparison)
                          : BackendRegistry::Make(backend, config);
}

absl::Status Broadcast(Backend& backend, uint64_t sequence, int root, int64_t count,
                       absl::Duration timeout) {
  return RunAndWait(backend, Collective::Broadcast(Tensor::Zeros(DType::kUInt8, {count}), root),
                    {sequence, Deadline(timeout)})
      .status();
}

absl::Status Barrier(Backend& backend, uint64_t sequence) {
  return RunAndWait(backend, Collective::Barrier(), {sequence, Deadline(kTimeout)}).status();
}

void ExpectMismatch(const absl::Status& status, const std::string& a, const std::string& b) {
  EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr(a), testing::HasSubstr(b)));
}

void RunAheadTest::SetUp() {
  if (std::get<0>(GetParam()) == "tcp_streams") setenv("SYNCLINE_TCP_STREAMS", "3", 1);
}
void RunAheadTest::TearDown() { unsetenv("SYNCLINE_TCP_STREAMS"); }

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

}  // namespace syncline::run_ahead
