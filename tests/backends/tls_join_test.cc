// Ranks whose connections are not encrypted compare what their environments say of that.
#include "backends/common/tls_join.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/testing/environments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/ranks.h"

namespace syncline::backends {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What each rank of a group on one host gets, where each has an environment of its own.
std::vector<absl::Status> JoinWith(const std::vector<Variables>& environments) {
  HashStore store;
  const int size = static_cast<int>(environments.size());
  return RunRanks(size, [&](int rank) {
    return JoinPlain("gloo", store, rank, size, absl::StrCat("at ", rank),
                     Deadline(absl::Minutes(1)), nullptr, LookUpIn(environments[rank]))
        .status();
  });
}

TEST(TlsJoinTest, RanksWithTheSameSettingsJoin) {
  for (const Variables& environment :
       {Variables{}, Variables{{"SYNCLINE_TLS", "secret"}},
        Variables{{"SYNCLINE_TLS", "secret"}, {"SYNCLINE_TLS_PLAIN", "mpi,gloo"}}}) {
    for (const absl::Status& status : JoinWith({environment, environment, environment})) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(TlsJoinTest, AllRanksHearOfOneThatIsToEncrypt) {
  for (const absl::Status& status : JoinWith({{}, {}, {{"SYNCLINE_TLS", "secret"}}})) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("SYNCLINE_TLS must be the same on all ranks: it is off for rank 0"),
                      HasSubstr("and secret for rank 2")));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 2));
  }
}

TEST(TlsJoinTest, AllRanksHearOfOneThatMayNotBePlain) {
  const Variables allowed = {{"SYNCLINE_TLS", "secret"}, {"SYNCLINE_TLS_PLAIN", "gloo"}};
  const Variables others = {{"SYNCLINE_TLS", "secret"}, {"SYNCLINE_TLS_PLAIN", "nccl"}};
  for (const absl::Status& status : JoinWith({allowed, others})) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("SYNCLINE_TLS_PLAIN must be the same on all ranks: it lists gloo "
                                "for rank 0"),
                      HasSubstr("and not for rank 1")));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 1));
  }
}

// Without SYNCLINE_TLS it says nothing, and other backends are none of this one's business.
TEST(TlsJoinTest, WhatMakesNoDifferenceIsNotCompared) {
  for (const absl::Status& status : JoinWith({{}, {{"SYNCLINE_TLS_PLAIN", "gloo"}}})) {
    EXPECT_TRUE(status.ok()) << status;
  }
  const Variables own = {{"SYNCLINE_TLS", "secret"}, {"SYNCLINE_TLS_PLAIN", "gloo"}};
  for (const absl::Status& status :
       JoinWith({own, With(own, {{"SYNCLINE_TLS_PLAIN", "mpi,gloo"}})})) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(TlsJoinTest, AllRanksHearOfSettingsThatAreNone) {
  const auto statuses = JoinWith({{}, {{"SYNCLINE_TLS", "yes"}}});
  EXPECT_THAT(std::string(statuses[0].message()),
              AllOf(HasSubstr("rank 1"), HasSubstr("SYNCLINE_TLS must be off, secret or")));
  EXPECT_EQ(KindOf(statuses[1]), ErrorKind::kArgument) << statuses[1];
}

}  // namespace
}  // namespace syncline::backends
