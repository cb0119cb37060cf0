#include "syncline/tensor.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline {
namespace {

Tensor View(std::vector<int64_t> shape, std::vector<int64_t> strides = {}) {
  static double memory[64];
  return Tensor(memory, DType::kFloat64, std::move(shape), std::move(strides));
}

TEST(TensorTest, ANewTensorIsAlignedAndZero) {
  const Tensor tensor = Tensor::Zeros(DType::kInt16, {3, 5});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  EXPECT_EQ(tensor.numel(), 15);
  EXPECT_EQ(tensor.nbytes(), 30u);
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(tensor.strides(), (std::vector<int64_t>{5, 1}));
  for (int i = 0; i < 15; ++i) EXPECT_EQ(tensor.data_as<int16_t>()[i], 0);
}

TEST(TensorTest, MemoryLivesAsLongAsTheLastViewOfIt) {
  std::weak_ptr<void> memory;
  Tensor slice;
  {
    const Tensor tensor = Tensor::Zeros(DType::kFloat32, {8});
    memory = tensor.owner();
    slice = tensor.Slice(2, 3);
  }
  EXPECT_FALSE(memory.expired());
  slice.data_as<float>()[2] = 1.0f;
  slice = Tensor();
  EXPECT_TRUE(memory.expired());
}

TEST(TensorTest, NoDimensionsMeanOneElement) {
  const Tensor scalar = Tensor::Zeros(DType::kFloat64, {});
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.nbytes(), 8u);
  EXPECT_TRUE(scalar.strides().empty());
  EXPECT_TRUE(scalar.is_contiguous());
  EXPECT_EQ(scalar.ToString(), "float64[] on cpu");
}

TEST(TensorTest, ADimensionOfZeroMeansNoElements) {
  const Tensor empty = Tensor::Zeros(DType::kFloat32, {3, 0, 2});
  EXPECT_EQ(empty.numel(), 0);
  EXPECT_EQ(empty.nbytes(), 0u);
  EXPECT_TRUE(empty.is_contiguous());
  EXPECT_EQ(Tensor().numel(), 0);
  EXPECT_TRUE(Tensor().is_contiguous());
  EXPECT_EQ(Tensor().ToString(), "uint8[0] on cpu");
}

TEST(TensorTest, ContiguousMeansWhatNumPyMeans) {
  EXPECT_TRUE(View({2, 3}, {3, 1}).is_contiguous());
  EXPECT_FALSE(View({2, 3}, {1, 2}).is_contiguous());  // Column-major.
  EXPECT_FALSE(View({2, 3}, {4, 1}).is_contiguous());  // Gaps between rows.
  EXPECT_FALSE(View({4}, {2}).is_contiguous());
  EXPECT_FALSE(View({4}, {-1}).is_contiguous());
  EXPECT_FALSE(View({4}, {0}).is_contiguous());
  // The stride of a dimension of size 1 is never used.
  EXPECT_TRUE(View({1, 3}, {77, 1}).is_contiguous());
  EXPECT_TRUE(View({3, 1}, {1, 77}).is_contiguous());
  EXPECT_TRUE(View({1, 1}, {-5, 0}).is_contiguous());
  // Nor is any stride of an empty tensor.
  EXPECT_TRUE(View({0, 3}, {9, 9}).is_contiguous());
}

TEST(TensorTest, ASliceIsAViewOfTheSameElements) {
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5};
  const Tensor slice = Tensor::Of(values).Slice(2, 3);
  EXPECT_EQ(slice.data(), values.data() + 2);
  EXPECT_EQ(slice.shape(), std::vector<int64_t>{3});
  EXPECT_EQ(slice.dtype(), DType::kInt32);
  EXPECT_EQ(Tensor::Of(values).Slice(6, 0).numel(), 0);
}

TEST(TensorTest, AReshapedTensorIsAViewOfTheSameElements) {
  std::vector<float> values(6);
  const Tensor matrix = Tensor::Of(values).Reshape({2, 3});
  EXPECT_EQ(matrix.data(), values.data());
  EXPECT_EQ(matrix.strides(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(matrix.ToString(), "float32[2, 3] on cpu");
}

TEST(TensorTest, ViewsKeepDeviceAndAccess) {
  char memory[4];
  const Tensor tensor(memory, DType::kUInt8, {4}, {}, Device{DeviceType::kCuda, 1}, nullptr,
                      Access::kReadOnly);
  for (const Tensor& view : {tensor.Slice(1, 2), tensor.Reshape({2, 2})}) {
    EXPECT_EQ(view.access(), Access::kReadOnly);
    EXPECT_EQ(view.device(), tensor.device());
  }
  EXPECT_EQ(tensor.ToString(), "uint8[4] on cuda:1");
}

TEST(TensorTest, AShapeThatNoMemoryCanHoldIsRefused) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(CheckShape(DType::kUInt8, {}).ok());
  EXPECT_TRUE(CheckShape(DType::kUInt8, {kMax}).ok());
  EXPECT_EQ(KindOf(CheckShape(DType::kInt16, {kMax})), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(CheckShape(DType::kUInt8, {int64_t{1} << 32, int64_t{1} << 31})),
            ErrorKind::kArgument);
  EXPECT_EQ(KindOf(CheckShape(DType::kUInt8, {3, -1})), ErrorKind::kArgument);
}

TEST(TensorDeathTest, BrokenRequirementsEndTheProcess) {
  EXPECT_DEATH(Tensor::Zeros(DType::kFloat32, {-1}), "negative dimension");
  EXPECT_DEATH(Tensor::Zeros(DType::kFloat32, {int64_t{1} << 62}), "address space");
  EXPECT_DEATH(View({4}).Slice(2, 3), "beyond the end");
  EXPECT_DEATH(View({4}, {2}).Slice(0, 1), "contiguous");
  EXPECT_DEATH(View({4}).Slice(-1, 2), "beyond the end");
  EXPECT_DEATH(View({4}).Reshape({5}), "another number of elements");
  EXPECT_DEATH(View({4}, {1, 1}), "one stride for each dimension");
}

TEST(TensorTest, MoreMemoryThanThereIsIsAnErrorThatSaysHowMuch) {
  const auto tensor = Tensor::TryZeros(DType::kFloat32, {int64_t{1} << 40, 1 << 16});
  EXPECT_EQ(KindOf(tensor.status()), ErrorKind::kBackend);
  EXPECT_THAT(std::string(tensor.status().message()),
              testing::HasSubstr("out of memory: cannot get 288230376151711744 bytes for a tensor "
                                 "float32[1099511627776, 65536]"));
  EXPECT_THROW(Tensor::Zeros(DType::kFloat32, {int64_t{1} << 58}), std::bad_alloc);
  EXPECT_EQ(Tensor::TryZeros(DType::kFloat32, {2, 3})->numel(), 6);
}

}  // namespace
}  // namespace syncline
