#include "tests/backends/backend_conformance.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/backend_registry.h"
#include "syncline/status.h"
#include "tests/backends/suite_ranks.h"
#include "tests/support/backend_config.h"

namespace syncline {
namespace {

// On all ranks, which must succeed with equal digests.
void RunDataCase(const DataCase& data_case, const BackendCase& backend, int size,
                 MismatchCheck check) {
  const auto store = SuiteRanks::NewStore();
  const auto digest_of = [](int rank) { return absl::StrCat("digest/", rank); };
  const auto statuses = SuiteRanks::Run(size, [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(
        auto member, Member::Join(backend.name, store, rank, size, check, backend.matching));
    SYNCLINE_RETURN_IF_ERROR(data_case.run(*member));
    return store->Set(digest_of(rank), absl::StrCat(member->digest()));
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  const auto first = store->Get(digest_of(0), absl::Seconds(5));
  for (int rank = 1; rank < size; ++rank) {
    EXPECT_EQ(store->Get(digest_of(rank), absl::Seconds(5)), first) << "results differ";
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> BackendConformance::Make(std::shared_ptr<Store> store,
                                                                  int rank,
                                                                  absl::Duration timeout) {
  return BackendRegistry::Make(Case().name, OnLoopback(std::move(store), rank, size(), timeout));
}

void BackendConformance::Run(const Body& body) {
  const auto store = SuiteRanks::NewStore();
  const auto statuses = SuiteRanks::Run(size(), [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Make(store, rank));
    body(backend, rank);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

bool OnlyGives(const Spec& spec, int rank) {
  switch (spec.kind) {
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return rank == spec.root;
    case OpKind::kGather:
    case OpKind::kReduce:
      return rank != spec.root;
    default:
      return false;
  }
}

std::vector<std::string> DataCaseNames(const BackendCase& backend) {
  std::vector<std::string> names;
  for (const DataCase& data_case : DataCases()) {
    if (!data_case.matches || backend.ServesTags()) names.push_back(data_case.name);
  }
  return names;
}

std::string CaseName(const testing::TestParamInfo<std::tuple<BackendCase, int>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param));
}

std::string DataCaseName(
    const testing::TestParamInfo<std::tuple<BackendCase, int, std::string>>& info) {
  const auto& [backend, size, name] = info.param;
  return absl::StrCat(backend.name, "_", size, "_", name);
}

TEST_P(BackendConformance, TheNameIsTheRegisteredOne) {
  Run([](std::shared_ptr<Backend>& backend, int) { EXPECT_EQ(backend->name(), Case().name); });
}

TEST_P(BackendData, IsRightAndBitwiseEqualWhereItMustBe) {
  const auto& [backend, size, name] = GetParam();
  RunDataCase(FindDataCase(name), backend, size, MismatchCheck::kOn);
}

TEST_P(BackendConformance, DataIsRightWithoutTheCheckForMismatchesToo) {
  if (size() != 3) return;
  for (const std::string& name : DataCaseNames(Case())) {
    const DataCase& data_case = FindDataCase(name);
    SCOPED_TRACE(data_case.name);
    RunDataCase(data_case, Case(), size(), MismatchCheck::kOff);
  }
}

}  // namespace syncline
