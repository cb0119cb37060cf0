// Ranks on several hosts go on without one that was killed: Shrink, over backends auto and tcp.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/error_origin.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"
#include "syncline/tensor.h"
#include "syncline/world.h"
#include "tests/backends/auto_workers.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

std::string RunningKey(int rank) { return absl::StrCat("running ", rank); }

// Each rank contributes the number that it has in the world, so the sum tells who took part. Of few
// and of many bytes, which go different ways.
absl::Status ExpectSum(ProcessGroup& group, int own, int64_t expected) {
  for (const size_t count : {1, 300'000}) {
    std::vector<int64_t> numbers(count, own);
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(Tensor::Of(numbers)));
    if (numbers != std::vector<int64_t>(count, expected)) {
      return BackendError(absl::StrCat("the sum is ", numbers.front(), ", not ", expected));
    }
  }
  return absl::OkStatus();
}

// Every operation of the others, of which ranks that are no leaders and those of other hosts give.
absl::Status UseAll(ProcessGroup& group) {
  const int last = group.size() - 1;
  for (int root : {0, last}) {
    std::vector<int32_t> word = {group.rank() == root ? 77 : 0};
    SYNCLINE_RETURN_IF_ERROR(group.Broadcast(Tensor::Of(word), root));
    if (word[0] != 77) return BackendError("the broadcast has another rank's data");
    word = {1};
    SYNCLINE_RETURN_IF_ERROR(group.Reduce(Tensor::Of(word), root));
    if (group.rank() == root && word[0] != group.size()) return BackendError("a wrong sum");
  }
  if (last == 0) return group.Barrier();  // Alone.
  if (group.rank() == 0) {
    std::vector<int32_t> word = {0};
    SYNCLINE_RETURN_IF_ERROR(group.Recv(Tensor::Of(word), last).status());
    if (word[0] != last) return BackendError("a message of another rank");
  } else if (group.rank() == last) {
    std::vector<int32_t> word = {last};
    SYNCLINE_RETURN_IF_ERROR(group.Send(Tensor::Of(word), 0));
  }
  return group.Barrier();
}

// What ranks do until `victim` is killed; it returns the others' error.
absl::Status CallUntilItIsKilled(const std::string& call, ProcessGroup& group, int victim, int own,
                                 int64_t sum) {
  const bool is_victim = group.rank() == victim;
  std::vector<int32_t> words(call == "send" ? 4 << 20 : 1);
  if (call == "send" || call == "recv") {
    if (is_victim) pause();
    const Tensor tensor = Tensor::Of(words);
    return call == "send" ? group.Send(tensor, victim) : group.Recv(tensor, victim).status();
  }
  absl::Status status;
  while (status.ok()) status = call == "barrier" ? group.Barrier() : ExpectSum(group, own, sum);
  return status;
}

// argument: the backend, what is called, and the victims in the order in which they are killed.
absl::Status GoOn(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  setenv("SYNCLINE_HOST_ADDRESS", worker.address.c_str(), 1);
  WorldOptions options;
  options.backend = words[0];
  options.store = worker.store;
  options.rank = worker.rank;
  options.size = worker.size;
  options.timeout = kTimeout;
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<World> world, World::Init(options));
  std::shared_ptr<ProcessGroup> group = world->group();
  int64_t sum = static_cast<int64_t>(worker.size) * (worker.size - 1) / 2;
  std::vector<int> members(worker.size);  // Of `group`: their ranks in the world.
  for (int rank = 0; rank < worker.size; ++rank) members[rank] = rank;
  for (size_t next = 2; next < words.size(); ++next) {
    int victim = -1;
    if (!absl::SimpleAtoi(words[next], &victim)) return BackendError("no victim");
    SYNCLINE_RETURN_IF_ERROR(UseAll(*group));
    SYNCLINE_RETURN_IF_ERROR(
        worker.store->Set(absl::StrCat(RunningKey(worker.rank), " ", next), ""));
    const int in_group =
        static_cast<int>(std::find(members.begin(), members.end(), victim) - members.begin());
    const absl::Status status = CallUntilItIsKilled(words[1], *group, in_group, worker.rank, sum);
    if (RanksOf(status) != std::vector<int>{in_group}) return status;
    SYNCLINE_ASSIGN_OR_RETURN(group, Shrink(*group, {in_group}));
    members.erase(members.begin() + in_group);
    sum -= victim;
    if (group->size() != static_cast<int>(members.size())) return BackendError("a wrong size");
    SYNCLINE_RETURN_IF_ERROR(ExpectSum(*group, worker.rank, sum));
  }
  SYNCLINE_RETURN_IF_ERROR(UseAll(*group));
  world->Close();
  return absl::OkStatus();
}

void RunGoOn(const Worker& worker) { std::printf("%s\n", GoOn(worker).ToString().c_str()); }

struct Case {
  std::string call;
  std::vector<int> hosts;
  std::vector<int> victims;
};

class AutoShrinkTest : public testing::TestWithParam<std::tuple<std::string, Case>> {};

std::string NameOf(const testing::TestParamInfo<AutoShrinkTest::ParamType>& info) {
  const Case& it = std::get<1>(info.param);
  return absl::StrCat(std::get<0>(info.param), "_", it.call, "_hosts_", absl::StrJoin(it.hosts, ""),
                      "_without_", absl::StrJoin(it.victims, ""));
}

// A rank of a host that keeps others; rank 0, which led its host and all; a host's only rank; one
// after the other, until one host is left; and so of four hosts, whose leaders hear of each other
// through others, until three are left.
INSTANTIATE_TEST_SUITE_P(
    Victims, AutoShrinkTest,
    testing::Combine(testing::Values("auto", "tcp"),
                     testing::Values(Case{"all_reduce", {0, 0, 1, 1}, {3}},
                                     Case{"all_reduce", {0, 0, 1, 1}, {0}},
                                     Case{"all_reduce", {0, 1, 2}, {1}},
                                     Case{"all_reduce", {0, 0, 1, 2}, {2, 0, 3}},
                                     Case{"all_reduce", {0, 0, 1, 1, 2, 3}, {0, 3, 4}})),
    &NameOf);

// Other calls, in which ranks of its host and of another one wait.
INSTANTIATE_TEST_SUITE_P(Calls, AutoShrinkTest,
                         testing::Combine(testing::Values("auto", "tcp"),
                                          testing::Values(Case{"barrier", {0, 0, 1, 1}, {3}},
                                                          Case{"barrier", {0, 0, 1, 2, 2, 3}, {3}},
                                                          Case{"send", {0, 0, 1, 1}, {3}},
                                                          Case{"recv", {0, 0, 1, 1}, {3}})),
                         &NameOf);

TEST_P(AutoShrinkTest, SurvivorsOfAKillGoOnWithoutItsVictim) {
  const auto& [backend, it] = GetParam();
  Workers workers(it.hosts, "go on",
                  absl::StrCat(backend, " ", it.call, " ", absl::StrJoin(it.victims, " ")));
  std::vector<int> alive;
  for (int rank = 0; rank < workers.size(); ++rank) alive.push_back(rank);
  for (size_t next = 0; next < it.victims.size(); ++next) {
    std::vector<std::string> keys;
    for (const int rank : alive) keys.push_back(absl::StrCat(RunningKey(rank), " ", next + 2));
    const absl::Status running = workers.store().Wait(keys, kTimeout);
    EXPECT_TRUE(running.ok()) << running;
    workers.Signal(it.victims[next], SIGKILL);
    alive.erase(std::find(alive.begin(), alive.end(), it.victims[next]));
    if (!running.ok()) break;
  }
  for (const int rank : alive) EXPECT_EQ(workers.Output(rank), "OK\n") << "rank " << rank;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  return syncline::RunTestsOnHosts(argc, argv, {{"go on", &syncline::RunGoOn}});
}
