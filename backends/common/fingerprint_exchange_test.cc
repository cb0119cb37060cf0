#include "backends/common/fingerprint_exchange.h"

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/common/call_description.h"
#include "backends/common/call_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::backends {
namespace {

constexpr int kSizes = 9;  // And all below.

// Tensors of these sizes, without memory: only their sizes are compared.
std::vector<Tensor> Sized(DType dtype, const std::vector<int64_t>& sizes) {
  std::vector<Tensor> tensors;
  for (int64_t size : sizes) tensors.push_back(Tensor(nullptr, dtype, {size}));
  return tensors;
}

FingerprintRecord RecordOf(const Collective& call, uint64_t salt = 0) {
  CallContext context;
  context.sequence = 5;
  context.salt = salt;
  context.collective = &call;
  return FingerprintRecord::Of(context);
}

FingerprintRecord AllReduce(int64_t count = 10) {
  return RecordOf(Collective::AllReduce(Tensor(nullptr, DType::kFloat32, {count}), ReduceOp::kSum));
}

FingerprintRecord AllGather(const std::vector<int64_t>& sizes, int64_t own, uint64_t salt = 0) {
  return RecordOf(
      Collective::AllGather(Sized(DType::kFloat32, sizes), Tensor(nullptr, DType::kFloat32, {own})),
      salt);
}

FingerprintRecord AllToAll(const std::vector<int64_t>& sent, const std::vector<int64_t>& expected) {
  return RecordOf(Collective::AllToAll(Sized(DType::kInt8, expected), Sized(DType::kInt8, sent)));
}

using Records = std::vector<FingerprintRecord>;

// All rounds of all ranks; own[r] is the record of rank r.
std::vector<FingerprintExchange> RunRounds(const Records& own, int rejecting = -1) {
  const int size = static_cast<int>(own.size());
  std::vector<FingerprintExchange> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(own[rank], rank, size);
  if (rejecting >= 0) ranks[rejecting].Reject();
  for (int round = 0; round < FingerprintExchange::Rounds(size); ++round) {
    Records records;
    for (const FingerprintExchange& rank : ranks) records.push_back(rank.record());
    for (FingerprintExchange& rank : ranks) rank.Merge(records[rank.from(round)]);
  }
  return ranks;
}

void ExpectAll(const Records& own, bool agreed, int rejecting = -1) {
  for (const FingerprintExchange& rank : RunRounds(own, rejecting)) {
    EXPECT_EQ(rank.agreed(), agreed);
  }
}

TEST(FingerprintExchangeTest, WhatOneRankSendsTheOtherReceives) {
  for (int size = 1; size <= kSizes; ++size) {
    for (int round = 0; round < FingerprintExchange::Rounds(size); ++round) {
      for (int rank = 0; rank < size; ++rank) {
        const int to = FingerprintExchange::To(round, rank, size);
        EXPECT_NE(to, rank);
        EXPECT_EQ(FingerprintExchange::From(round, to, size), rank);
      }
    }
  }
  EXPECT_EQ(FingerprintExchange::Rounds(1), 0);
  EXPECT_EQ(FingerprintExchange::Rounds(2), 1);
  EXPECT_EQ(FingerprintExchange::Rounds(8), 3);
  EXPECT_EQ(FingerprintExchange::Rounds(9), 4);
}

TEST(FingerprintExchangeTest, EqualCallsAgree) {
  for (int size = 1; size <= kSizes; ++size) {
    ExpectAll(Records(size, AllReduce()), true);
    ExpectAll(Records(size, RecordOf(Collective::Barrier())), true);
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsThatOneDiffersInAnything) {
  const Tensor tensor(nullptr, DType::kFloat32, {10}), shorter(nullptr, DType::kFloat32, {0});
  const Tensor integers(nullptr, DType::kInt32, {10});
  const FingerprintRecord usual = RecordOf(Collective::Reduce(tensor, ReduceOp::kSum, 1));
  FingerprintRecord later = usual;
  ++later.call.sequence;
  const Records others = {
      later,
      RecordOf(Collective::Broadcast(tensor, 1)),
      RecordOf(Collective::Reduce(integers, ReduceOp::kSum, 1)),
      RecordOf(Collective::Reduce(shorter, ReduceOp::kSum, 1)),
      RecordOf(Collective::Reduce(tensor, ReduceOp::kMax, 1)),
      RecordOf(Collective::Reduce(tensor, ReduceOp::kSum, 0)),
      RecordOf(Collective::Reduce(tensor, ReduceOp::kSum, 1), /*salt=*/1),
  };
  for (int size = 2; size <= kSizes; ++size) {
    for (int deviant = 0; deviant < size; ++deviant) {
      for (const FingerprintRecord& other : others) {
        Records own(size, usual);
        own[deviant] = other;
        ExpectAll(own, false);
      }
    }
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsOfAnyMixture) {
  std::mt19937 random(1);
  for (int size = 2; size <= kSizes; ++size) {
    for (int trial = 0; trial < 500; ++trial) {
      Records own;
      bool equal = true;
      for (int rank = 0; rank < size; ++rank) {
        own.push_back(AllReduce(std::uniform_int_distribution<int>(0, trial % 3)(random)));
        equal = equal && own[rank].call.count == own[0].call.count;
      }
      ExpectAll(own, equal);
    }
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsOfAnObjection) {
  for (int size = 1; size <= kSizes; ++size) {
    for (int rejecting = 0; rejecting < size; ++rejecting) {
      ExpectAll(Records(size, AllReduce()), false, rejecting);
    }
  }
}

TEST(FingerprintExchangeTest, SizesOfAllRanksMustBeEqual) {
  // The rank's own input differs; the sizes of all are in the list.
  Records own = {AllGather({3, 0, 7}, 3), AllGather({3, 0, 7}, 0), AllGather({3, 0, 7}, 7)};
  ExpectAll(own, true);
  own[1] = AllGather({3, 1, 6}, 1);
  ExpectAll(own, false);
}

TEST(FingerprintExchangeTest, TheSaltCountsBesideTheSizesOfAllRanks) {
  Records own(3, AllGather({8, 8, 8}, 8, /*salt=*/77));
  ExpectAll(own, true);
  own[2] = AllGather({8, 8, 8}, 8, /*salt=*/78);
  ExpectAll(own, false);
}

TEST(FingerprintExchangeTest, AllToAllIsEvenOnAllRanksOrOnNone) {
  for (int size = 1; size <= kSizes; ++size) {
    const std::vector<int64_t> twos(size, 2), threes(size, 3);
    for (const auto& rank : RunRounds(Records(size, AllToAll(twos, twos)))) {
      EXPECT_TRUE(rank.agreed() && rank.all_even());
    }
    for (int deviant = 0; size > 1 && deviant < size; ++deviant) {
      Records own(size, AllToAll(twos, twos));
      own[deviant] = AllToAll(threes, twos);
      for (const auto& rank : RunRounds(own)) EXPECT_TRUE(rank.agreed() && !rank.all_even());
      own[deviant] = AllToAll(threes, threes);
      for (const auto& rank : RunRounds(own)) EXPECT_TRUE(rank.agreed() && !rank.all_even());
    }
  }
}

}  // namespace
}  // namespace syncline::backends
