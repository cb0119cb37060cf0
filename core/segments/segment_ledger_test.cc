#include "core/segments/segment_ledger.h"

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace syncline::segments {
namespace {

class SegmentLedgerTest : public ::testing::Test {
 protected:
  SegmentLedger ledger_{[this](const SegmentKey& segment) { freed_.push_back(segment.number); }};
  std::vector<uint64_t> freed_;
  const ClientId sender_ = ledger_.Join(), receiver_ = ledger_.Join();
  const SegmentKey segment_{1, sender_, 7};
};

TEST_F(SegmentLedgerTest, ASegmentIsFreedWhenItsReceiverIsDoneWithIt) {
  ledger_.Carry(sender_, segment_, 1);
  ledger_.Use(receiver_, segment_, 1);
  ledger_.Carry(sender_, segment_, -1);
  EXPECT_TRUE(freed_.empty());
  ledger_.Use(receiver_, segment_, -1);
  EXPECT_EQ(freed_, std::vector<uint64_t>{7});
  EXPECT_EQ(ledger_.size(), 0u);
}

TEST_F(SegmentLedgerTest, RequestsOfTwoClientsMayComeInAnyOrder) {
  ledger_.Use(receiver_, segment_, 1);
  ledger_.Carry(sender_, segment_, -1);
  ledger_.Use(receiver_, segment_, -1);
  EXPECT_TRUE(freed_.empty());
  ledger_.Carry(sender_, segment_, 1);
  EXPECT_EQ(freed_, std::vector<uint64_t>{7});
}

TEST_F(SegmentLedgerTest, WhatAKilledClientLeavesIsFreed) {
  ledger_.Carry(sender_, segment_, 1);
  ledger_.Use(receiver_, {1, sender_, 8}, 1);
  ledger_.End(sender_);
  EXPECT_EQ(freed_, std::vector<uint64_t>{7});
  ledger_.End(receiver_);
  EXPECT_EQ(freed_, (std::vector<uint64_t>{7, 8}));
}

TEST_F(SegmentLedgerTest, AClaimThatComesAfterItsSenderWasKilledDoesNoHarm) {
  ledger_.Carry(sender_, segment_, 1);
  ledger_.End(sender_);
  ledger_.Use(receiver_, segment_, 1);
  ledger_.Carry(sender_, segment_, -1);
  ledger_.Use(receiver_, segment_, -1);
  EXPECT_EQ(ledger_.size(), 0u);
}

TEST_F(SegmentLedgerTest, MessagesOfAClientThatHasLeftAreReceivedStill) {
  ledger_.Carry(sender_, segment_, 1);
  ledger_.Use(sender_, {1, sender_, 8}, 1);
  ledger_.Leave(sender_);
  ledger_.End(sender_);
  EXPECT_EQ(freed_, std::vector<uint64_t>{8});
  ledger_.Use(receiver_, segment_, 1);
  ledger_.Carry(sender_, segment_, -1);
  EXPECT_EQ(freed_.size(), 1u);
  ledger_.End(receiver_);
  EXPECT_EQ(freed_, (std::vector<uint64_t>{8, 7}));
}

// Requests of each client keep their order; those of different clients are mixed at random.
TEST_F(SegmentLedgerTest, EveryOrderEndsWithNothing) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const ClientId forwarder = ledger_.Join();
    const SegmentKey segment{1, sender_, 100u + round};
    std::vector<std::vector<std::function<void()>>> clients = {
        {[&] { ledger_.Carry(sender_, segment, 1); }},
        {[&] {
           ledger_.Use(forwarder, segment, 1);
           ledger_.Carry(sender_, segment, -1);
         },
         [&] { ledger_.Carry(forwarder, segment, 1); },
         [&] { ledger_.Use(forwarder, segment, -1); }},
        {[&] {
           ledger_.Use(receiver_, segment, 1);
           ledger_.Carry(forwarder, segment, -1);
         },
         [&] { ledger_.Use(receiver_, segment, -1); }},
    };
    while (!clients.empty()) {
      const size_t turn = random() % clients.size();
      clients[turn].front()();
      clients[turn].erase(clients[turn].begin());
      if (clients[turn].empty()) clients.erase(clients.begin() + static_cast<int64_t>(turn));
    }
    ASSERT_EQ(ledger_.size(), 0u) << "round " << round;
    ASSERT_EQ(freed_.back(), segment.number);
  }
}

}  // namespace
}  // namespace syncline::segments
