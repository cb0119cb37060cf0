// Every operation once with more elements, and bytes, than 31 bits count.
#include <memory>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/conformance_data.h"
#include "tests/support/operations.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

constexpr int64_t kHuge = (int64_t{2} << 30) + 7;

class LargeTest : public testing::TestWithParam<std::tuple<std::string, OpKind>> {};

INSTANTIATE_TEST_SUITE_P(All, LargeTest,
                         testing::Combine(testing::Values("gloo", "local", "shm", "tcp"),
                                          testing::ValuesIn(CollectiveKinds())),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               Name(std::get<1>(info.param)));
                         });

// One part is huge; where every rank has one, or one for each, some are small.
Spec HugeSpec(OpKind kind) {
  Spec spec = {kind, DType::kUInt8, kHuge};
  if (AllowsInPlace(kind)) spec.buffers = BufferUse::kInPlace;
  if (kind == OpKind::kAllGather || kind == OpKind::kReduceScatter) spec.uneven = {kHuge, 5};
  if (kind == OpKind::kAllToAll) spec.uneven = {0, kHuge, kHuge, 3};
  return spec;
}

TEST_P(LargeTest, MoreThanTwoGiBAreMoved) {
  const auto& [backend, kind] = GetParam();
  const Spec spec = HugeSpec(kind);
  auto store = std::make_shared<HashStore>();
  absl::Mutex one_at_a_time;  // The checks, which take as much memory again.
  const auto statuses = RunRanks(
      2,
      [&, &backend = backend](int rank) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(auto member, Member::Join(backend, store, rank, 2));
        const Collective operation = Build(spec, rank, 2);
        // Fresh memory takes its time.
        SYNCLINE_RETURN_IF_ERROR(
            RunAndWait(member->backend(), Collective::Barrier(), member->Next()).status());
        SYNCLINE_RETURN_IF_ERROR(member->Run(operation));
        absl::MutexLock lock(&one_at_a_time);
        return CheckDone(spec, operation, rank, 2);
      },
      absl::Minutes(10));
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

class LargeMessageTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, LargeMessageTest, testing::Values("gloo", "local", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(LargeMessageTest, MoreThanTwoGiBAreSent) {
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(
      2,
      [&](int rank) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(auto member, Member::Join(GetParam(), store, rank, 2));
        const Tensor tensor = Bytes(DType::kUInt8, kHuge, rank);
        SYNCLINE_RETURN_IF_ERROR(
            RunAndWait(member->backend(), Collective::Barrier(), member->Next()).status());
        if (rank == 0)
          return RunAndWait(member->backend(), Collective::Send(tensor, 1), member->Next())
              .status();
        SYNCLINE_RETURN_IF_ERROR(
            RunAndWait(member->backend(), Collective::Recv(tensor, 0), member->Next()).status());
        return SameBytes(tensor, Bytes(DType::kUInt8, kHuge, 0))
                   ? absl::OkStatus()
                   : absl::InternalError("the bytes are wrong");
      },
      absl::Minutes(10));
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace syncline
