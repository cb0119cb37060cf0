#include "tests/backend_conformance.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "store/hash_store.h"
#include "tests/ranks.h"
#include "tests/values.h"

namespace syncline {
namespace {

using testing::HasSubstr;

// Numbers of elements to try.
std::vector<int64_t> Counts(DType dtype) {
  // The large one for some types, of different sizes, only: it is where the time goes.
  const bool large = dtype == DType::kInt8 || dtype == DType::kBFloat16 ||
                     dtype == DType::kFloat32 || dtype == DType::kInt64;
  return large ? std::vector<int64_t>{0, 1, 7, 1000, 100003} : std::vector<int64_t>{0, 1, 7, 1000};
}

constexpr absl::Duration kPatience = absl::Seconds(60);  // For what must happen.

// What must happen "at once" may take this much longer on a busy machine.
constexpr absl::Duration kSlack = absl::Milliseconds(1500);

CallContext Within(absl::Duration timeout, uint64_t sequence = 0, int tag = 0) {
  return {sequence, Deadline(timeout), tag};
}

std::string Rank(int rank) { return absl::StrCat("rank ", rank); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

absl::StatusOr<std::shared_ptr<Backend>> Make(const std::string& name,
                                              std::shared_ptr<Store> store, int rank, int size,
                                              absl::Duration timeout = kPatience) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(timeout);
  return BackendRegistry::Make(name, config);
}

// Opens when `steps` steps have been made.
class Countdown {
 public:
  explicit Countdown(int steps) : steps_(steps) {}

  void Step() {
    absl::MutexLock lock(&mutex_);
    --steps_;
  }
  void Wait() {
    absl::MutexLock lock(&mutex_);
    auto open = [this] { return steps_ == 0; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&open), kPatience));
  }

 private:
  absl::Mutex mutex_;
  int steps_;
};

absl::Status ReduceNothing(Backend& backend, const CallContext& context) {
  const Tensor tensor = Numbers(DType::kFloat32, 1000, 0);
  return backend.AllReduce(tensor, ReduceOp::kSum, context);
}

}  // namespace

void BackendConformance::Run(const Body& body) {
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Make(Case().name, store, rank, size()));
    body(backend, rank);
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) ExpectOk(status);
}

std::string CaseName(const testing::TestParamInfo<std::tuple<BackendCase, int>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param));
}

TEST_P(BackendConformance, TheNameIsTheRegisteredOne) {
  Run([](std::shared_ptr<Backend>& backend, int) { EXPECT_EQ(backend->name(), Case().name); });
}

TEST_P(BackendConformance, BroadcastCopiesTheTensorOfEveryRoot) {
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    uint64_t sequence = 0;
    for (DType dtype : backend->capabilities().move_dtypes) {
      for (int64_t count : Counts(dtype)) {
        for (int root = 0; root < size(); ++root) {
          const Tensor tensor = Bytes(dtype, count, rank);
          ExpectOk(backend->Broadcast(tensor, root, Within(kPatience, sequence++)));
          EXPECT_TRUE(SameBytes(tensor, Bytes(dtype, count, root)))
              << tensor.ToString() << " from " << root << " on " << rank;
        }
      }
    }
  });
}

TEST_P(BackendConformance, AllReduceIsRightAndBitwiseEqualOnAllRanks) {
  std::vector<Tensor> results(size());
  absl::Mutex mutex;
  int waiting = 0, round = 0;
  // Calls `check` once when all ranks have come, and lets none go on before.
  auto gather = [&](int rank, const Tensor& tensor, const char* op) {
    absl::MutexLock lock(&mutex);
    results[rank] = tensor;
    const int mine = round;
    if (++waiting == size()) {
      for (const Tensor& result : results) {
        EXPECT_TRUE(SameBytes(results[0], result)) << op << " of " << tensor.ToString();
      }
      waiting = 0;
      ++round;
    }
    auto checked = [&] { return round != mine; };
    EXPECT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&checked), kPatience));
  };
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    uint64_t sequence = 0;
    for (DType dtype : backend->capabilities().reduce_dtypes) {
      for (ReduceOp op : AllReduceOps()) {
        if (!CheckReduction(dtype, op).ok()) continue;
        for (int64_t count : Counts(dtype)) {
          const Tensor tensor = Numbers(dtype, count, rank);
          ExpectOk(backend->AllReduce(tensor, op, Within(kPatience, sequence++)));
          // The bytes are compared on all ranks, so one of them is enough to check.
          if (rank == 0) ExpectOk(CheckReduced(tensor, op, size()));
          gather(rank, tensor, Name(op).data());
        }
      }
    }
  });
}

TEST_P(BackendConformance, AllGatherCopiesEveryInputToEveryRank) {
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    uint64_t sequence = 0;
    for (DType dtype : backend->capabilities().move_dtypes) {
      for (int64_t count : Counts(dtype)) {
        for (bool in_place : {false, true}) {
          std::vector<Tensor> outputs;
          for (int r = 0; r < size(); ++r) outputs.push_back(Tensor::Zeros(dtype, {count}));
          const Tensor input = Bytes(dtype, count, rank);
          if (in_place) outputs[rank] = input;
          ExpectOk(backend->AllGather(outputs, input, Within(kPatience, sequence++)));
          for (int r = 0; r < size(); ++r) {
            EXPECT_TRUE(SameBytes(outputs[r], Bytes(dtype, count, r)))
                << outputs[r].ToString() << " of " << r << " on " << rank;
          }
        }
      }
    }
  });
}

TEST_P(BackendConformance, NoRankLeavesABarrierBeforeTheLastHasCome) {
  std::atomic<int> arrivals{0};
  Run([&](std::shared_ptr<Backend>& backend, int) {
    for (int round = 1; round <= 50; ++round) {
      ++arrivals;
      ExpectOk(backend->Barrier(Within(kPatience, round)));
      EXPECT_GE(arrivals, round * size());
    }
  });
}

TEST_P(BackendConformance, MessagesGoRoundARing) {
  if (size() == 1) return;
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    const int next = (rank + 1) % size(), previous = (rank + size() - 1) % size();
    uint64_t sequence = 0;
    for (DType dtype : backend->capabilities().move_dtypes) {
      for (int64_t count : Counts(dtype)) {
        const Tensor out = Bytes(dtype, count, rank);
        const Tensor in = Tensor::Zeros(dtype, {count});
        std::thread sender(
            [&] { ExpectOk(backend->Send(out, next, Within(kPatience, sequence))); });
        ExpectOk(backend->Recv(in, previous, Within(kPatience, sequence)));
        sender.join();
        ++sequence;
        EXPECT_TRUE(SameBytes(in, Bytes(dtype, count, previous))) << in.ToString();
      }
    }
  });
}

TEST_P(BackendConformance, MessagesOfOnePairAndTagKeepTheirOrder) {
  if (size() == 1) return;
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    for (int i = 0; i < 30; ++i) {
      const Tensor tensor = Bytes(DType::kInt32, 100, rank == 0 ? i : -1);
      if (rank == 0) ExpectOk(backend->Send(tensor, 1, Within(kPatience, i, 5)));
      if (rank != 1) continue;
      ExpectOk(backend->Recv(tensor, 0, Within(kPatience, i, 5)));
      EXPECT_TRUE(SameBytes(tensor, Bytes(DType::kInt32, 100, i))) << i;
    }
  });
}

TEST_P(BackendConformance, TagsAreKeptApart) {
  if (size() == 1) return;
  constexpr int kTags[] = {0, 1, 2147483647};
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    if (rank == 0) {
      std::vector<std::thread> senders;
      for (int tag : kTags) {
        senders.emplace_back([&backend, tag] {
          ExpectOk(
              backend->Send(Bytes(DType::kInt64, 100, tag % 10), 1, Within(kPatience, 0, tag)));
        });
      }
      for (std::thread& sender : senders) sender.join();
    }
    if (rank != 1) return;
    for (int i : {2, 0, 1}) {
      const Tensor tensor = Tensor::Zeros(DType::kInt64, {100});
      ExpectOk(backend->Recv(tensor, 0, Within(kPatience, 0, kTags[i])));
      EXPECT_TRUE(SameBytes(tensor, Bytes(DType::kInt64, 100, kTags[i] % 10))) << kTags[i];
    }
  });
}

TEST_P(BackendConformance, BothDirectionsAndACollectiveRunAtOnce) {
  if (size() == 1) return;
  constexpr int64_t kElements = 1 << 20;  // 4 MiB
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    std::vector<std::thread> threads;
    const int peer = rank ^ 1;
    const Tensor out = Bytes(DType::kInt32, kElements, rank);
    const Tensor in = Tensor::Zeros(DType::kInt32, {kElements});
    if (peer < size()) {
      threads.emplace_back([&] { ExpectOk(backend->Send(out, peer, Within(kPatience))); });
      threads.emplace_back([&] { ExpectOk(backend->Recv(in, peer, Within(kPatience))); });
    }
    for (int i = 0; i < 5; ++i) {
      const Tensor tensor = Numbers(DType::kFloat32, kElements / 4, rank);
      ExpectOk(backend->AllReduce(tensor, ReduceOp::kSum, Within(kPatience, i)));
      if (rank == 0) ExpectOk(CheckReduced(tensor, ReduceOp::kSum, size()));
    }
    for (std::thread& thread : threads) thread.join();
    if (peer < size()) {
      EXPECT_TRUE(SameBytes(in, Bytes(DType::kInt32, kElements, peer)));
    }
  });
}

TEST_P(BackendConformance, ARankThatNeverJoinsIsNamed) {
  if (size() == 1) return;
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(size() - 1, [&](int rank) {
    return Make(Case().name, store, rank, size(), absl::Milliseconds(300)).status();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
  }
}

// The last rank does not make the call that all others make.
struct Absence {
  const char* name;
  std::function<absl::Status(Backend&, const CallContext&)> call;
};

TEST_P(BackendConformance, ARankThatDoesNotComeIsNamedAndLaterCallsFailAtOnce) {
  if (size() == 1) return;
  const absl::Duration timeout = absl::Milliseconds(300);
  const std::vector<Absence> absences = {
      {"all_reduce", &ReduceNothing},
      {"barrier", [](Backend& b, const CallContext& context) { return b.Barrier(context); }},
      {"recv",
       [](Backend& b, const CallContext& context) {
         return b.Recv(Tensor::Zeros(DType::kInt8, {5}), size() - 1, context);
       }},
  };
  for (const Absence& absence : absences) {
    SCOPED_TRACE(absence.name);
    Countdown failed(size() - 1);
    Run([&](std::shared_ptr<Backend>& backend, int rank) {
      if (rank == size() - 1) return failed.Wait();
      const absl::Time start = absl::Now();
      const absl::Status status = absence.call(*backend, Within(timeout, 7));
      EXPECT_LT(absl::Now() - start, timeout + kSlack);
      EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat(absence.name, " #7")));
      EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));

      const absl::Time again = absl::Now();
      EXPECT_EQ(ReduceNothing(*backend, Within(kPatience, 8)), status);
      EXPECT_EQ(backend->Send(Tensor::Zeros(DType::kInt8, {5}), 0, Within(kPatience)), status);
      EXPECT_LT(absl::Now() - again, kSlack);
      failed.Step();
    });
  }
}

TEST_P(BackendConformance, ARankThatIsDestroyedFailsTheOthersSoon) {
  if (size() == 1) return;
  Countdown failed(size() - 1);
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    ExpectOk(backend->Barrier(Within(kPatience, 0)));
    if (rank == size() - 1) {
      backend.reset();
      return failed.Wait();
    }
    const absl::Time start = absl::Now();
    const absl::Status status = ReduceNothing(*backend, Within(kPatience, 1));
    EXPECT_LT(absl::Now() - start, absl::Seconds(2));
    EXPECT_FALSE(status.ok());
    EXPECT_NE(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
    EXPECT_EQ(backend->Barrier(Within(kPatience, 2)), status);
    failed.Step();
  });
}

TEST_P(BackendConformance, ARankThatAbortsInACallFailsEveryRankWithItsCause) {
  Countdown calling(size());
  Countdown failed(size());
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    if (size() == 1) return backend->Abort(BackendError("the disk is full"));
    const bool aborts = rank == size() - 1;
    // Nobody sends: all wait.
    std::thread caller([&] {
      calling.Step();
      const absl::Status status = backend->Recv(Tensor::Zeros(DType::kInt8, {5}),
                                                (rank + 1) % size(), Within(kPatience));
      EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
      EXPECT_THAT(Message(status), HasSubstr("the disk is full"));
      if (!aborts) {
        EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
      }
      failed.Step();
    });
    calling.Wait();
    const absl::Time start = absl::Now();
    if (aborts) backend->Abort(BackendError("the disk is full"));
    caller.join();
    EXPECT_LT(absl::Now() - start, absl::Seconds(3));
    failed.Wait();
    EXPECT_THAT(Message(ReduceNothing(*backend, Within(kPatience))),
                HasSubstr("the disk is full"));
  });
}

TEST_P(BackendConformance, ARankThatHasFinishedMayGoWhileOthersStillTalk) {
  if (size() < 3) return;
  constexpr int64_t kElements = 1 << 20;  // 4 MiB
  absl::Notification gone;
  Run([&](std::shared_ptr<Backend>& backend, int rank) {
    ExpectOk(backend->Barrier(Within(kPatience, 0)));
    if (rank == size() - 1) {
      backend->Abort(BackendError("the group is closed"));
      backend.reset();
      return gone.Notify();
    }
    if (rank > 1) return;
    for (int i = 0; i < 10; ++i) {
      const Tensor tensor = Bytes(DType::kInt32, kElements, rank == 0 ? i : -1);
      if (i == 5) {
        EXPECT_TRUE(gone.WaitForNotificationWithTimeout(kPatience));
      }
      ExpectOk(rank == 0 ? backend->Send(tensor, 1, Within(kPatience, i))
                         : backend->Recv(tensor, 0, Within(kPatience, i)));
      if (rank == 1) {
        EXPECT_TRUE(SameBytes(tensor, Bytes(DType::kInt32, kElements, i)));
      }
    }
  });
}

TEST_P(BackendConformance, AbortIsIdempotentAndTheFirstCauseStays) {
  Run([](std::shared_ptr<Backend>& backend, int) {
    backend->Abort(BackendError("first"));
    backend->Abort(BackendError("second"));
    const absl::Status status = ReduceNothing(*backend, Within(kPatience));
    EXPECT_THAT(Message(status), HasSubstr("first"));
  });
}

// What rank 0 calls while all others call all_reduce of 10 float32, sum.
struct Deviation {
  const char* text;  // How messages quote it.
  std::function<absl::Status(Backend&, const CallContext&)> call;
};

TEST_P(BackendConformance, DifferentCallsAreAMismatchOnEveryRank) {
  if (size() == 1 || Case().mismatches != BackendCase::Mismatches::kDetected) return;
  auto reduce = [](DType dtype, int64_t count, ReduceOp op) {
    return [=](Backend& backend, const CallContext& context) {
      return backend.AllReduce(Numbers(dtype, count, 0), op, context);
    };
  };
  const std::vector<Deviation> deviations = {
      {"all_reduce #5 (float64, 10 elements, sum)", reduce(DType::kFloat64, 10, ReduceOp::kSum)},
      {"all_reduce #5 (float32, 11 elements, sum)", reduce(DType::kFloat32, 11, ReduceOp::kSum)},
      {"all_reduce #5 (float32, 0 elements, sum)", reduce(DType::kFloat32, 0, ReduceOp::kSum)},
      {"all_reduce #5 (float32, 10 elements, max)", reduce(DType::kFloat32, 10, ReduceOp::kMax)},
      {"barrier #5", [](Backend& b, const CallContext& context) { return b.Barrier(context); }},
      {"broadcast #5 (float32, 10 elements, root 1)",
       [](Backend& b, const CallContext& context) {
         return b.Broadcast(Numbers(DType::kFloat32, 10, 0), 1, context);
       }},
  };
  for (const Deviation& deviation : deviations) {
    Run([&](std::shared_ptr<Backend>& backend, int rank) {
      const CallContext context = Within(kPatience, 5);
      const absl::Status status =
          rank == 0 ? deviation.call(*backend, context)
                    : backend->AllReduce(Numbers(DType::kFloat32, 10, rank), ReduceOp::kSum, context);
      EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("rank 0 called ", deviation.text)));
      EXPECT_THAT(Message(status),
                  HasSubstr("rank 1 called all_reduce #5 (float32, 10 elements, sum)"));
      EXPECT_EQ(backend->Barrier(Within(kPatience, 6)), status);
    });
  }
}

TEST_P(BackendConformance, AMessageOfAnotherSizeIsAMismatchOnBothSides) {
  if (size() == 1 || Case().mismatches != BackendCase::Mismatches::kDetected) return;
  Run([](std::shared_ptr<Backend>& backend, int rank) {
    if (rank > 1) return;
    const Tensor tensor = Tensor::Zeros(DType::kInt16, {10 + rank});
    const absl::Status status = rank == 0 ? backend->Send(tensor, 1, Within(kPatience))
                                          : backend->Recv(tensor, 0, Within(kPatience));
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(Message(status), HasSubstr("send #0 to rank 1 (int16, 10 elements, tag 0)"));
    EXPECT_THAT(Message(status), HasSubstr("recv #0 from rank 0 (int16, 11 elements, tag 0)"));
  });
}

}  // namespace syncline
