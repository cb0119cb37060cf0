#include "core/group/derived.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/testing/fake_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/process_group.h"
#include "syncline/status.h"

namespace syncline::group {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSize = 3;  // This is rank 0.

std::shared_ptr<ProcessGroup> MakeGroup(int size = kSize) {
  return MakeFakeGroup([](FakeBackend&, OpKind, const CallContext&) { return absl::OkStatus(); },
                       size);
}

void ExpectRefused(const absl::Status& status, ErrorKind kind, const char* text) {
  ASSERT_FALSE(status.ok()) << text;
  EXPECT_EQ(KindOf(status), kind) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

// Views of two elements each of one row of memory.
class Row {
 public:
  Tensor operator[](int i) { return At(2 * i); }
  Tensor At(int element) { return Tensor::Of(values_).Slice(element, 2); }
  Tensors Several(int first, int count) {
    Tensors tensors;
    for (int i = first; i < first + count; ++i) tensors.push_back((*this)[i]);
    return tensors;
  }
  Tensor ReadOnly(int i) {
    return Tensor((*this)[i].data(), DType::kFloat32, {2}, {}, {}, nullptr, Access::kReadOnly);
  }
  std::vector<float>& values() { return values_; }

 private:
  std::vector<float> values_ = std::vector<float>(100);
};

TEST(DerivedTest, ASizeThatOverflowsIsRefused) {
  auto group = MakeGroup(4);
  uint8_t byte = 0;
  // As many elements as can be, all at one address.
  const Tensor endless(&byte, DType::kUInt8, {int64_t{1} << 62}, {0});
  const Tensor none = Tensor::Zeros(DType::kUInt8, {0});
  ExpectRefused(group->AllGatherSingle(none, endless), ErrorKind::kArgument,
                "the input is not contiguous");
  ExpectRefused(group->ReduceScatterSingle(endless, none), ErrorKind::kArgument,
                "the output is not contiguous");
  // Contiguous, and so that four times its elements are none.
  const Tensor claimed(&byte, DType::kUInt8, {int64_t{1} << 62});
  ExpectRefused(group->AllGatherSingle(none, claimed), ErrorKind::kArgument,
                "must have 4 times its elements");
  ExpectRefused(group->ReduceScatterSingle(claimed, none), ErrorKind::kArgument,
                "must have 4 times its elements");
  EXPECT_TRUE(group->status().ok());
}

TEST(DerivedTest, WhatIsWrittenMustNotShareMemory) {
  auto group = MakeGroup();
  Row row;
  const Tensors twice = {row[0], row[0]}, across = {row[0], row.At(1)};
  for (const Tensors& tensors : {twice, across}) {
    for (const absl::Status& status :
         {group->BroadcastCoalesced(tensors, 1), group->AllReduceCoalesced(tensors),
          group->BroadcastMulti(tensors, 0), group->BroadcastMulti(tensors, 1),
          group->AllReduceMulti(tensors), group->ReduceScatterCoalesced(tensors, row.Several(4, 6)),
          group->ReduceScatterMulti(tensors, row.Several(4, 12))}) {
      ExpectRefused(status, ErrorKind::kArgument, "two of the outputs share memory");
    }
  }
  Tensors outputs = row.Several(4, 6);
  outputs[5] = outputs[2];
  ExpectRefused(group->AllGatherCoalesced(outputs, row.Several(0, 2)), ErrorKind::kArgument,
                "two of the outputs share memory");
  outputs = row.Several(4, 12);
  outputs[11] = outputs[2];
  ExpectRefused(group->AllReduceCoalesced({row[0], row[0]}), ErrorKind::kArgument,
                "all_reduce_coalesced: two of the outputs");
  ExpectRefused(group->AllGatherMulti(outputs, row.Several(0, 2)), ErrorKind::kArgument,
                "two of the outputs share memory");
  EXPECT_TRUE(FakeBackend::Last()->calls().empty());
}

TEST(DerivedTest, AnInputMayBeAnOutputOnlyIfTheRankPassesItToItself) {
  auto group = MakeGroup();
  Row row;
  // outputs[i * 3 + r], and inputs[i * 3 + r], of rank 0.
  const Tensors six = row.Several(0, 6);
  EXPECT_TRUE(group->AllGatherCoalesced(six, {six[0], six[3]}).ok());
  EXPECT_TRUE(group->ReduceScatterCoalesced({six[0], six[3]}, six).ok());
  // outputs[i * 6 + p], and inputs[i * 6 + p], at places 0 and 1.
  const Tensors twelve = row.Several(0, 12);
  EXPECT_TRUE(group->AllGatherMulti(twelve, {twelve[0], twelve[7]}).ok());
  EXPECT_TRUE(group->ReduceScatterMulti({twelve[0], twelve[7]}, twelve).ok());
  for (const absl::Status& status : {group->AllGatherCoalesced(six, {six[0], six[4]}),
                                     group->AllGatherCoalesced(six, {six[0], row.At(7)}),
                                     group->ReduceScatterCoalesced({six[1], row[20]}, six),
                                     group->AllGatherMulti(twelve, {twelve[1], row[20]}),
                                     group->ReduceScatterMulti({row[20], twelve[8]}, twelve),
                                     group->ReduceMulti({six[0], six[0]}, 0)}) {
    ExpectRefused(status, ErrorKind::kArgument, "shares memory with an output");
  }
  EXPECT_TRUE(group->ReduceMulti({six[0], six[0]}, 1).ok()) << "only read";
}

TEST(DerivedTest, WhatTheRootSendsMayBeReadOnly) {
  auto group = MakeGroup();
  Row row;
  const Tensors constants = {row.ReadOnly(0), row.ReadOnly(0)};
  EXPECT_TRUE(group->BroadcastCoalesced(constants, 0).ok()) << "twice the same is all right, too";
  ExpectRefused(group->BroadcastCoalesced(constants, 1), ErrorKind::kType, "is read-only");
  const Tensors second = {row[1], row.ReadOnly(2)};
  EXPECT_TRUE(group->BroadcastMulti(second, 0, 1).ok());
  ExpectRefused(group->BroadcastMulti(second, 0, 0), ErrorKind::kType, "tensors[1] is read-only");
  ExpectRefused(group->BroadcastMulti(second, 1, 1), ErrorKind::kType, "tensors[1] is read-only");
  EXPECT_TRUE(group->ReduceMulti(second, 0, ReduceOp::kSum, 0).ok());
  EXPECT_TRUE(group->ReduceMulti(second, 1, ReduceOp::kSum, 1).ok());
  ExpectRefused(group->ReduceMulti(second, 0, ReduceOp::kSum, 1), ErrorKind::kType,
                "tensors[1] is read-only");
}

TEST(DerivedTest, TheRootsTensorsAreNotWritten) {
  auto group = MakeGroup();
  void* const page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const Tensor tensor(page, DType::kFloat32, {8}, {}, {}, nullptr, Access::kReadOnly);
  EXPECT_TRUE(group->BroadcastCoalesced({tensor}, 0).ok());
  EXPECT_TRUE(group->BroadcastMulti({tensor}, 0).ok());
  EXPECT_EQ(munmap(page, 4096), 0);
}

// The user's name for the call and the user's tensors, as far as these are not the backend's own.
std::string FormOf(const Collective& collective) {
  const std::string tensors =
      collective.user_tensors != nullptr ? DescribeTensors(*collective.user_tensors) : "";
  return std::string(collective.user_name) + "/" + tensors;
}

TEST(DerivedTest, BackendsLearnWhatTheUserCalled) {
  std::vector<std::string> forms;
  std::vector<uint64_t> hashes;
  auto group = MakeFakeGroup(
      [&](FakeBackend&, OpKind, const CallContext& context) {
        forms.push_back(FormOf(*context.collective));
        hashes.push_back(context.collective->UserHash());
        return absl::OkStatus();
      },
      kSize);
  Row row;
  const Tensor wide = row[0].Reshape({1, 2});
  EXPECT_TRUE(group->BroadcastCoalesced({row[3], wide, row[5]}, 0).ok());
  EXPECT_TRUE(group->AllReduceMulti(row.Several(0, 4)).ok());
  EXPECT_TRUE(group->AllReduceCoalesced(row.Several(0, 4)).ok());
  EXPECT_TRUE(group->AllGatherSingle(Tensor::Of(row.values()).Slice(10, 6), row[0]).ok());
  EXPECT_TRUE(group->AllReduce(row[0]).ok());
  EXPECT_THAT(forms, ElementsAre("broadcast_coalesced/float32[2], float32[1, 2], float32[2]",
                                 "all_reduce_multi/4 x float32[2]",
                                 "all_reduce_coalesced/4 x float32[2]", "all_gather_single/", "/"));
  EXPECT_NE(hashes[1], hashes[2]);
  EXPECT_EQ(hashes[3], 0u) << "it goes together with all_gather of lists";
  EXPECT_EQ(hashes[4], 0u);
}

TEST(DerivedTest, BackendsLearnWhetherRanksCompareTheirCalls) {
  std::vector<MismatchCheck> checks;
  const auto note = [&](FakeBackend&, OpKind, const CallContext& context) {
    checks.push_back(context.mismatch_check);
    return absl::OkStatus();
  };
  Row row;
  EXPECT_TRUE(MakeFakeGroup(note)->BroadcastCoalesced(row.Several(0, 3), 0).ok());
  ASSERT_EQ(setenv("SYNCLINE_DEBUG", "off", 1), 0);
  auto group = MakeFakeGroup(note);
  ASSERT_EQ(unsetenv("SYNCLINE_DEBUG"), 0);
  EXPECT_TRUE(group->BroadcastCoalesced(row.Several(0, 3), 0).ok());
  EXPECT_THAT(checks, ElementsAre(MismatchCheck::kOn, MismatchCheck::kOff));
}

TEST(DerivedTest, ALongListIsToldInShortButComparedInFull) {
  std::vector<std::string> told;
  std::vector<uint64_t> hashes;
  auto group = MakeFakeGroup([&](FakeBackend&, OpKind, const CallContext& context) {
    told.push_back(DescribeTensors(*context.collective->user_tensors));
    hashes.push_back(context.collective->UserHash());
    return absl::OkStatus();
  });
  for (const int64_t last : {1, 3}) {
    Tensors tensors;
    for (int64_t i = 0; i < 20; ++i) {
      tensors.push_back(Tensor::Zeros(DType::kUInt8, {i < 19 ? i % 2 : last}));
    }
    EXPECT_TRUE(group->BroadcastCoalesced(tensors, 0).ok());
  }
  EXPECT_EQ(told[0],
            "uint8[0], uint8[1], uint8[0], uint8[1], uint8[0], uint8[1], uint8[0], uint8[1], 12 "
            "more");
  EXPECT_EQ(told[0], told[1]);
  EXPECT_NE(hashes[0], hashes[1]);
}

}  // namespace
}  // namespace syncline::group
