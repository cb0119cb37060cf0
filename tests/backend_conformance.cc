#include "tests/backend_conformance.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/status.h"
#include "store/hash_store.h"
#include "tests/ranks.h"
#include "tests/values.h"

namespace syncline {
namespace {

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// Numbers of elements to try.
std::vector<int64_t> Counts(DType dtype) {
  // The large one for some types, of different sizes, only: it is where the time goes.
  const bool large = dtype == DType::kInt8 || dtype == DType::kBFloat16 ||
                     dtype == DType::kFloat32 || dtype == DType::kInt64;
  return large ? std::vector<int64_t>{0, 1, 7, 1000, 100003} : std::vector<int64_t>{0, 1, 7, 1000};
}

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> BackendConformance::Make(std::shared_ptr<Store> store,
                                                                  int rank,
                                                                  absl::Duration timeout) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size();
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(timeout);
  return BackendRegistry::Make(Case().name, config);
}

void BackendConformance::Run(const Body& body) {
  auto store = std::make_shared<HashStore>();
  const auto statuses = RunRanks(size(), [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(auto backend, Make(store, rank));
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

}  // namespace syncline
