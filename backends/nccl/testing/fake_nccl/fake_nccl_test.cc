#include "backends/nccl/testing/fake_nccl/fake_nccl.h"

#include <dirent.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "backends/nccl/testing/fake_nccl/elements.h"
#include "backends/nccl/testing/fake_nccl/ranks.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

extern char** environ;

namespace fake_nccl {
namespace {

using namespace syncline::nccl;  // NOLINT: NCCL's names, which are all that this tests.

using ::testing::Each;
using ::testing::HasSubstr;

// An environment variable, until the end.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), 1);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

constexpr NcclDataType kTypes[] = {kNcclInt8,    kNcclUint8,    kNcclInt32,      kNcclUint32,
                                   kNcclInt64,   kNcclUint64,   kNcclFloat16,    kNcclFloat32,
                                   kNcclFloat64, kNcclBfloat16, kNcclFloat8E4M3, kNcclFloat8E5M2};

// Element `i` of what rank `rank` gives: 1 or 2, so that results of 7 ranks have few enough digits
// for all types but the narrowest.
double Input(int rank, size_t i) { return (static_cast<size_t>(rank) * 3 + i) % 5 < 2 ? 2 : 1; }

void Fill(NcclDataType dtype, void* to, size_t count, int rank, size_t from = 0) {
  for (size_t i = 0; i < count; ++i) {
    FromDouble(dtype, Input(rank, from + i), static_cast<char*>(to) + i * SizeOf(dtype));
  }
}

double At(NcclDataType dtype, const void* data, size_t i) {
  return ToDouble(dtype, static_cast<const char*>(data) + i * SizeOf(dtype));
}

// What a plain loop makes of the ranks' inputs.
double Expected(NcclRedOp op, int ranks, size_t i) {
  double result = Input(0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = Input(rank, i);
    if (op == kNcclProd) {
      result *= next;
    } else if (op == kNcclMax) {
      result = std::max(result, next);
    } else if (op == kNcclMin) {
      result = std::min(result, next);
    } else {
      result += next;
    }
  }
  return op == kNcclAvg ? result / ranks : result;
}

// `value` as an element of the type is rounded.
double Rounded(NcclDataType dtype, double value) {
  unsigned char element[8];
  if (dtype <= kNcclUint64) value = std::trunc(value);
  FromDouble(dtype, value, element);
  return ToDouble(dtype, element);
}

class FakeNcclTest : public ::testing::Test {
 protected:
  ~FakeNcclTest() override {
    Control::Get().fail_next(nullptr, kNcclSuccess);
    EXPECT_EQ(Control::Get().live_communicators(), 0);
    EXPECT_EQ(Control::Get().live_registrations(), 0);
    EXPECT_EQ(Control::Get().live_allocations(), 0);
    EXPECT_EQ(CountSegments(), 0);
  }

  // Descriptors and mappings of communicators that this process has.
  static int CountSegments() {
    int count = 0;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      count += line.find("/memfd:fake_nccl") != std::string::npos ? 1 : 0;
    }
    DIR* const folder = opendir("/proc/self/fd");
    while (const dirent* const entry = readdir(folder)) {
      char target[256];
      const std::string path = std::string("/proc/self/fd/") + entry->d_name;
      const ssize_t length = readlink(path.c_str(), target, sizeof target);
      const std::string name(target, length < 0 ? 0 : static_cast<size_t>(length));
      count += name.find("/memfd:fake_nccl") != std::string::npos ? 1 : 0;
    }
    closedir(folder);
    return count;
  }

  // Destroys the communicators, on threads.
  static void Destroy(Ranks& ranks) {
    ranks.Run([](Rank& rank) {
      EXPECT_EQ(Nccl().comm_finalize(rank.comm), kNcclSuccess);
      EXPECT_EQ(Nccl().comm_destroy(rank.comm), kNcclSuccess);
      rank.comm = nullptr;
    });
  }
};

class FakeNcclRanksTest : public FakeNcclTest, public ::testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, FakeNcclRanksTest, ::testing::Values(1, 2, 3, 7));

TEST_P(FakeNcclRanksTest, ReductionsEqualPlainLoops) {
  Ranks ranks(GetParam());
  ranks.Init();
  ranks.Run([](Rank& rank) {
    for (const NcclDataType dtype : kTypes) {
      for (const NcclRedOp op : {kNcclSum, kNcclProd, kNcclMax, kNcclMin, kNcclAvg}) {
        const auto all = static_cast<size_t>(rank.ranks);
        const size_t count = 5;
        const size_t size = SizeOf(dtype);
        const DeviceMemory send(rank.device, count * all * size);
        const DeviceMemory reduced(rank.device, count * all * size);
        const DeviceMemory at_root(rank.device, count * size);
        const DeviceMemory scattered(rank.device, count * size);
        Fill(dtype, send.get(), count * all, rank.rank);
        const int root = rank.ranks - 1;
        ASSERT_EQ(Nccl().all_reduce(send.get(), reduced.get(), count * all, dtype, op, rank.comm,
                                    rank.stream),
                  kNcclSuccess);
        ASSERT_EQ(Nccl().reduce(send.get(), at_root.get(), count, dtype, op, root, rank.comm,
                                rank.stream),
                  kNcclSuccess);
        ASSERT_EQ(Nccl().reduce_scatter(send.get(), scattered.get(), count, dtype, op, rank.comm,
                                        rank.stream),
                  kNcclSuccess);
        ASSERT_TRUE(rank.stream.Synchronize());
        for (size_t i = 0; i < count * all; ++i) {
          const double expected = Rounded(dtype, Expected(op, rank.ranks, i));
          ASSERT_EQ(At(dtype, reduced.get(), i), expected) << dtype << " " << op << " " << i;
          if (i < count && rank.rank == root) {
            ASSERT_EQ(At(dtype, at_root.get(), i), expected) << dtype << " " << op << " " << i;
          }
          if (i / count == static_cast<size_t>(rank.rank)) {
            ASSERT_EQ(At(dtype, scattered.get(), i % count), expected) << dtype << " " << op;
          }
        }
      }
    }
  });
  Destroy(ranks);
}

// Larger than what lies between two ranks, of a number of elements that no number of ranks divides.
TEST_P(FakeNcclRanksTest, LargeBuffersArePassedInParts) {
  constexpr size_t kCount = 50021;
  Ranks ranks(GetParam());
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const DeviceMemory buffer(rank.device, kCount * sizeof(int64_t));
    for (size_t i = 0; i < kCount; ++i) {
      buffer.as<int64_t>()[i] = static_cast<int64_t>(i) * (rank.rank + 1);
    }
    ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), kCount, kNcclInt64, kNcclSum, rank.comm,
                                rank.stream),
              kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    const int64_t factor = rank.ranks * (rank.ranks + 1) / 2;
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(buffer.as<int64_t>()[i], static_cast<int64_t>(i) * factor);
    }
  });
  Destroy(ranks);
}

TEST_P(FakeNcclRanksTest, CopiesEqualPlainLoops) {
  constexpr size_t kCount = 10007;
  Ranks ranks(GetParam());
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const auto all = static_cast<size_t>(rank.ranks);
    const int root = rank.ranks / 2;
    const auto value = [](int from, size_t i) { return static_cast<int32_t>(i) * 10 + from; };
    const DeviceMemory send(rank.device, kCount * all * 4);
    for (size_t i = 0; i < kCount * all; ++i) send.as<int32_t>()[i] = value(rank.rank, i);
    const DeviceMemory copied(rank.device, kCount * 4);
    const DeviceMemory in_place(rank.device, kCount * 4);
    const DeviceMemory gathered(rank.device, kCount * all * 4);
    const DeviceMemory at_root(rank.device, kCount * all * 4);
    const DeviceMemory exchanged(rank.device, kCount * all * 4);
    const DeviceMemory scattered(rank.device, kCount * 4);
    std::memcpy(in_place.get(), send.get(), kCount * 4);
    const auto check = [](NcclResult result) { ASSERT_EQ(result, kNcclSuccess); };
    check(Nccl().broadcast(send.get(), copied.get(), kCount, kNcclInt32, root, rank.comm,
                           rank.stream));
    check(Nccl().bcast(in_place.get(), kCount, kNcclInt32, root, rank.comm, rank.stream));
    check(
        Nccl().all_gather(send.get(), gathered.get(), kCount, kNcclInt32, rank.comm, rank.stream));
    check(
        Nccl().all_to_all(send.get(), exchanged.get(), kCount, kNcclInt32, rank.comm, rank.stream));
    check(
        Nccl().gather(send.get(), at_root.get(), kCount, kNcclInt32, root, rank.comm, rank.stream));
    check(Nccl().scatter(send.get(), scattered.get(), kCount, kNcclInt32, root, rank.comm,
                         rank.stream));
    ASSERT_TRUE(rank.stream.Synchronize());
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(copied.as<int32_t>()[i], value(root, i));
      ASSERT_EQ(in_place.as<int32_t>()[i], value(root, i));
      const size_t own = static_cast<size_t>(rank.rank) * kCount + i;
      ASSERT_EQ(scattered.as<int32_t>()[i], value(root, own));
      for (size_t from = 0; from < all; ++from) {
        const int other = static_cast<int>(from);
        ASSERT_EQ(gathered.as<int32_t>()[from * kCount + i], value(other, i));
        ASSERT_EQ(exchanged.as<int32_t>()[from * kCount + i], value(other, own));
        if (rank.rank == root) {
          ASSERT_EQ(at_root.as<int32_t>()[from * kCount + i], value(other, i));
        }
      }
    }
  });
  Destroy(ranks);
}

TEST_P(FakeNcclRanksTest, PartsInPlace) {
  Ranks ranks(GetParam());
  ranks.Init();
  ranks.Run([](Rank& rank) {
    constexpr size_t kCount = 3;
    const auto all = static_cast<size_t>(rank.ranks);
    const size_t own = static_cast<size_t>(rank.rank) * kCount;
    const DeviceMemory buffer(rank.device, kCount * all * 4);
    for (size_t i = 0; i < kCount; ++i) buffer.as<int32_t>()[own + i] = rank.rank * 10 + 1;
    ASSERT_EQ(Nccl().all_gather(buffer.as<int32_t>() + own, buffer.get(), kCount, kNcclInt32,
                                rank.comm, rank.stream),
              kNcclSuccess);
    ASSERT_EQ(Nccl().reduce_scatter(buffer.get(), buffer.as<int32_t>() + own, kCount, kNcclInt32,
                                    kNcclSum, rank.comm, rank.stream),
              kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    for (size_t i = 0; i < kCount * all; ++i) {
      const auto from = static_cast<int32_t>(i / kCount);
      ASSERT_EQ(buffer.as<int32_t>()[i], (from * 10 + 1) * (from == rank.rank ? rank.ranks : 1));
    }
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, EachRankMultipliesItsOwnInputsByItsOwnScalar) {
  Ranks ranks(3);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    for (const NcclScalarResidence residence : {kNcclScalarHostImmediate, kNcclScalarDevice}) {
      const DeviceMemory buffer(rank.device, 4 * sizeof(float));
      const DeviceMemory on_device(rank.device, sizeof(float));
      for (int i = 0; i < 4; ++i) buffer.as<float>()[i] = static_cast<float>(i);
      float on_host = static_cast<float>(rank.rank) + 0.5f;
      *on_device.as<float>() = on_host;
      NcclRedOp op;
      ASSERT_EQ(Nccl().red_op_create_pre_mul_sum(
                    &op, residence == kNcclScalarDevice ? on_device.get() : &on_host, kNcclFloat32,
                    residence, rank.comm),
                kNcclSuccess);
      on_host = 1000;  // The scalar was read.
      ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 4, kNcclFloat32, op, rank.comm,
                                  rank.stream),
                kNcclSuccess);
      EXPECT_EQ(
          Nccl().all_reduce(buffer.get(), buffer.get(), 4, kNcclInt32, op, rank.comm, rank.stream),
          kNcclInvalidArgument);
      EXPECT_EQ(Nccl().red_op_destroy(op, rank.comm), kNcclSuccess);
      EXPECT_EQ(Nccl().red_op_destroy(op, rank.comm), kNcclInvalidArgument);
      ASSERT_TRUE(rank.stream.Synchronize());
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(buffer.as<float>()[i], 4.5f * static_cast<float>(i));
      }
    }
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, MessagesOfAGroupGoOnTogetherAndInOrder) {
  constexpr size_t kCount = 200000;  // More than rings hold: nothing ends before its peer begins.
  Ranks ranks(3);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    // Two messages to everybody, itself among them, and two from everybody.
    const DeviceMemory send(rank.device, 2 * 3 * kCount);
    const DeviceMemory receive(rank.device, 2 * 3 * kCount);
    const auto part = [](const DeviceMemory& memory, int peer, int which) {
      return memory.as<uint8_t>() + static_cast<size_t>(peer * 2 + which) * kCount;
    };
    for (int peer = 0; peer < 3; ++peer) {
      for (const int which : {0, 1}) {
        std::memset(part(send, peer, which), rank.rank * 10 + peer * 2 + which, kCount);
      }
    }
    ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
    ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
    for (const int which : {0, 1}) {
      for (int peer = 0; peer < 3; ++peer) {
        ASSERT_EQ(
            Nccl().send(part(send, peer, which), kCount, kNcclUint8, peer, rank.comm, rank.stream),
            kNcclSuccess);
      }
    }
    ASSERT_EQ(Nccl().group_end(), kNcclSuccess);
    for (const int which : {0, 1}) {
      for (int peer = 2; peer >= 0; --peer) {
        ASSERT_EQ(Nccl().recv(part(receive, peer, which), kCount, kNcclUint8, peer, rank.comm,
                              rank.stream),
                  kNcclSuccess);
      }
    }
    ASSERT_EQ(Nccl().group_end(), kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    for (int peer = 0; peer < 3; ++peer) {
      for (const int which : {0, 1}) {
        const std::vector<uint8_t> got(part(receive, peer, which),
                                       part(receive, peer, which) + kCount);
        EXPECT_THAT(got, Each(peer * 10 + rank.rank * 2 + which));
      }
    }
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, OneThreadMakesAndUsesSeveralRanksByGroups) {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks);
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
  for (int i = 0; i < kRanks; ++i) {
    const OnDevice scope(i);
    ASSERT_EQ(Nccl().comm_init_rank(&ranks[i].comm, kRanks, id, i), kNcclSuccess);
  }
  ASSERT_EQ(Nccl().group_end(), kNcclSuccess);
  std::vector<std::unique_ptr<DeviceMemory>> buffers;
  ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
  for (int i = 0; i < kRanks; ++i) {
    int rank = -1;
    int device = -1;
    int count = -1;
    EXPECT_EQ(Nccl().comm_user_rank(ranks[i].comm, &rank), kNcclSuccess);
    EXPECT_EQ(Nccl().comm_cu_device(ranks[i].comm, &device), kNcclSuccess);
    EXPECT_EQ(Nccl().comm_count(ranks[i].comm, &count), kNcclSuccess);
    EXPECT_EQ(std::make_tuple(rank, device, count), std::make_tuple(i, i, kRanks));
    buffers.push_back(std::make_unique<DeviceMemory>(i, 4));
    *buffers.back()->as<int32_t>() = i + 1;
    ASSERT_EQ(Nccl().all_reduce(buffers.back()->get(), buffers.back()->get(), 1, kNcclInt32,
                                kNcclSum, ranks[i].comm, ranks[i].stream),
              kNcclSuccess);
  }
  ASSERT_EQ(Nccl().group_end(), kNcclSuccess);
  for (int i = 0; i < kRanks; ++i) {
    ASSERT_TRUE(ranks[i].stream.Synchronize());
    EXPECT_EQ(*buffers[static_cast<size_t>(i)]->as<int32_t>(), 6);
  }
  Destroy(ranks);
}

// A gate in a stream.
class Gate {
 public:
  void HoldUp(const TestStream& stream) {
    stream.Enqueue([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      while (!is_open_) opened_.wait(lock);
    });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

TEST_F(FakeNcclTest, OperationsOnSeveralStreamsKeepTheOrderOfTheirCalls) {
  Ranks ranks(2);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const TestStream other(rank.device);
    const DeviceMemory first(rank.device, 4);
    const DeviceMemory second(rank.device, 4);
    *first.as<int32_t>() = 1;
    *second.as<int32_t>() = 10;
    // The first operation comes late on rank 0, and the second waits for it on both ranks.
    Gate gate;
    if (rank.rank == 0) gate.HoldUp(rank.stream);
    for (const auto& [memory, stream] :
         {std::make_pair(&first, &rank.stream), std::make_pair(&second, &other)}) {
      ASSERT_EQ(Nccl().all_reduce(memory->get(), memory->get(), 1, kNcclInt32, kNcclSum, rank.comm,
                                  *stream),
                kNcclSuccess);
    }
    EXPECT_TRUE(rank.rank != 0 || !other.IsDone());
    gate.Open();
    ASSERT_TRUE(rank.stream.Synchronize());
    ASSERT_TRUE(other.Synchronize());
    EXPECT_EQ(*first.as<int32_t>(), 2);
    EXPECT_EQ(*second.as<int32_t>(), 20);
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, AGroupOnSeveralStreamsBeginsAfterAllAndIsDoneForAll) {
  Ranks ranks(2);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const TestStream other(rank.device);
    const DeviceMemory send(rank.device, 4);
    const DeviceMemory receive(rank.device, 4);
    Gate gate;
    gate.HoldUp(other);
    other.Enqueue([&] { *send.as<int32_t>() = rank.rank + 1; });
    ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
    ASSERT_EQ(Nccl().recv(receive.get(), 1, kNcclInt32, 1 - rank.rank, rank.comm, rank.stream),
              kNcclSuccess);
    ASSERT_EQ(Nccl().send(send.get(), 1, kNcclInt32, 1 - rank.rank, rank.comm, other),
              kNcclSuccess);
    ASSERT_EQ(Nccl().group_end(), kNcclSuccess);
    EXPECT_FALSE(rank.stream.IsDone());
    gate.Open();
    ASSERT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(*receive.as<int32_t>(), 2 - rank.rank);
    ASSERT_TRUE(other.Synchronize());
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, NonBlockingCallsGoOnInAThread) {
  NcclConfig config;
  config.blocking = 0;
  Ranks ranks(2);
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  // Rank 0 alone: it is in progress, and nothing else can be done with it.
  {
    const OnDevice scope(0);
    ASSERT_EQ(Nccl().comm_init_rank_config(&ranks[0].comm, 2, id, 0, &config), kNcclInProgress);
    NcclResult state = kNcclSuccess;
    ASSERT_EQ(Nccl().comm_get_async_error(ranks[0].comm, &state), kNcclSuccess);
    EXPECT_EQ(state, kNcclInProgress);
    const DeviceMemory buffer(0, 4);
    EXPECT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                                ranks[0].stream),
              kNcclInvalidArgument);
  }
  {
    const OnDevice scope(1);
    ASSERT_EQ(Nccl().comm_init_rank_config(&ranks[1].comm, 2, id, 1, &config), kNcclInProgress);
  }
  ranks.Run([](Rank& rank) {
    ASSERT_EQ(AwaitState(rank.comm), kNcclSuccess);
    const DeviceMemory buffer(rank.device, 4);
    *buffer.as<int32_t>() = 4;
    const NcclResult result = Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum,
                                                rank.comm, rank.stream);
    EXPECT_EQ(result, kNcclInProgress);
    ASSERT_EQ(AwaitState(rank.comm), kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(*buffer.as<int32_t>(), 8);
    EXPECT_EQ(Nccl().comm_finalize(rank.comm), kNcclInProgress);
    EXPECT_EQ(AwaitState(rank.comm), kNcclSuccess);
    EXPECT_EQ(Nccl().comm_destroy(rank.comm), kNcclSuccess);
    rank.comm = nullptr;
  });
}

TEST_F(FakeNcclTest, AbortEndsAnInitThatWaitsForOthers) {
  for (const int blocking : {0, 1}) {
    NcclConfig config;
    config.blocking = blocking;
    NcclUniqueId id;
    ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
    NcclComm comm = nullptr;
    std::thread init([&] {
      const OnDevice scope(0);
      EXPECT_EQ(Nccl().comm_init_rank_config(&comm, 2, id, 0, &config),
                blocking == 0 ? kNcclInProgress : kNcclInternalError);
    });
    while (Control::Get().live_communicators() == 0) std::this_thread::yield();
    EXPECT_EQ(Nccl().comm_abort(comm), kNcclSuccess);
    init.join();
  }
}

TEST_F(FakeNcclTest, SplitOrdersRanksByKeyAndLeavesOutWhoHasNoColor) {
  for (const int blocking : {1, 0}) {
    NcclConfig config;
    config.blocking = blocking;
    Ranks ranks(5);
    ranks.Init(config);
    ranks.Run([](Rank& rank) {
      // Ranks 0, 2 and 3, in the reverse order; rank 1 alone; rank 4 not at all.
      const int color = rank.rank == 4 ? kNcclSplitNoColor : rank.rank == 1 ? 7 : 0;
      NcclComm made = reinterpret_cast<NcclComm>(1);
      const NcclResult result = Nccl().comm_split(rank.comm, color, -rank.rank, &made, nullptr);
      ASSERT_TRUE(result == kNcclSuccess || result == kNcclInProgress);
      ASSERT_EQ(AwaitState(rank.comm), kNcclSuccess);
      if (rank.rank == 4) {
        EXPECT_EQ(made, nullptr);
        return;
      }
      ASSERT_EQ(AwaitState(made), kNcclSuccess);
      int place = -1;
      int count = -1;
      EXPECT_EQ(Nccl().comm_user_rank(made, &place), kNcclSuccess);
      EXPECT_EQ(Nccl().comm_count(made, &count), kNcclSuccess);
      EXPECT_EQ(count, rank.rank == 1 ? 1 : 3);
      EXPECT_EQ(place, (std::map<int, int>{{0, 2}, {1, 0}, {2, 1}, {3, 0}})[rank.rank]);
      const DeviceMemory buffer(rank.device, 4);
      *buffer.as<int32_t>() = rank.rank;
      EXPECT_NE(Nccl().bcast(buffer.get(), 1, kNcclInt32, 0, made, rank.stream),
                kNcclInvalidArgument);
      EXPECT_EQ(AwaitState(made), kNcclSuccess);
      EXPECT_TRUE(rank.stream.Synchronize());
      EXPECT_EQ(*buffer.as<int32_t>(), rank.rank == 1 ? 1 : 3);
      EXPECT_EQ(Nccl().comm_destroy(made), kNcclSuccess);
    });
  }
}

TEST_F(FakeNcclTest, SurvivorsShrinkWhileARankIsGone) {
  Ranks ranks(3);
  ranks.Init();
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[1].comm, nullptr)), kNcclSuccess);
  ranks.Run([](Rank& rank) {
    if (rank.rank == 1) return;
    const DeviceMemory buffer(rank.device, 4);
    *buffer.as<int32_t>() = 1;
    // Waits for rank 1, until the shrink ends it.
    ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, rank.comm,
                                rank.stream),
              kNcclSuccess);
    int excluded = 1;
    NcclComm made = nullptr;
    ASSERT_EQ(Nccl().comm_shrink(rank.comm, &excluded, 1, &made, nullptr, kNcclShrinkAbort),
              kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    int place = -1;
    EXPECT_EQ(Nccl().comm_user_rank(made, &place), kNcclSuccess);
    EXPECT_EQ(place, rank.rank / 2);
    *buffer.as<int32_t>() = 5;
    ASSERT_EQ(
        Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, made, rank.stream),
        kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(*buffer.as<int32_t>(), 10);
    EXPECT_EQ(Nccl().comm_destroy(made), kNcclSuccess);
    int own = rank.rank;
    EXPECT_EQ(Nccl().comm_shrink(rank.comm, &own, 1, &made, nullptr, kNcclShrinkDefault),
              kNcclInvalidArgument);
  });
}

TEST_F(FakeNcclTest, RanksGrowByNewOnes) {
  Ranks ranks(3);
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  std::thread second([&] {
    const OnDevice scope(1);
    EXPECT_EQ(Nccl().comm_init_rank(&ranks[1].comm, 2, id, 1), kNcclSuccess);
  });
  {
    const OnDevice scope(0);
    EXPECT_EQ(Nccl().comm_init_rank(&ranks[0].comm, 2, id, 0), kNcclSuccess);
  }
  second.join();
  NcclUniqueId more;
  ASSERT_EQ(Nccl().comm_get_unique_id(ranks[1].comm, &more), kNcclSuccess);
  ranks.Run([&](Rank& rank) {
    NcclComm made = nullptr;
    const bool is_new = rank.rank == 2;
    ASSERT_EQ(Nccl().comm_grow(rank.comm, 3, rank.rank == 0 ? nullptr : &more, is_new ? 2 : -1,
                               &made, nullptr),
              kNcclSuccess);
    const DeviceMemory buffer(rank.device, 4);
    *buffer.as<int32_t>() = rank.rank + 1;
    ASSERT_EQ(
        Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, made, rank.stream),
        kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(*buffer.as<int32_t>(), 6);
    EXPECT_EQ(Nccl().comm_destroy(made), kNcclSuccess);
  });
}

// Enqueues an all-reduce that the other ranks do not take part in, and aborts it.
TEST_F(FakeNcclTest, AbortEndsWhatWaitsForThePeersAndNothingOfThePeers) {
  Ranks ranks(2);
  ranks.Init();
  const DeviceMemory buffer(0, 8);
  const DeviceMemory of_peer(1, 4);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                                ranks[0].stream),
              kNcclSuccess);
  }
  EXPECT_FALSE(ranks[0].stream.IsDone());
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
  NcclResult state = kNcclSuccess;
  EXPECT_EQ(Nccl().comm_get_async_error(ranks[1].comm, &state), kNcclSuccess);
  EXPECT_EQ(state, kNcclSuccess);
  ASSERT_EQ(Nccl().recv(of_peer.get(), 1, kNcclInt32, 0, ranks[1].comm, ranks[1].stream),
            kNcclSuccess);
  EXPECT_FALSE(ranks[1].stream.IsDone());
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[1].comm, nullptr)), kNcclSuccess);
  EXPECT_TRUE(ranks[1].stream.Synchronize());
}

// A message of rank 0 that fits into what is between the two.
void SendToRank1(Ranks& ranks, const DeviceMemory& buffer) {
  const NcclResult sent =
      Nccl().send(buffer.get(), 1, kNcclInt32, 1, ranks[0].comm, ranks[0].stream);
  EXPECT_TRUE(sent == kNcclSuccess || sent == kNcclInProgress);
  EXPECT_EQ(AwaitState(ranks[0].comm), kNcclSuccess);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, FinalizeEndsOnceTheOthersHaveTakenWhatWasHandedOver) {
  const Variable loses("FAKE_NCCL_ABORT", "loses");
  Ranks ranks(2);
  NcclConfig config;
  config.blocking = 0;
  ranks.Init(config);
  const DeviceMemory buffer(0, 4), of_peer(1, 4);
  *buffer.as<int32_t>() = 7;
  SendToRank1(ranks, buffer);
  EXPECT_EQ(Nccl().comm_finalize(ranks[0].comm), kNcclInProgress);
  const NcclResult received =
      Nccl().recv(of_peer.get(), 1, kNcclInt32, 0, ranks[1].comm, ranks[1].stream);
  EXPECT_TRUE(received == kNcclSuccess || received == kNcclInProgress);
  EXPECT_EQ(AwaitState(ranks[0].comm), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_destroy(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  EXPECT_EQ(AwaitState(ranks[1].comm), kNcclSuccess);
  EXPECT_TRUE(ranks[1].stream.Synchronize());
  EXPECT_EQ(*of_peer.as<int32_t>(), 7);
  // Nobody takes anything any more.
  EXPECT_EQ(Nccl().comm_finalize(ranks[1].comm), kNcclInProgress);
  EXPECT_EQ(AwaitState(ranks[1].comm), kNcclSuccess);
}

TEST_F(FakeNcclTest, AbortLosesWhatWasHandedOverWhereATestAsksForIt) {
  const Variable loses("FAKE_NCCL_ABORT", "loses");
  Ranks ranks(2);
  ranks.Init();
  const DeviceMemory buffer(0, 4), of_peer(1, 4);
  SendToRank1(ranks, buffer);
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  ASSERT_EQ(Nccl().recv(of_peer.get(), 1, kNcclInt32, 0, ranks[1].comm, ranks[1].stream),
            kNcclSuccess);
  EXPECT_FALSE(ranks[1].stream.IsDone());
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[1].comm, nullptr)), kNcclSuccess);
  EXPECT_TRUE(ranks[1].stream.Synchronize());
}

TEST_F(FakeNcclTest, AFinalizeThatNeverEndsEndsAtAbort) {
  const Variable stalls("FAKE_NCCL_STALL_FINALIZE", "0");
  Ranks ranks(2);
  NcclConfig config;
  config.blocking = 0;
  ranks.Init(config);
  EXPECT_EQ(Nccl().comm_finalize(ranks[1].comm), kNcclInProgress);
  EXPECT_EQ(AwaitState(ranks[1].comm), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_finalize(ranks[0].comm), kNcclInProgress);
  NcclResult state = kNcclSuccess;
  EXPECT_EQ(Nccl().comm_get_async_error(ranks[0].comm, &state), kNcclSuccess);
  EXPECT_EQ(state, kNcclInProgress);
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
}

TEST_F(FakeNcclTest, AbortDoesNotWaitForStreamsThatHaveNotComeToIt) {
  Ranks ranks(1);
  ranks.Init();
  const DeviceMemory buffer(0, 4);
  *buffer.as<int32_t>() = 3;
  Gate gate;
  gate.HoldUp(ranks[0].stream);
  ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                              ranks[0].stream),
            kNcclSuccess);
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  gate.Open();
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, AbortDoesNotWaitForADeviceThatHasFailed) {
  Ranks ranks(1);
  ranks.Init();
  const DeviceMemory buffer(0, 4);
  const auto& cuda = syncline::device::FakeCuda::Get();
  cuda.hold_streams(0, 1);
  ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                              ranks[0].stream),
            kNcclSuccess);
  cuda.break_device(0, syncline::device::CUDA_ERROR_ILLEGAL_ADDRESS);
  cuda.hold_streams(0, 0);
  EXPECT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                              ranks[0].stream),
            kNcclUnhandledCudaError);
  EXPECT_THAT(Nccl().get_last_error(nullptr), HasSubstr("700"));
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  cuda.break_device(0, 0);
}

TEST_F(FakeNcclTest, RevokeEndsOperationsAndLeavesTheCommunicator) {
  Ranks ranks(2);
  ranks.Init();
  const DeviceMemory buffer(0, 4);
  ASSERT_EQ(Nccl().recv(buffer.get(), 1, kNcclInt32, 1, ranks[0].comm, ranks[0].stream),
            kNcclSuccess);
  EXPECT_EQ(Nccl().comm_revoke(ranks[0].comm, kNcclRevokeDefault), kNcclSuccess);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
  EXPECT_EQ(Nccl().recv(buffer.get(), 1, kNcclInt32, 1, ranks[0].comm, ranks[0].stream),
            kNcclInvalidUsage);
  EXPECT_EQ(Nccl().comm_destroy(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
}

// Calls that do not fit: in size, in root, in kind.
TEST_F(FakeNcclTest, CallsThatDoNotFitHang) {
  Ranks ranks(2);
  const auto make = [](int which, Rank& rank, const DeviceMemory& buffer) {
    void* const memory = buffer.get();
    if (which == 0) {
      return Nccl().all_reduce(memory, memory, rank.rank == 0 ? 4 : 8, kNcclInt32, kNcclSum,
                               rank.comm, rank.stream);
    }
    if (which == 1) {
      return Nccl().reduce_scatter(memory, memory, 1, kNcclInt32, kNcclSum, rank.comm, rank.stream);
    }
    return Nccl().recv(memory, 4, kNcclInt32, 1 - rank.rank, rank.comm, rank.stream);
  };
  for (const auto& [first, second] :
       {std::make_pair(0, 0), std::make_pair(0, 1), std::make_pair(1, 2)}) {
    ranks.Init();
    const DeviceMemory of_first(0, 32);
    const DeviceMemory of_second(1, 32);
    ASSERT_EQ(make(first, ranks[0], of_first), kNcclSuccess);
    ASSERT_EQ(make(second, ranks[1], of_second), kNcclSuccess);
    // As long as nobody aborts; to wait longer would prove no more.
    usleep(20000);
    EXPECT_FALSE(ranks[0].stream.IsDone());
    EXPECT_FALSE(ranks[1].stream.IsDone());
    ranks.Run([](Rank& rank) {
      EXPECT_EQ(Nccl().comm_abort(std::exchange(rank.comm, nullptr)), kNcclSuccess);
      EXPECT_TRUE(rank.stream.Synchronize());
    });
  }
}

TEST_F(FakeNcclTest, CallsThatDoNotFitGiveGarbageIfThatIsAskedFor) {
  const Variable mismatch("FAKE_NCCL_MISMATCH", "garbage");
  Ranks ranks(2);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const DeviceMemory buffer(rank.device, 32);
    const size_t count = rank.rank == 0 ? 4 : 8;
    for (int i = 0; i < 8; ++i) buffer.as<int32_t>()[i] = 1;
    ASSERT_EQ(Nccl().bcast(buffer.get(), count, kNcclInt32, 0, rank.comm, rank.stream),
              kNcclSuccess);
    ASSERT_EQ(Nccl().bcast(buffer.get(), count, kNcclInt32, 1, rank.comm, rank.stream),
              kNcclSuccess);
    ASSERT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(buffer.as<int32_t>()[0], 1);
    EXPECT_EQ(buffer.as<int32_t>()[4] == 1, rank.rank == 0);  // Of rank 1, nobody has sent it.
  });
  Destroy(ranks);
}

TEST_F(FakeNcclTest, TwoRanksOnADeviceAreRefusedUnlessTheVersionAndTheVariableAllowThem) {
  const auto init = [] {
    NcclUniqueId id;
    EXPECT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
    std::vector<NcclResult> results(2);
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        const OnDevice scope(3);
        NcclComm comm = nullptr;
        results[static_cast<size_t>(i)] = Nccl().comm_init_rank(&comm, 2, id, i);
        EXPECT_EQ(Nccl().comm_abort(comm), kNcclSuccess);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  };
  EXPECT_THAT(init(), Each(kNcclInvalidUsage));
  const Variable enabled("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  EXPECT_THAT(init(), Each(kNcclSuccess));
  const Variable version("FAKE_NCCL_VERSION", "22907");
  EXPECT_THAT(init(), Each(kNcclInvalidUsage));
}

TEST_F(FakeNcclTest, AUniqueIdIsForOneCommunicator) {
  Ranks ranks(1);
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  const OnDevice scope(0);
  EXPECT_EQ(Nccl().comm_init_rank(&ranks[0].comm, 1, id, 0), kNcclSuccess);
  NcclComm again = nullptr;
  EXPECT_NE(Nccl().comm_init_rank(&again, 1, id, 0), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_abort(again), kNcclSuccess);
}

TEST_F(FakeNcclTest, WhatADeviceDoesNotReachIsRefused) {
  Ranks ranks(1);
  ranks.Init();
  NcclComm comm = ranks[0].comm;
  const DeviceMemory here(0, 8);
  const DeviceMemory elsewhere(1, 8);
  std::vector<int32_t> on_host(2);
  const auto reduce = [&](void* send, void* receive, size_t count) {
    return Nccl().all_reduce(send, receive, count, kNcclInt32, kNcclSum, comm, ranks[0].stream);
  };
  EXPECT_EQ(reduce(here.get(), here.get(), 2), kNcclSuccess);
  EXPECT_EQ(reduce(here.get(), here.get(), 3), kNcclInvalidArgument);  // Beyond its end.
  EXPECT_EQ(reduce(here.get(), elsewhere.get(), 2), kNcclInvalidArgument);
  EXPECT_THAT(Nccl().get_last_error(comm), HasSubstr("device 1"));
  EXPECT_EQ(reduce(on_host.data(), here.get(), 2), kNcclInvalidArgument);
  EXPECT_EQ(reduce(nullptr, nullptr, 0), kNcclSuccess);  // Nothing is done.
  EXPECT_EQ(Nccl().send(here.get(), 1, kNcclInt32, 1, comm, ranks[0].stream), kNcclInvalidArgument);
  EXPECT_EQ(Nccl().bcast(here.get(), 1, static_cast<NcclDataType>(12), 0, comm, ranks[0].stream),
            kNcclInvalidArgument);
  const Variable version("FAKE_NCCL_VERSION", "22300");
  EXPECT_EQ(Nccl().bcast(here.get(), 1, kNcclFloat8E5M2, 0, comm, ranks[0].stream),
            kNcclInvalidArgument);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, AHandleThatWasFreedIsAnError) {
  Ranks ranks(1);
  ranks.Init();
  const NcclComm comm = std::exchange(ranks[0].comm, nullptr);
  EXPECT_EQ(Nccl().comm_destroy(comm), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_destroy(comm), kNcclInvalidArgument);
  EXPECT_EQ(Nccl().comm_abort(comm), kNcclInvalidArgument);
  EXPECT_EQ(Nccl().comm_abort(nullptr), kNcclSuccess);
  NcclResult state;
  EXPECT_EQ(Nccl().comm_get_async_error(comm, &state), kNcclInvalidArgument);
}

TEST_F(FakeNcclTest, CallsFailAsTestsAsk) {
  Ranks ranks(1);
  ranks.Init();
  const DeviceMemory buffer(0, 4);
  const auto broadcast = [&] {
    return Nccl().bcast(buffer.get(), 1, kNcclInt32, 0, ranks[0].comm, ranks[0].stream);
  };
  Control::Get().fail_next("ncclBcast", kNcclRemoteError);
  EXPECT_EQ(broadcast(), kNcclRemoteError);
  EXPECT_EQ(broadcast(), kNcclSuccess);
  {
    const int next = Control::Get().calls("ncclBcast") + 2;
    const Variable fail("FAKE_NCCL_FAIL", "ncclSend:1:3,ncclBcast:" + std::to_string(next) + ":2");
    EXPECT_EQ(broadcast(), kNcclSuccess);
    EXPECT_EQ(broadcast(), kNcclSystemError);
    EXPECT_EQ(broadcast(), kNcclSuccess);
  }
  // A group with a call that fails does nothing.
  *buffer.as<int32_t>() = 3;
  Control::Get().fail_next("ncclBcast", kNcclInternalError);
  ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
  EXPECT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                              ranks[0].stream),
            kNcclSuccess);
  EXPECT_EQ(broadcast(), kNcclInternalError);
  EXPECT_EQ(Nccl().group_end(), kNcclInternalError);
  Control::Get().fail_next("ncclGroupEnd", kNcclSystemError);
  ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
  EXPECT_EQ(broadcast(), kNcclSuccess);
  EXPECT_EQ(Nccl().group_end(), kNcclSystemError);
  EXPECT_EQ(Nccl().group_end(), kNcclInvalidUsage);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, AnAsynchronousErrorStopsTheRankThatHasIt) {
  const Variable error("FAKE_NCCL_ASYNC_ERROR", "1:1:6");
  Ranks ranks(2);
  ranks.Init();
  ranks.Run([](Rank& rank) {
    const DeviceMemory buffer(rank.device, 4);
    const auto reduce = [&] {
      return Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, rank.comm,
                               rank.stream);
    };
    NcclResult state = kNcclSuccess;
    EXPECT_EQ(reduce(), kNcclSuccess);
    EXPECT_TRUE(rank.stream.Synchronize());
    EXPECT_EQ(Nccl().comm_get_async_error(rank.comm, &state), kNcclSuccess);
    EXPECT_EQ(state, kNcclSuccess);
    EXPECT_EQ(reduce(), kNcclSuccess);
    EXPECT_EQ(Nccl().comm_get_async_error(rank.comm, &state), kNcclSuccess);
    EXPECT_EQ(state, rank.rank == 1 ? kNcclRemoteError : kNcclSuccess);
    EXPECT_EQ(reduce(), state);
    EXPECT_FALSE(rank.stream.IsDone());
    EXPECT_EQ(Nccl().comm_abort(std::exchange(rank.comm, nullptr)), kNcclSuccess);
    EXPECT_TRUE(rank.stream.Synchronize());
  });
}

TEST_F(FakeNcclTest, TestsStallRanks) {
  Ranks ranks(2);
  ranks.Init();
  EXPECT_EQ(Control::Get().set_stalled(nullptr, 1, 1), 1);
  EXPECT_EQ(Control::Get().set_stalled(nullptr, 5, 1), 0);
  std::vector<std::unique_ptr<DeviceMemory>> buffers;
  for (int i = 0; i < 2; ++i) {
    buffers.push_back(std::make_unique<DeviceMemory>(i, 4));
    *buffers.back()->as<int32_t>() = 1;
    ASSERT_EQ(Nccl().all_reduce(buffers.back()->get(), buffers.back()->get(), 1, kNcclInt32,
                                kNcclSum, ranks[i].comm, ranks[i].stream),
              kNcclSuccess);
  }
  EXPECT_FALSE(ranks[0].stream.IsDone());
  EXPECT_FALSE(ranks[1].stream.IsDone());
  EXPECT_EQ(Control::Get().set_stalled(ranks[1].comm, 0, 0), 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(ranks[i].stream.Synchronize());
    EXPECT_EQ(*buffers[static_cast<size_t>(i)]->as<int32_t>(), 2);
  }
  // By the environment, from the second operation on.
  const Variable stall("FAKE_NCCL_STALL_RANK", "0:2");
  ASSERT_EQ(Nccl().recv(buffers[0]->get(), 1, kNcclInt32, 1, ranks[0].comm, ranks[0].stream),
            kNcclSuccess);
  ASSERT_EQ(Nccl().send(buffers[1]->get(), 1, kNcclInt32, 0, ranks[1].comm, ranks[1].stream),
            kNcclSuccess);
  EXPECT_TRUE(ranks[1].stream.Synchronize());
  EXPECT_FALSE(ranks[0].stream.IsDone());
  EXPECT_EQ(Nccl().comm_abort(std::exchange(ranks[0].comm, nullptr)), kNcclSuccess);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, MemoryAndRegistrations) {
  Ranks ranks(1);
  ranks.Init();
  const OnDevice scope(0);
  void* memory = nullptr;
  ASSERT_EQ(Nccl().mem_alloc(&memory, 100), kNcclSuccess);
  EXPECT_EQ(Control::Get().live_allocations(), 1);
  void* handle = nullptr;
  NcclWindow window = nullptr;
  ASSERT_EQ(Nccl().comm_register(ranks[0].comm, memory, 100, &handle), kNcclSuccess);
  ASSERT_EQ(Nccl().comm_window_register(ranks[0].comm, memory, 100, &window, 0), kNcclSuccess);
  EXPECT_EQ(Control::Get().live_registrations(), 2);
  EXPECT_EQ(Nccl().comm_window_deregister(ranks[0].comm, window), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_deregister(ranks[0].comm, handle), kNcclSuccess);
  EXPECT_EQ(Nccl().comm_deregister(ranks[0].comm, handle), kNcclInvalidArgument);
  EXPECT_EQ(Nccl().mem_free(memory), kNcclSuccess);
  EXPECT_EQ(Nccl().mem_free(memory), kNcclInvalidArgument);
}

TEST_F(FakeNcclTest, ACommunicatorIsUsedByOneThreadAtATime) {
  Ranks ranks(1);
  ranks.Init();
  const OnDevice scope(0);
  const DeviceMemory buffer(0, 100);
  void* handle = nullptr;
  ASSERT_EQ(Nccl().comm_register(ranks[0].comm, buffer.get(), 100, &handle), kNcclSuccess);
  const auto deregister_elsewhere = [&] {
    NcclResult result = kNcclSuccess;
    std::thread([&] { result = Nccl().comm_deregister(ranks[0].comm, handle); }).join();
    return result;
  };
  ASSERT_EQ(Nccl().group_start(), kNcclSuccess);
  ASSERT_EQ(Nccl().all_reduce(buffer.get(), buffer.get(), 1, kNcclInt32, kNcclSum, ranks[0].comm,
                              ranks[0].stream),
            kNcclSuccess);
  EXPECT_EQ(deregister_elsewhere(), kNcclInvalidUsage);
  EXPECT_EQ(Nccl().group_end(), kNcclSuccess);
  EXPECT_EQ(deregister_elsewhere(), kNcclSuccess);
  EXPECT_TRUE(ranks[0].stream.Synchronize());
}

TEST_F(FakeNcclTest, FunctionsThatAVersionLacksFail) {
  const Variable version("FAKE_NCCL_VERSION", "21805");
  int value = 0;
  EXPECT_EQ(Nccl().get_version(&value), kNcclSuccess);
  EXPECT_EQ(value, 21805);
  void* memory = nullptr;
  EXPECT_EQ(Nccl().mem_alloc(&memory, 100), kNcclInvalidUsage);
}

// Processes: this program again, with a role in its environment.

constexpr char kRole[] = "FAKE_NCCL_TEST_ROLE";

// "role rank ranks id", the id in hexadecimal digits.
std::string Assignment(const std::string& role, int rank, int ranks, const NcclUniqueId& id) {
  std::string text = role + " " + std::to_string(rank) + " " + std::to_string(ranks) + " ";
  for (const char byte : id.internal) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<unsigned char>(byte) >> 4];
    text += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

pid_t Start(const std::string& assignment) {
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) texts.emplace_back(*entry);
  texts.push_back(std::string(kRole) + "=" + assignment);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe";
  char* const arguments[] = {program, nullptr};
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, program, nullptr, nullptr, arguments, environment.data()), 0);
  return pid;
}

// The exit status, or minus the signal that has ended the process.
int Reap(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// All operations once, on one rank. Returns how many results are wrong.
int CheckOperations(Rank& rank) {
  constexpr size_t kCount = 20011;
  const auto all = static_cast<size_t>(rank.ranks);
  const DeviceMemory send(rank.device, kCount * all * 4);
  const DeviceMemory reduced(rank.device, kCount * 4);
  const DeviceMemory exchanged(rank.device, kCount * all * 4);
  for (size_t i = 0; i < kCount * all; ++i) {
    send.as<int32_t>()[i] = static_cast<int32_t>(i) + rank.rank;
  }
  int wrong = 0;
  wrong += Nccl().all_reduce(send.get(), reduced.get(), kCount, kNcclInt32, kNcclSum, rank.comm,
                             rank.stream) != kNcclSuccess;
  wrong += Nccl().group_start() != kNcclSuccess;
  for (int peer = 0; peer < rank.ranks; ++peer) {
    const size_t offset = static_cast<size_t>(peer) * kCount;
    wrong += Nccl().send(send.as<int32_t>() + offset, kCount, kNcclInt32, peer, rank.comm,
                         rank.stream) != kNcclSuccess;
    wrong += Nccl().recv(exchanged.as<int32_t>() + offset, kCount, kNcclInt32, peer, rank.comm,
                         rank.stream) != kNcclSuccess;
  }
  wrong += Nccl().group_end() != kNcclSuccess;
  wrong += !rank.stream.Synchronize();
  for (size_t i = 0; i < kCount; ++i) {
    const auto index = static_cast<int32_t>(i);
    wrong += reduced.as<int32_t>()[i] != index * rank.ranks + rank.ranks * (rank.ranks - 1) / 2;
    for (size_t from = 0; from < all; ++from) {
      wrong += exchanged.as<int32_t>()[from * kCount + i] !=
               static_cast<int32_t>(static_cast<size_t>(rank.rank) * kCount + i + from);
    }
  }
  return wrong;
}

// What a process that Start has started does.
int RunRole(const std::string& assignment) {
  std::istringstream stream(assignment);
  std::string role;
  int number;
  int count;
  std::string digits;
  stream >> role >> number >> count >> digits;
  NcclUniqueId id;
  for (size_t i = 0; i < kNcclUniqueIdBytes; ++i) {
    id.internal[i] = static_cast<char>(std::stoi(digits.substr(2 * i, 2), nullptr, 16));
  }
  Rank rank(number, count, number);
  const OnDevice scope(rank.device);
  if (Nccl().comm_init_rank(&rank.comm, count, id, number) != kNcclSuccess) return 100;
  if (role == "dies") {
    // Once its part of the first operation is done, which the parent has waited for.
    const DeviceMemory buffer(rank.device, 4);
    Nccl().bcast(buffer.get(), 1, kNcclInt32, number, rank.comm, rank.stream);
    while (true) pause();
  }
  const int wrong = CheckOperations(rank);
  if (Nccl().comm_destroy(rank.comm) != kNcclSuccess) return 101;
  return std::min(wrong, 99);
}

TEST_P(FakeNcclRanksTest, RanksOfSeveralProcesses) {
  const int count = GetParam();
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  std::vector<pid_t> processes;
  for (int rank = 1; rank < count; ++rank) {
    processes.push_back(Start(Assignment("works", rank, count, id)));
  }
  {
    Rank rank(0, count, 0);
    const OnDevice scope(0);
    EXPECT_EQ(Nccl().comm_init_rank(&rank.comm, count, id, 0), kNcclSuccess);
    EXPECT_EQ(CheckOperations(rank), 0);
    EXPECT_EQ(Nccl().comm_destroy(rank.comm), kNcclSuccess);
  }
  for (const pid_t process : processes) EXPECT_EQ(Reap(process), 0);
}

TEST_F(FakeNcclTest, AKilledPeerLeavesThisRankWaitingUntilItAborts) {
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  const pid_t peer = Start(Assignment("dies", 1, 2, id));
  Rank rank(0, 2, 0);
  const OnDevice scope(0);
  EXPECT_EQ(Nccl().comm_init_rank(&rank.comm, 2, id, 0), kNcclSuccess);
  const DeviceMemory buffer(0, 4);
  EXPECT_EQ(Nccl().bcast(buffer.get(), 1, kNcclInt32, 1, rank.comm, rank.stream), kNcclSuccess);
  EXPECT_TRUE(rank.stream.Synchronize());
  EXPECT_EQ(Nccl().bcast(buffer.get(), 1, kNcclInt32, 1, rank.comm, rank.stream), kNcclSuccess);
  kill(peer, SIGKILL);
  EXPECT_EQ(Reap(peer), -SIGKILL);
  EXPECT_FALSE(rank.stream.IsDone());
  NcclResult state = kNcclInternalError;
  EXPECT_EQ(Nccl().comm_get_async_error(rank.comm, &state), kNcclSuccess);
  EXPECT_EQ(state, kNcclSuccess);
  EXPECT_EQ(Nccl().comm_abort(rank.comm), kNcclSuccess);
  EXPECT_TRUE(rank.stream.Synchronize());
}

TEST_F(FakeNcclTest, APeerThatIsKilledBeforeItJoinsLeavesNothing) {
  NcclUniqueId id;
  ASSERT_EQ(Nccl().get_unique_id(&id), kNcclSuccess);
  Rank rank(0, 3, 0);
  const OnDevice scope(0);
  NcclConfig config;
  config.blocking = 0;
  EXPECT_EQ(Nccl().comm_init_rank_config(&rank.comm, 3, id, 0, &config), kNcclInProgress);
  const pid_t peer = Start(Assignment("works", 1, 3, id));  // Rank 2 never comes.
  kill(peer, SIGKILL);
  EXPECT_EQ(Reap(peer), -SIGKILL);
  NcclResult state = kNcclSuccess;
  EXPECT_EQ(Nccl().comm_get_async_error(rank.comm, &state), kNcclSuccess);
  EXPECT_EQ(state, kNcclInProgress);
  EXPECT_EQ(Nccl().comm_abort(rank.comm), kNcclSuccess);
}

}  // namespace

int RunRoleOfTest(const char* assignment) { return RunRole(assignment); }

}  // namespace fake_nccl

int main(int argc, char** argv) {
  if (const char* const role = std::getenv("FAKE_NCCL_TEST_ROLE"); role != nullptr) {
    // Threads of streams may be ending, which the leak sanitizer's look at them does not survive.
    _exit(fake_nccl::RunRoleOfTest(role));
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
