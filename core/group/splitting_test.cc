#include "core/group/splitting.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline::group {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int64_t> SizesOf(const Parts& parts) {
  std::vector<int64_t> sizes;
  for (const Tensor& part : parts.list()) sizes.push_back(part.numel());
  return sizes;
}

TEST(SplittingTest, PartsFollowEachOther) {
  // Few parts lie on the stack, many on the heap.
  for (const int size : {1, 4, 5, 33}) {
    for (const auto owner : {Parts::Owner::kCaller, Parts::Owner::kEachPart}) {
      const Tensor whole = Tensor::Zeros(DType::kInt16, {size * 3});
      const Tensor part = Tensor::Zeros(DType::kInt16, {3});
      Parts parts(size, owner);
      EXPECT_TRUE(parts.list().empty());
      ASSERT_TRUE(SplitEqually(whole, "input", part, "output", size, parts).ok());
      ASSERT_EQ(parts.list().size(), static_cast<size_t>(size));
      for (int r = 0; r < size; ++r) {
        EXPECT_EQ(parts.list()[r].data(), whole.data_as<int16_t>() + 3 * r);
        EXPECT_EQ(parts.list()[r].numel(), 3);
      }
    }
  }
}

TEST(SplittingTest, RowsAreSplitAsIsSaid) {
  const Tensor whole = Tensor::Zeros(DType::kFloat32, {6, 2});
  Parts equal(3, Parts::Owner::kCaller);
  ASSERT_TRUE(SplitRows(whole, "input", {}, 3, equal).ok());
  EXPECT_THAT(SizesOf(equal), ElementsAre(4, 4, 4));
  Parts unequal(3, Parts::Owner::kEachPart);
  ASSERT_TRUE(SplitRows(whole, "input", {0, 5, 1}, 3, unequal).ok());
  EXPECT_THAT(SizesOf(unequal), ElementsAre(0, 10, 2));
  EXPECT_EQ(unequal.list()[2].data(), whole.data_as<float>() + 10);
  Parts empty(2, Parts::Owner::kCaller);
  ASSERT_TRUE(SplitRows(Tensor::Zeros(DType::kFloat32, {0, 2}), "input", {}, 2, empty).ok());
  EXPECT_THAT(SizesOf(empty), ElementsAre(0, 0));
}

TEST(SplittingTest, PartsKeepTheMemoryIfTheyAreToldTo) {
  auto whole = std::make_unique<Tensor>(Tensor::Zeros(DType::kInt8, {10}));
  const std::weak_ptr<void> memory = whole->owner();
  {
    Parts views(5, Parts::Owner::kCaller);
    ASSERT_TRUE(SplitRows(*whole, "input", {}, 5, views).ok());
    EXPECT_EQ(memory.use_count(), 1);
    Parts owners(5, Parts::Owner::kEachPart);
    ASSERT_TRUE(SplitRows(*whole, "input", {}, 5, owners).ok());
    whole = nullptr;
    EXPECT_EQ(memory.use_count(), 5);
  }
  EXPECT_TRUE(memory.expired());
}

TEST(SplittingTest, WhatDoesNotFitIsRefusedWithWhatWasAddedLetGo) {
  const Tensor whole = Tensor::Zeros(DType::kInt8, {10});
  const std::weak_ptr<void> memory = whole.owner();
  {
    Parts parts(3, Parts::Owner::kEachPart);
    const absl::Status status = SplitRows(whole, "input", {4, 4, 4}, 3, parts);
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument);
    EXPECT_THAT(status.message(), HasSubstr("add up to 10"));
  }
  EXPECT_EQ(memory.use_count(), 1);
  Parts parts(3, Parts::Owner::kCaller);
  EXPECT_THAT(SplitRows(whole, "input", {}, 3, parts).message(), HasSubstr("split equally"));
  EXPECT_THAT(SplitEqually(whole, "input", whole, "output", 3, parts).message(),
              HasSubstr("must have 3 times its elements"));
}

}  // namespace
}  // namespace syncline::group
