#include "backends/common/call_description.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "backends/common/call_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::backends {
namespace {

CallDescription AllReduce() { return CallDescription(OpKind::kAllReduce, 5, DType::kFloat32, 10); }

// Of a group of as many ranks as `sent` has elements.
CallDescription AllToAll(CallDescription::Counts sent, CallDescription::Counts expected) {
  CallDescription call(OpKind::kAllToAll, 5, DType::kInt8);
  for (int64_t count : sent) call.count += count;
  call.counts = std::move(sent);
  call.expected = std::move(expected);
  return call;
}

// The fingerprint of a call with these arguments, and its description in full.
struct Both {
  explicit Both(const Collective& collective) {
    CallContext context;
    context.sequence = 7;
    context.collective = &collective;
    fingerprint = CallFingerprint::Of(context);
    full = CallDescription(context).ToString();
  }
  std::string from_fingerprint() const { return CallDescription(fingerprint).ToString(); }

  CallFingerprint fingerprint;
  std::string full;
};

TEST(CallFingerprintTest, PrintsACallOfFixedSizeAlone) {
  const Tensor tensor(nullptr, DType::kFloat32, {2, 5});
  const std::vector<Tensor> none;
  for (const Collective& call :
       {Collective::Broadcast(tensor, 3), Collective::AllReduce(tensor, ReduceOp::kMax),
        Collective::Reduce(tensor, ReduceOp::kProduct, 1), Collective::Gather(none, tensor, 2),
        Collective::Scatter(tensor, none, 0), Collective::Barrier()}) {
    const Both both(call);
    EXPECT_EQ(both.from_fingerprint(), both.full);
  }
}

TEST(CallFingerprintTest, PrintsAnyCallWithoutItsSizes) {
  const std::vector<Tensor> tensors(2, Tensor(nullptr, DType::kInt8, {4}));
  EXPECT_EQ(Both(Collective::AllGather(tensors, tensors[0])).from_fingerprint(),
            "all_gather #7 (int8)");
  EXPECT_EQ(Both(Collective::ReduceScatter(tensors[0], tensors, ReduceOp::kMin)).from_fingerprint(),
            "reduce_scatter #7 (int8, min)");
  EXPECT_EQ(Both(Collective::AllToAll(tensors, tensors)).from_fingerprint(),
            "all_to_all #7 (int8)");
}

TEST(CallFingerprintTest, AcceptsAnyBytes) {
  CallFingerprint fingerprint;
  std::memset(&fingerprint, 0xff, sizeof(fingerprint));
  EXPECT_THAT(CallDescription(fingerprint).ToString(), testing::HasSubstr("#"));
}

TEST(CallDescriptionTest, ACallComesBackAsItWas) {
  CallDescription recv(OpKind::kRecv, 3, DType::kComplex128, 1);
  recv.peer = kAnySource;
  recv.tag = 2147483647;
  CallDescription packed = AllReduce();
  packed.name = "all_reduce_coalesced";
  packed.tensors = "2 x float32[3], float32[4]";
  packed.salt = 0xfedcba9876543210;
  CallDescription renamed = AllToAll({4, 5, 6}, {7, 8, 9});
  renamed.name = "all_to_all_single";
  const std::vector<CallDescription> calls = {AllReduce(), AllToAll({1, 2, 3}, {0, 5, 6}), recv,
                                              packed, renamed};
  for (const CallDescription& call : calls) {
    std::vector<int64_t> words = call.ToWords();
    EXPECT_LE(words.size(), CallDescription::MaxWords(3));
    words.resize(CallDescription::MaxWords(3));
    const absl::StatusOr<CallDescription> back = CallDescription::FromWords(words);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->ToString(), call.ToString());
    EXPECT_EQ(back->ToWords(), call.ToWords());
  }
}

TEST(CallDescriptionTest, ATextThatIsTooLongIsCut) {
  CallDescription call = AllReduce();
  call.name = "all_reduce_coalesced";
  const std::string tensors(1000, 'x');
  call.tensors = tensors;
  const std::vector<int64_t> words = call.ToWords();
  EXPECT_LE(words.size(), CallDescription::MaxWords(0));
  const absl::StatusOr<CallDescription> back = CallDescription::FromWords(words);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->name, call.name);
  EXPECT_LT(back->tensors.size(), 300u);
  EXPECT_THAT(std::string(back->tensors), testing::EndsWith("xxx..."));
}

TEST(CallDescriptionTest, ACallOfSeveralTensorsIsQuotedInTheUsersTerms) {
  CallDescription call(OpKind::kBroadcast, 3, DType::kUInt8, 24);
  call.peer = 0;
  call.name = "broadcast_coalesced";
  call.tensors = "float32[2], float32[4]";
  EXPECT_EQ(call.ToString(), "broadcast_coalesced #3 (float32[2], float32[4], root 0)");
  EXPECT_EQ(call.ShortName(), "broadcast_coalesced #3");
  call.tensors = "";
  EXPECT_EQ(call.ToString(), "broadcast_coalesced #3 (uint8, 24 elements, root 0)");
}

TEST(CallDescriptionTest, WhatIsNoCallIsRefused) {
  const std::vector<int64_t> good = AllToAll({1, 2}, {3, 4}).ToWords();
  EXPECT_FALSE(CallDescription::FromWords({}).ok());
  EXPECT_FALSE(CallDescription::FromWords(absl::MakeSpan(good).first(good.size() - 1)).ok());
  for (const size_t position : {0, 2, 4, 7, 8, 10}) {
    for (const int64_t value : {int64_t{-1}, int64_t{1000}, INT64_MAX}) {
      std::vector<int64_t> bad = good;
      bad[position] = value;
      EXPECT_FALSE(CallDescription::FromWords(bad).ok()) << position << " " << value;
    }
  }
}

}  // namespace
}  // namespace syncline::backends
