// Barriers that say who is missing, and several threads of a rank at once. See
// process_group_conformance.h.
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "syncline/status.h"
#include "tests/groups/process_group_conformance.h"
#include "tests/support/ranks.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using testing::HasSubstr;

constexpr int kThreads = 4;
constexpr int kRounds = 50;

// Runs `body` on threads of one rank; the first error.
absl::Status OnThreads(int count, const std::function<absl::Status(int thread)>& body) {
  std::vector<absl::Status> outcomes(count);
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back([&, t] { outcomes[t] = body(t); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& outcome : outcomes) SYNCLINE_RETURN_IF_ERROR(outcome);
  return absl::OkStatus();
}

// To the next rank and from the previous one, at once. Adds what was sent to `sent`, for Await: the
// next rank's thread may take it only after a collective for which this rank's threads are needed.
absl::Status PassOn(ProcessGroup& group, int tag, int round,
                    std::vector<std::shared_ptr<Work>>& sent) {
  const int rank = RankOf(group), size = static_cast<int>(group.size());
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const Tensor out = Bytes(DType::kInt32, 1000, 100 * rank + 10 * round + tag);
  const Tensor in = Tensor::Zeros(DType::kInt32, {1000});
  SYNCLINE_ASSIGN_OR_RETURN(sent.emplace_back(), group.SendAsync(out, next, tag));
  SYNCLINE_RETURN_IF_ERROR(group.Recv(in, previous, tag).status());
  const Tensor want = Bytes(DType::kInt32, 1000, 100 * previous + 10 * round + tag);
  return Expect(SameBytes(in, want), absl::StrCat("message ", round, ", tag ", tag), group);
}

absl::Status Await(const std::vector<std::shared_ptr<Work>>& works) {
  for (const std::shared_ptr<Work>& work : works) {
    SYNCLINE_RETURN_IF_ERROR(work->Wait(kGroupTimeout));
  }
  return absl::OkStatus();
}

// The same on every thread, since it is open which threads of different ranks meet.
absl::Status ReduceAndBroadcast(ProcessGroup& group) {
  const Tensor tensor = Numbers(DType::kFloat32, 1000, RankOf(group));
  SYNCLINE_RETURN_IF_ERROR(group.AllReduce(tensor));
  return CheckReduced(tensor, ReduceOp::kSum, Upto(static_cast<int>(group.size())));
}

}  // namespace

TEST_P(GroupConformance, ThreadsOfOneRankUseTheGroupAtOnce) {
  Run([](ProcessGroup& group) {
    return OnThreads(kThreads, [&](int thread) -> absl::Status {
      std::vector<std::shared_ptr<Work>> sent;
      for (int round = 0; round < kRounds; ++round) {
        SYNCLINE_RETURN_IF_ERROR(ReduceAndBroadcast(group));
        if (size() > 1) SYNCLINE_RETURN_IF_ERROR(PassOn(group, thread, round, sent));
      }
      return Await(sent);
    });
  });
}

TEST_P(GroupConformance, ThreadsThatStartAndThreadsThatWaitMixFreely) {
  Run([](ProcessGroup& group) {
    return OnThreads(kThreads, [&](int thread) -> absl::Status {
      std::vector<Tensor> tensors;
      std::vector<std::shared_ptr<Work>> works;
      for (int round = 0; round < kRounds; ++round) {
        if (thread % 2 == 0) {
          SYNCLINE_RETURN_IF_ERROR(ReduceAndBroadcast(group));
          continue;
        }
        tensors.push_back(Numbers(DType::kFloat32, 1000, RankOf(group)));
        SYNCLINE_ASSIGN_OR_RETURN(works.emplace_back(), group.AllReduceAsync(tensors.back()));
      }
      for (size_t i = 0; i < works.size(); ++i) {
        SYNCLINE_RETURN_IF_ERROR(works[i]->Wait(kGroupTimeout));
        SYNCLINE_RETURN_IF_ERROR(CheckReduced(tensors[i], ReduceOp::kSum, Upto(size())));
      }
      return absl::OkStatus();
    });
  });
}

TEST_P(GroupConformance, AMonitoredBarrierHoldsLikeABarrier) {
  std::atomic<int> arrivals{0};
  Run([&](ProcessGroup& group) -> absl::Status {
    for (int round = 1; round <= 10; ++round) {
      ++arrivals;
      SYNCLINE_RETURN_IF_ERROR(group.MonitoredBarrier());
      SYNCLINE_RETURN_IF_ERROR(Expect(arrivals >= round * size(), "left too early", group));
    }
    return absl::OkStatus();
  });
}

TEST_P(GroupConformance, AMonitoredBarrierNamesEveryRankThatIsMissingAlsoToThoseWhoComeLate) {
  for (int present = 1; present < size(); present = 2 * present + 1) {
    // The ranks from `present` on come late.
    std::vector<int> late(size() - present);
    std::iota(late.begin(), late.end(), present);
    const std::string those =
        late.size() < 4 ? absl::StrJoin(late, ", ") : absl::StrCat(present, "-", size() - 1);
    const std::string named = absl::StrCat(late.size() == 1 ? "rank " : "ranks ", those, " of ",
                                           size(), " had not arrived after 1s");
    Countdown are_there(present), failed(present);
    for (const absl::Status& status :
         RunGroup(backend(), size(), [&](ProcessGroup& group) -> absl::Status {
           if (group.rank() < present) {
             are_there.StepAndWait();
           } else {
             failed.Wait();
           }
           const absl::Status outcome = group.MonitoredBarrier(absl::Seconds(1));
           if (group.rank() < present) failed.Step();
           return outcome;
         })) {
      EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    }
  }
}

}  // namespace syncline
