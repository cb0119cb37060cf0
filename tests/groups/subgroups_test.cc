// Groups made from groups, over real backends, ranks as threads.
#include "syncline/subgroups.h"

#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/world.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

using Group = std::shared_ptr<ProcessGroup>;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

#define EXPECT_TRUE_OR_RETURN(condition) \
  if (!(condition)) return absl::InternalError("not so: " #condition)

// That the members are those of these ranks in the world.
absl::Status Holds(ProcessGroup& group, const std::vector<int>& world_ranks) {
  EXPECT_TRUE_OR_RETURN(group.ranks() == world_ranks);
  EXPECT_TRUE_OR_RETURN(group.size() == static_cast<int>(world_ranks.size()));
  std::vector<int64_t> sum = {int64_t{1} << world_ranks[group.rank()]};
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(sum)));
  int64_t expected = 0;
  for (int rank : world_ranks) expected += int64_t{1} << rank;
  EXPECT_TRUE_OR_RETURN(sum[0] == expected);
  return absl::OkStatus();
}

class SubgroupsTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs `body` on a world of `size` ranks that met in one store.
  template <typename Body>
  void RunWorld(int size, Body body) {
    auto store = std::make_shared<HashStore>();
    std::vector<std::shared_ptr<World>> worlds(size);  // Nobody leaves before all are done.
    for (const absl::Status& status : RunRanks(size, [&](int rank) -> absl::Status {
           WorldOptions options;
           options.backend = GetParam();
           options.store = store;
           options.rank = rank;
           options.size = size;
           options.timeout = absl::Seconds(60);
           SYNCLINE_ASSIGN_OR_RETURN(worlds[rank], World::Init(options));
           return body(*worlds[rank]);
         })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, SubgroupsTest, ::testing::Values("local", "gloo", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(SubgroupsTest, ASplitGivesEachRankItsGroupInTheOrderListed) {
  for (int size : {1, 2, 3, 7}) {
    RunWorld(size, [size](World& world) -> absl::Status {
      std::vector<std::vector<int>> groups = {{}, {}};
      for (int rank = size - 1; rank >= 0; --rank) groups[rank % 2].push_back(rank);
      if (size == 1) groups.pop_back();
      SYNCLINE_ASSIGN_OR_RETURN(Group half, Split(*world.group(), groups));
      EXPECT_TRUE_OR_RETURN(half != nullptr);
      SYNCLINE_RETURN_IF_ERROR(Holds(*half, groups[world.rank() % 2]));
      EXPECT_TRUE_OR_RETURN(half->backend() == GetParam());
      EXPECT_TRUE_OR_RETURN(half->timeout() == world.group()->timeout());
      return world.group()->Barrier();
    });
  }
}

TEST_P(SubgroupsTest, ASplitIsNullForThoseThatAreInNoGroup) {
  RunWorld(3, [](World& world) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(Group pair, Split(*world.group(), {{2, 0}}, absl::Seconds(30)));
    EXPECT_TRUE_OR_RETURN((pair == nullptr) == (world.rank() == 1));
    if (pair != nullptr) {
      EXPECT_TRUE_OR_RETURN(pair->timeout() == absl::Seconds(30));
      SYNCLINE_RETURN_IF_ERROR(Holds(*pair, {2, 0}));
    }
    SYNCLINE_ASSIGN_OR_RETURN(Group none, Split(*world.group(), {}));
    EXPECT_TRUE_OR_RETURN(none == nullptr);
    return world.group()->Barrier();
  });
}

TEST_P(SubgroupsTest, SplitsAreNestedAndTheirNamesUnique) {
  RunWorld(4, [](World& world) -> absl::Status {
    std::set<std::string> names = {world.group()->name()};
    std::vector<Group> groups;
    for (int round = 0; round < 2; ++round) {
      SYNCLINE_ASSIGN_OR_RETURN(Group three, Split(*world.group(), {{3, 2, 1}, {0}}));
      if (world.rank() != 0) {
        SYNCLINE_RETURN_IF_ERROR(Holds(*three, {3, 2, 1}));
        SYNCLINE_ASSIGN_OR_RETURN(Group two, Split(*three, {{2, 0}}));
        EXPECT_TRUE_OR_RETURN((two == nullptr) == (world.rank() == 2));
        if (two != nullptr) {
          SYNCLINE_RETURN_IF_ERROR(Holds(*two, {1, 3}));
          groups.push_back(two);
        }
      }
      groups.push_back(three);
    }
    for (const Group& group : groups) EXPECT_TRUE_OR_RETURN(names.insert(group->name()).second);
    return world.group()->Barrier();
  });
}

TEST_P(SubgroupsTest, GroupsThatOverlapWorkAtOnce) {
  RunWorld(3, [](World& world) -> absl::Status {
    std::vector<Group> groups = {world.group()};
    for (const std::vector<int>& ranks :
         std::vector<std::vector<int>>{{0, 1}, {1, 2}, {2, 0}, {2, 1, 0}}) {
      SYNCLINE_ASSIGN_OR_RETURN(Group group, world.NewGroup(ranks));
      if (group != nullptr) groups.push_back(group);
    }
    std::vector<std::vector<float>> tensors;
    std::vector<std::shared_ptr<Work>> works;
    for (int step = 0; step < 5; ++step) {
      for (size_t g = 0; g < groups.size(); ++g) tensors.emplace_back(10000, 1.0f);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      Group& group = groups[i % groups.size()];
      SYNCLINE_ASSIGN_OR_RETURN(auto work, group->AllReduceAsync(Tensor::Of(tensors[i])));
      works.push_back(work);
    }
    for (size_t i = 0; i < works.size(); ++i) {
      SYNCLINE_RETURN_IF_ERROR(works[i]->Wait(absl::Seconds(60)));
      const auto size = static_cast<float>(groups[i % groups.size()]->size());
      EXPECT_TRUE_OR_RETURN(tensors[i] == std::vector<float>(10000, size));
    }
    return world.group()->Barrier();
  });
}

TEST_P(SubgroupsTest, OnlyTheMembersCallForALocalGroup) {
  RunWorld(4, [](World& world) -> absl::Status {
    std::set<std::string> names;
    for (int round = 0; round < 2; ++round) {
      if (world.rank() == 0) continue;
      if (world.rank() == 2) {  // Makes another on the way, which the others know nothing of.
        SYNCLINE_ASSIGN_OR_RETURN(Group self, world.NewLocalGroup({2}));
        SYNCLINE_RETURN_IF_ERROR(Holds(*self, {2}));
      }
      SYNCLINE_ASSIGN_OR_RETURN(Group group, world.NewLocalGroup({3, 1, 2}));
      SYNCLINE_RETURN_IF_ERROR(Holds(*group, {3, 1, 2}));
      EXPECT_TRUE_OR_RETURN(names.insert(group->name()).second);
    }
    SYNCLINE_ASSIGN_OR_RETURN(Group other, world.NewLocalGroup({(world.rank() + 1) % 4}));
    EXPECT_TRUE_OR_RETURN(other == nullptr);
    return world.group()->Barrier();
  });
}

TEST_P(SubgroupsTest, MembersThatDoNotMakeTheSameGroupAreToldSo) {
  RunWorld(3, [](World& world) -> absl::Status {
    const bool is_odd = world.rank() == 1;
    auto expect_mismatch = [](const absl::StatusOr<Group>& made, const std::string& one,
                              const std::string& other) {
      EXPECT_EQ(KindOf(made.status()), ErrorKind::kMismatch) << made.status();
      EXPECT_THAT(Message(made.status()), AllOf(HasSubstr(one), HasSubstr(other)));
      EXPECT_THAT(RanksOf(made.status()), AllOf(SizeIs(2), Contains(1)));
    };
    using Ranks = std::vector<int>;
    expect_mismatch(world.NewGroup(is_odd ? Ranks{0, 1, 2} : Ranks{2, 1, 0}), "ranks [0,1,2] on",
                    "ranks [2,1,0] on");
    const std::string other = GetParam() == "gloo" ? "local" : "gloo";
    expect_mismatch(world.NewGroup({0, 1, 2}, is_odd ? other : GetParam()),
                    absl::StrCat("on backend ", GetParam()), absl::StrCat("on backend ", other));
    // Another spelling is the same backend.
    const std::string pairs = absl::StrCat("CPU:", GetParam(), ", cuda:", GetParam());
    SYNCLINE_RETURN_IF_ERROR(world.NewGroup({0, 1, 2}, is_odd ? pairs : GetParam()).status());
    expect_mismatch(world.NewLocalGroup(is_odd ? Ranks{0, 1, 2} : Ranks{1, 0, 2}),
                    "ranks [0,1,2] on", "ranks [1,0,2] on");
    // Those that are in no list are not waited for, and wait for nobody.
    if (world.rank() == 2) {
      SYNCLINE_ASSIGN_OR_RETURN(Group none, world.NewGroup({0, 1}));
      EXPECT_TRUE_OR_RETURN(none == nullptr);
    } else {
      expect_mismatch(world.NewGroup(is_odd ? Ranks{0, 1} : Ranks{1, 0}), "rank 0 says ranks [1,0]",
                      "rank 1 says ranks [0,1]");
    }
    SYNCLINE_ASSIGN_OR_RETURN(Group all, world.NewGroup({2, 0, 1}));  // The world goes on.
    return Holds(*all, {2, 0, 1});
  });
}

TEST_P(SubgroupsTest, AMemberThatDoesNotMakeTheGroupIsNamed) {
  Countdown are_there(2);
  RunWorld(3, [&](World& world) -> absl::Status {
    if (world.rank() == 1) return absl::OkStatus();
    are_there.StepAndWait();
    absl::Status status = world.NewGroup({0, 1, 2}, {}, absl::Seconds(1)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr("new_group #1: rank 1 of 0, 1, 2 did not come within"));
    EXPECT_THAT(RanksOf(status), ElementsAre(1));
    return absl::OkStatus();
  });
}

TEST_P(SubgroupsTest, SurvivorsShrinkABrokenGroupAndGoOn) {
  RunWorld(4, [](World& world) -> absl::Status {
    if (world.rank() == 1) {
      world.group()->Abort("it is lost");
      return absl::OkStatus();
    }
    std::vector<int32_t> x = {1};
    EXPECT_TRUE_OR_RETURN(!world.group()->AllReduce(Tensor::Of(x)).ok());
    SYNCLINE_ASSIGN_OR_RETURN(Group three, Shrink(*world.group(), {1}, absl::Seconds(30)));
    EXPECT_TRUE_OR_RETURN(three->rank() == (world.rank() == 0 ? 0 : world.rank() - 1));
    EXPECT_TRUE_OR_RETURN(three->timeout() == world.group()->timeout());
    SYNCLINE_RETURN_IF_ERROR(Holds(*three, {0, 2, 3}));
    // The last of them goes as well: the group that is left is shrunk, or the first one again.
    if (world.rank() == 3) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(Group two, Shrink(*three, {2}));
    SYNCLINE_RETURN_IF_ERROR(Holds(*two, {0, 2}));
    SYNCLINE_ASSIGN_OR_RETURN(Group again, Shrink(*world.group(), {3, 1}));
    SYNCLINE_RETURN_IF_ERROR(Holds(*again, {0, 2}));
    EXPECT_TRUE_OR_RETURN(again->name() != three->name());
    return two->Barrier();
  });
}

TEST_P(SubgroupsTest, AWholeGroupIsAbortedWhenItIsShrunk) {
  RunWorld(3, [](World& world) -> absl::Status {
    if (world.rank() == 0) {  // Knows nothing of it, and must not wait for ever.
      std::vector<int32_t> x = {1};
      absl::Status status = world.group()->AllReduce(Tensor::Of(x));
      EXPECT_TRUE_OR_RETURN(KindOf(status) != ErrorKind::kTimeout);
      return absl::OkStatus();
    }
    SYNCLINE_ASSIGN_OR_RETURN(Group pair, Shrink(*world.group(), {0}));
    EXPECT_TRUE_OR_RETURN(!world.group()->status().ok());
    EXPECT_TRUE_OR_RETURN(!Split(*world.group(), {{1}}).ok());
    return Holds(*pair, {1, 2});
  });
}

class ArgumentsTest : public SubgroupsTest {};

INSTANTIATE_TEST_SUITE_P(Backends, ArgumentsTest, ::testing::Values("local"),
                         [](const auto& info) { return info.param; });

TEST_P(ArgumentsTest, ListsThatCannotBeGroupsAreRefused) {
  RunWorld(2, [](World& world) -> absl::Status {
    ProcessGroup& group = *world.group();
    auto refused = [](const absl::Status& status, const char* text) {
      EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
      EXPECT_THAT(Message(status), HasSubstr(text));
    };
    refused(Split(group, {{0, 1}, {1}}).status(), "rank 1 is listed twice");
    refused(Split(group, {{0, 2}}).status(), "rank 2 is not in group 'default' of 2");
    refused(Split(group, {{0}, {-1}}).status(), "rank -1");
    refused(Split(group, {{0}, {}}).status(), "at least one rank");
    refused(Split(group, {{0}}, absl::ZeroDuration()).status(), "timeout must be positive");
    refused(Shrink(group, {world.rank()}).status(), "excludes itself");
    refused(Shrink(group, {5}).status(), "rank 5 is not in group 'default' of 2");
    refused(Shrink(group, {1 - world.rank(), 1 - world.rank()}).status(), "listed twice");
    refused(world.NewLocalGroup({0, 2}).status(), "rank 2 is not in the world");
    EXPECT_TRUE(group.status().ok());
    return Split(group, {{0, 1}}).status();  // What was refused has not made the ranks differ.
  });
}

TEST_P(ArgumentsTest, RanksThatSplitDifferentlyAreAMismatchOnAll) {
  RunWorld(3, [](World& world) -> absl::Status {
    const bool is_odd = world.rank() == 1;
    absl::Status status =
        Split(*world.group(), {is_odd ? std::vector<int>{0, 2} : std::vector<int>{2, 0}}).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("[[0,2]]"), HasSubstr("[[2,0]]"), HasSubstr("rank 1 says")));
    EXPECT_THAT(RanksOf(status), AllOf(SizeIs(2), Contains(1)));
    SYNCLINE_RETURN_IF_ERROR(world.group()->Barrier());  // It is whole.
    SYNCLINE_ASSIGN_OR_RETURN(Group all, Split(*world.group(), {{0, 1, 2}}));
    return Holds(*all, {0, 1, 2});
  });
}

TEST_P(ArgumentsTest, SurvivorsThatExcludeDifferentRanksAreAMismatchOnAll) {
  RunWorld(3, [](World& world) -> absl::Status {
    if (world.rank() == 2) return absl::OkStatus();
    const std::vector<int> excluded = world.rank() == 0 ? std::vector<int>{2} : std::vector<int>{};
    absl::Status status = Shrink(*world.group(), excluded).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status),
                AllOf(HasSubstr("rank 0 says without [2]"), HasSubstr("rank 1 says without []")));
    EXPECT_THAT(RanksOf(status), ElementsAre(0, 1));
    // They may try again, with equal sets.
    SYNCLINE_ASSIGN_OR_RETURN(Group pair, Shrink(*world.group(), {2}));
    return Holds(*pair, {0, 1});
  });
}

TEST_P(ArgumentsTest, ASurvivorThatDoesNotComeIsNamedAndMayComeLater) {
  auto late = std::make_shared<HashStore>();
  RunWorld(4, [&](World& world) -> absl::Status {
    if (world.rank() == 3) return absl::OkStatus();
    if (world.rank() == 2) {
      SYNCLINE_RETURN_IF_ERROR(late->Wait({"0", "1"}, absl::Seconds(60)));
    } else {
      SYNCLINE_RETURN_IF_ERROR(late->Set(absl::StrCat("begins/", world.rank()), ""));
      SYNCLINE_RETURN_IF_ERROR(late->Wait({"begins/0", "begins/1"}, absl::Seconds(60)));
      absl::Status status = Shrink(*world.group(), {3}, absl::Seconds(1)).status();
      EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
      EXPECT_THAT(Message(status), AllOf(HasSubstr("rank 2 of 0, 1, 2 did not come within 1s"),
                                         HasSubstr(absl::StrCat("pid ", getpid()))));
      EXPECT_THAT(RanksOf(status), ElementsAre(2));
      SYNCLINE_RETURN_IF_ERROR(late->Set(absl::StrCat(world.rank()), ""));
    }
    SYNCLINE_ASSIGN_OR_RETURN(Group three, Shrink(*world.group(), {3}));
    return Holds(*three, {0, 1, 2});
  });
}

TEST_P(ArgumentsTest, ARankThatDoesNotSplitIsNamed) {
  RunWorld(2, [](World& world) -> absl::Status {
    if (world.rank() == 1) return absl::OkStatus();
    absl::Status status = Split(*world.group(), {{0, 1}}, absl::Milliseconds(300)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr("split of group 'default': rank 1 of 0, 1 did not"));
    EXPECT_THAT(RanksOf(status), ElementsAre(1));
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace syncline
