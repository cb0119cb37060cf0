// Ranks of one host that give up while another rank still reads their memory, which they then use
// for something else: that one may not take what it reads for a result.
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/shared_calls.h"
#include "tests/support/backend_config.h"
#include "tests/support/page_trap.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr int64_t kPart =
    256 << 10;              // Bytes of what one rank has for another: read by direct access.
constexpr int kReader = 0;  // The rank that is held; the root where only one rank reads,
constexpr int kOwner = 1;   // and the one that gives up; the root where only one rank is read.

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank, int size) {
  return BackendRegistry::Make("shm", OnLoopback(std::move(store), rank, size, kTimeout));
}

class ShmGiveUpTest : public testing::TestWithParam<std::tuple<OpKind, int>> {};

INSTANTIATE_TEST_SUITE_P(All, ShmGiveUpTest,
                         testing::Combine(testing::Values(OpKind::kBroadcast, OpKind::kAllReduce,
                                                          OpKind::kReduce, OpKind::kAllGather,
                                                          OpKind::kGather, OpKind::kScatter,
                                                          OpKind::kReduceScatter),
                                          testing::Values(2, 3)),
                         [](const auto& info) {
                           return absl::StrCat(Name(std::get<0>(info.param)), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(ShmGiveUpTest, WhatIsReadFromARankThatHasGivenUpIsNoResult) {
  const auto [kind, size] = GetParam();
  const auto store = std::make_shared<HashStore>();
  std::vector<SharedBuffers> buffers;
  for (int rank = 0; rank < size; ++rank) buffers.emplace_back(size, kPart);
  for (const SharedBuffers& each : buffers) each.Fill(1);
  const bool one_is_read = kind == OpKind::kBroadcast || kind == OpKind::kScatter;
  const int root = one_is_read ? kOwner : kReader;
  const Tensor got = GotFrom(kind, buffers[kReader], size - 1);
  char* const last = got.data_as<char>() + got.nbytes() - 1;
  std::vector<std::shared_ptr<Backend>> backends(size);
  std::unique_ptr<PageTrap> trap;
  Countdown ready(size + 1), given_up(size - 1);
  const auto run = [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(backends[rank], Join(store, rank, size));
    const auto call = [&](uint64_t sequence) {
      const CallContext context = {sequence, Deadline(kTimeout)};
      return RunShared(kind, buffers[rank], root, *backends[rank], context);
    };
    SYNCLINE_RETURN_IF_ERROR(call(0));  // Maps the others' memory.
    if (rank == kReader) trap = std::make_unique<PageTrap>(last);
    ready.StepAndWait();
    const absl::Status status = call(1);
    if (rank != kReader) {
      buffers[rank].Fill(99);
      given_up.Step();
    }
    return status;
  };
  const auto conduct = [&] {
    ready.StepAndWait();
    trap->AwaitHeld();
    backends[kOwner]->Abort(BackendError("has better things to do"));
    given_up.Wait();
    trap->Release();
    return absl::OkStatus();
  };
  const std::vector<absl::Status> statuses =
      RunRanks(size + 1, [&](int rank) { return rank < size ? run(rank) : conduct(); });
  EXPECT_FALSE(statuses[kOwner].ok());
  if (statuses[kReader].ok()) {
    // An all_reduce may have gone through the group's buffers: see
    // shm::DirectAccess::ExchangeForAllReduce.
    EXPECT_EQ(kind, OpKind::kAllReduce);
    EXPECT_EQ(CheckAll(got, 1), absl::OkStatus());
  } else {
    EXPECT_THAT(statuses[kReader].message(), AllOf(HasSubstr("has better things to do"),
                                                   HasSubstr(absl::StrCat("rank ", kOwner, " ("))));
  }
}

}  // namespace
}  // namespace syncline
