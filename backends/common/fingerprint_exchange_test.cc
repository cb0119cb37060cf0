#include "backends/common/fingerprint_exchange.h"

#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/common/call.h"
#include "backends/common/call_words.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

constexpr int kSizes = 9;  // And all below.

Call AllReduce() {
  Call call{OpKind::kAllReduce, 5, DType::kFloat32, 10};
  return call;
}

// Of a group of as many ranks as `sent` has elements.
Call AllToAll(Call::Counts sent, Call::Counts expected) {
  Call call{OpKind::kAllToAll, 5, DType::kInt8};
  for (int64_t count : sent) call.count += count;
  call.counts = std::move(sent);
  call.expected = std::move(expected);
  return call;
}

// All rounds of all ranks; calls[r] is that of rank r.
std::vector<FingerprintExchange> RunRounds(const std::vector<Call>& calls, int rejecting = -1) {
  const int size = static_cast<int>(calls.size());
  std::vector<FingerprintExchange> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(calls[rank], rank, size);
  if (rejecting >= 0) ranks[rejecting].Reject();
  for (int round = 0; round < FingerprintExchange::Rounds(size); ++round) {
    std::vector<FingerprintRecord> records;
    for (const FingerprintExchange& rank : ranks) records.push_back(rank.record());
    for (FingerprintExchange& rank : ranks) rank.Merge(records[rank.from(round)]);
  }
  return ranks;
}

void ExpectAll(const std::vector<Call>& calls, bool agreed, int rejecting = -1) {
  for (const FingerprintExchange& rank : RunRounds(calls, rejecting))
    EXPECT_EQ(rank.agreed(), agreed);
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
    ExpectAll(std::vector<Call>(size, AllReduce()), true);
    ExpectAll(std::vector<Call>(size, Call{OpKind::kBarrier, 7}), true);
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsThatOneDiffersInAnything) {
  const std::vector<std::function<void(Call&)>> changes = {
      [](Call& call) { call.kind = OpKind::kBroadcast; }, [](Call& call) { ++call.sequence; },
      [](Call& call) { call.dtype = DType::kInt32; },     [](Call& call) { call.count = 0; },
      [](Call& call) { call.op = ReduceOp::kMax; },       [](Call& call) { call.peer = 0; },
      [](Call& call) { call.counts = {10, 10}; },         [](Call& call) { call.form = 1; },
  };
  for (int size = 2; size <= kSizes; ++size) {
    for (int deviant = 0; deviant < size; ++deviant) {
      for (const auto& change : changes) {
        std::vector<Call> calls(size, AllReduce());
        change(calls[deviant]);
        ExpectAll(calls, false);
      }
    }
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsOfAnyMixture) {
  std::mt19937 random(1);
  for (int size = 2; size <= kSizes; ++size) {
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<Call> calls(size, AllReduce());
      bool equal = true;
      for (Call& call : calls) {
        call.count = std::uniform_int_distribution<int>(0, trial % 3)(random);
        equal = equal && call.count == calls[0].count;
      }
      ExpectAll(calls, equal);
    }
  }
}

TEST(FingerprintExchangeTest, EveryRankLearnsOfAnObjection) {
  for (int size = 1; size <= kSizes; ++size) {
    for (int rejecting = 0; rejecting < size; ++rejecting) {
      ExpectAll(std::vector<Call>(size, AllReduce()), false, rejecting);
    }
  }
}

TEST(FingerprintExchangeTest, CountsOfAllRanksMustBeEqual) {
  Call gather{OpKind::kAllGather, 5, DType::kFloat32, 3};
  gather.counts = {3, 0, 7};
  std::vector<Call> calls(3, gather);
  calls[1].count = 0;  // Its own input; the sizes of all are in `counts`.
  calls[2].count = 7;
  ExpectAll(calls, true);
  calls[1].counts = {3, 1, 6};
  ExpectAll(calls, false);
}

TEST(FingerprintExchangeTest, TheFormCountsBesideTheCountsOfAllRanks) {
  Call gather{OpKind::kAllGather, 5, DType::kUInt8, 8};
  gather.counts = {8, 8, 8};
  gather.form = 77;
  std::vector<Call> calls(3, gather);
  ExpectAll(calls, true);
  calls[2].form = 78;
  ExpectAll(calls, false);
}

TEST(FingerprintExchangeTest, AllToAllIsEvenOnAllRanksOrOnNone) {
  for (int size = 1; size <= kSizes; ++size) {
    const Call::Counts twos(size, 2), threes(size, 3);
    for (const auto& rank : RunRounds(std::vector<Call>(size, AllToAll(twos, twos)))) {
      EXPECT_TRUE(rank.agreed() && rank.all_even());
    }
    for (int deviant = 0; size > 1 && deviant < size; ++deviant) {
      std::vector<Call> calls(size, AllToAll(twos, twos));
      calls[deviant] = AllToAll(threes, twos);
      for (const auto& rank : RunRounds(calls)) EXPECT_TRUE(rank.agreed() && !rank.all_even());
      calls[deviant] = AllToAll(threes, threes);
      for (const auto& rank : RunRounds(calls)) EXPECT_TRUE(rank.agreed() && !rank.all_even());
    }
  }
}

TEST(CallWordsTest, ACallComesBackAsItWas) {
  Call recv{OpKind::kRecv, 3, DType::kComplex128, 1};
  recv.peer = kAnySource;
  recv.tag = 2147483647;
  Call packed = AllReduce();
  packed.name = "all_reduce_coalesced";
  packed.tensors = "2 x float32[3], float32[4]";
  packed.form = 0xfedcba9876543210;
  Call renamed = AllToAll({4, 5, 6}, {7, 8, 9});
  renamed.name = "all_to_all_single";
  const std::vector<Call> calls = {AllReduce(), AllToAll({1, 2, 3}, {0, 5, 6}), recv, packed,
                                   renamed};
  for (const Call& call : calls) {
    std::vector<int64_t> words = ToWords(call);
    EXPECT_LE(words.size(), MaxCallWords(3));
    words.resize(MaxCallWords(3));
    const absl::StatusOr<Call> back = FromWords(words);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->ToString(), call.ToString());
    EXPECT_EQ(ToWords(*back), ToWords(call));
  }
}

TEST(CallWordsTest, ATextThatIsTooLongIsCut) {
  Call call = AllReduce();
  call.name = "all_reduce_coalesced";
  const std::string tensors(1000, 'x');
  call.tensors = tensors;
  const std::vector<int64_t> words = ToWords(call);
  EXPECT_LE(words.size(), MaxCallWords(0));
  const absl::StatusOr<Call> back = FromWords(words);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->name, call.name);
  EXPECT_LT(back->tensors.size(), 300u);
  EXPECT_THAT(std::string(back->tensors), testing::EndsWith("xxx..."));
}

TEST(CallWordsTest, ACallOfSeveralTensorsIsQuotedInTheUsersTerms) {
  Call call{OpKind::kBroadcast, 3, DType::kUInt8, 24};
  call.peer = 0;
  call.name = "broadcast_coalesced";
  call.tensors = "float32[2], float32[4]";
  EXPECT_EQ(call.ToString(), "broadcast_coalesced #3 (float32[2], float32[4], root 0)");
  EXPECT_EQ(call.ShortName(), "broadcast_coalesced #3");
  call.tensors = "";
  EXPECT_EQ(call.ToString(), "broadcast_coalesced #3 (uint8, 24 elements, root 0)");
}

TEST(CallWordsTest, WhatIsNoCallIsRefused) {
  const std::vector<int64_t> good = ToWords(AllToAll({1, 2}, {3, 4}));
  EXPECT_FALSE(FromWords({}).ok());
  EXPECT_FALSE(FromWords(absl::MakeSpan(good).first(good.size() - 1)).ok());
  for (const size_t position : {0, 2, 4, 7, 8, 10}) {
    for (const int64_t value : {int64_t{-1}, int64_t{1000}, INT64_MAX}) {
      std::vector<int64_t> bad = good;
      bad[position] = value;
      EXPECT_FALSE(FromWords(bad).ok()) << position << " " << value;
    }
  }
}

}  // namespace
}  // namespace syncline
