// The part of the suite that is about failures. See backend_conformance.h.
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "store/hash_store.h"
#include "tests/backend_conformance.h"
#include "tests/ranks.h"
#include "tests/values.h"

namespace syncline {
namespace {

using testing::HasSubstr;

// What must happen "at once" may take this much longer on a busy machine.
constexpr absl::Duration kSlack = absl::Milliseconds(1500);

std::string Rank(int rank) { return absl::StrCat("rank ", rank); }

std::string Message(const absl::Status& status) { return std::string(status.message()); }

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

absl::Status Reduce(Backend& backend, const CallContext& context) {
  return backend.AllReduce(Numbers(DType::kFloat32, 1000, 0), ReduceOp::kSum, context);
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

// What all ranks but the last call.
struct Absence {
  const char* name;
  std::function<absl::Status(Backend&, const CallContext&)> call;
};

// What rank 0 calls while all others call all_reduce of 10 float32, sum.
struct Deviation {
  const char* text;  // How messages quote it.
  std::function<absl::Status(Backend&, const CallContext&)> call;
};

struct Elements {
  DType dtype;
  int64_t count;
};

std::string Describe(const Elements& elements) {
  return absl::StrCat(Name(elements.dtype), ", ", elements.count,
                      elements.count == 1 ? " element" : " elements");
}

// A send from rank 0 to rank 1 that does not fit the recv.
struct Misfit {
  const char* name;
  Elements sent, received;
};

}  // namespace

TEST_P(BackendConformance, ARankThatNeverJoinsIsNamed) {
  if (size() == 1) return;
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(
      size() - 1, [&](int rank) { return Make(store, rank, absl::Milliseconds(300)).status(); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
    EXPECT_THAT(Message(status), HasSubstr(Rank(size() - 1)));
  }
}

TEST_P(BackendConformance, ARankThatDoesNotComeIsNamedAndLaterCallsFailAtOnce) {
  if (size() == 1) return;
  const absl::Duration timeout = absl::Milliseconds(300);
  const std::vector<Absence> absences = {
      {"all_reduce", &Reduce},
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
      EXPECT_EQ(Reduce(*backend, Within(kPatience, 8)), status);
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
    const absl::Status status = Reduce(*backend, Within(kPatience, 1));
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
      const absl::Status status =
          backend->Recv(Tensor::Zeros(DType::kInt8, {5}), (rank + 1) % size(), Within(kPatience));
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
    EXPECT_THAT(Message(Reduce(*backend, Within(kPatience))), HasSubstr("the disk is full"));
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
    const absl::Status status = Reduce(*backend, Within(kPatience));
    EXPECT_THAT(Message(status), HasSubstr("first"));
  });
}

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
      const absl::Status status = rank == 0 ? deviation.call(*backend, context)
                                            : backend->AllReduce(Numbers(DType::kFloat32, 10, rank),
                                                                 ReduceOp::kSum, context);
      EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("rank 0 called ", deviation.text)));
      EXPECT_THAT(Message(status),
                  HasSubstr("rank 1 called all_reduce #5 (float32, 10 elements, sum)"));
      EXPECT_EQ(backend->Barrier(Within(kPatience, 6)), status);
    });
  }
}

TEST_P(BackendConformance, AMessageOfAnotherTypeOrSizeIsAMismatchOnBothSides) {
  if (size() == 1) return;
  const std::vector<Misfit> misfits = {
      {"longer", {DType::kInt16, 11}, {DType::kInt16, 10}},
      {"shorter", {DType::kInt16, 10}, {DType::kInt16, 11}},
      {"longer by far", {DType::kFloat64, 1 << 20}, {DType::kFloat64, 1}},
      {"shorter by far", {DType::kFloat64, 1}, {DType::kFloat64, 1 << 20}},
      {"another type of equal size", {DType::kFloat32, 10}, {DType::kInt32, 10}},
      {"another type with equal bytes", {DType::kFloat32, 10}, {DType::kFloat64, 5}},
      {"empty", {DType::kInt8, 0}, {DType::kInt8, 1}},
      {"not empty", {DType::kInt8, 1}, {DType::kInt8, 0}},
  };
  for (const Misfit& misfit : misfits) {
    SCOPED_TRACE(misfit.name);
    Countdown made(size());  // A group that breaks before may be one that a rank cannot join.
    Run([&](std::shared_ptr<Backend>& backend, int rank) {
      made.Step();
      made.Wait();
      if (rank > 1) return;
      const Elements& own = rank == 0 ? misfit.sent : misfit.received;
      const Tensor tensor = Bytes(own.dtype, own.count, rank);
      const CallContext context = Within(kPatience, 3, 7);
      const absl::Status status =
          rank == 0 ? backend->Send(tensor, 1, context) : backend->Recv(tensor, 0, context);
      EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("rank 0 called send #3 to rank 1 (",
                                                          Describe(misfit.sent), ", tag 7)")));
      EXPECT_THAT(Message(status), HasSubstr(absl::StrCat("rank 1 called recv #3 from rank 0 (",
                                                          Describe(misfit.received), ", tag 7)")));
      EXPECT_TRUE(SameBytes(tensor, Bytes(own.dtype, own.count, rank)));  // Nothing has moved.
      EXPECT_EQ(backend->Barrier(Within(kPatience, 4)), status);
    });
  }
}

}  // namespace syncline
