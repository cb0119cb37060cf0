// Ranks that leave a group as soon as they can, while the others are still at it.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/operations.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

CallContext Number(uint64_t sequence) { return {sequence, Deadline(kTimeout)}; }

absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& name, std::shared_ptr<Store> store,
                                              int rank, int size) {
  return BackendRegistry::Make(name, OnLoopback(std::move(store), rank, size, kTimeout));
}

std::vector<std::string> OpenSockets() {
  std::vector<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // The iterator's own.
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (absl::StartsWith(target.string(), "socket:")) sockets.push_back(target.string());
  }
  std::sort(sockets.begin(), sockets.end());
  return sockets;
}

class BackendLeaveTest : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  static const std::string& Name() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }

  // Makes one group after another. Every rank calls `body` and leaves; none may fail. By hand,
  // backend_leave_repeated_test makes many more.
  template <typename Body>  // absl::Status(Backend&, int rank, int group)
  static void RunGroups(const Body& body) {
    const int groups = 120 / size();
    for (int group = 0; group < groups && !HasFailure(); ++group) {
      const auto store = std::make_shared<HashStore>();
      const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
        SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(Name(), store, rank, size()));
        return body(*backend, rank, group);
      });
      for (int rank = 0; rank < size(); ++rank) {
        EXPECT_TRUE(statuses[rank].ok())
            << "group " << group << ", rank " << rank << ": " << statuses[rank];
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(All, BackendLeaveTest,
                         testing::Combine(testing::Values("auto", "gloo", "local", "shm", "tcp"),
                                          testing::Values(3, 7)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(BackendLeaveTest, ARankThatLeavesAtOnceLetsTheOthersConnect) {
  RunGroups([](Backend&, int, int) { return absl::OkStatus(); });
}

TEST_P(BackendLeaveTest, ARankThatLeavesAtOnceLetsTheOthersTalk) {
  RunGroups([](Backend& backend, int rank, int) -> absl::Status {
    if (rank == 0) return absl::OkStatus();
    const Tensor tensor = Bytes(DType::kInt32, 1000, rank);
    if (rank == 1) return RunAndWait(backend, Collective::Send(tensor, 2), Number(0)).status();
    if (rank == 2) return RunAndWait(backend, Collective::Recv(tensor, 1), Number(0)).status();
    return absl::OkStatus();
  });
}

TEST_P(BackendLeaveTest, ARankThatLeavesRightAfterABarrierLetsTheOthersPassIt) {
  RunGroups([](Backend& backend, int, int group) -> absl::Status {
    for (int i = 0; i <= group % 3; ++i) {
      SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, Collective::Barrier(), Number(i)).status());
    }
    return absl::OkStatus();
  });
}

TEST_P(BackendLeaveTest, RanksMayLeaveRightAfterAnyCollective) {
  for (OpKind kind : CollectiveKinds()) {
    SCOPED_TRACE(syncline::Name(kind));
    const auto store = std::make_shared<HashStore>();
    const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(Name(), store, rank, size()));
      Spec spec{kind};
      spec.count = 100000;
      return RunAndWait(*backend, Build(spec, rank, size()), Number(0)).status();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(BackendLeaveTest, WhatARankHasSentArrivesThoughItLeavesAtOnce) {
  constexpr int64_t kElements = 1 << 20;
  for (int group = 0; group < 20; ++group) {
    const auto store = std::make_shared<HashStore>();
    const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(Name(), store, rank, size()));
      const Tensor expected = Bytes(DType::kInt32, kElements, group);
      const Tensor tensor = Bytes(DType::kInt32, kElements, rank == 0 ? group : -1);
      for (int peer = 1; peer < size(); ++peer) {
        if (rank == 0)
          SYNCLINE_RETURN_IF_ERROR(
              RunAndWait(*backend, Collective::Send(tensor, peer), Number(0)).status());
      }
      if (rank > 0)
        SYNCLINE_RETURN_IF_ERROR(
            RunAndWait(*backend, Collective::Recv(tensor, 0), Number(0)).status());
      EXPECT_TRUE(SameBytes(tensor, expected));
      return absl::OkStatus();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_P(BackendLeaveTest, GroupsThatAreGoneLeaveNoFilesAndNoThreads) {
  auto make = [] {
    const auto store = std::make_shared<HashStore>();
    const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
      SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(Name(), store, rank, size()));
      return RunAndWait(*backend, Collective::Barrier(), Number(0)).status();
    });
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  };
  make();
  const int64_t before = CountPossessions();
  for (int i = 0; i < 10; ++i) make();
  EXPECT_LE(CountPossessions(before), before);
}

class BackendAloneTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(All, BackendAloneTest,
                         testing::Values("auto", "gloo", "local", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(BackendAloneTest, AGroupOfOneOpensNoSocketAndStartsNoThread) {
  const std::vector<std::string> sockets = OpenSockets();
  const int64_t before = CountPossessions();
  const auto backend = Join(GetParam(), std::make_shared<HashStore>(), 0, 1);
  ASSERT_TRUE(backend.ok()) << backend.status();
  uint64_t sequence = 0;
  for (OpKind kind : CollectiveKinds()) {
    const Spec spec{kind};
    const auto done = RunAndWait(**backend, Build(spec, 0, 1), Number(sequence++));
    EXPECT_TRUE(done.ok()) << syncline::Name(kind) << ": " << done.status();
  }
  EXPECT_EQ(OpenSockets(), sockets);
  EXPECT_LE(CountPossessions(before), before);
}

}  // namespace
}  // namespace syncline
