#include "syncline/dlpack.h"

#include <dlpack/dlpack.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

// A managed tensor as another library would make it; counts how often it is freed.
class Foreign {
 public:
  Foreign() {
    managed.dl_tensor.data = values;
    managed.dl_tensor.device = {kDLCPU, 0};
    managed.dl_tensor.ndim = 2;
    managed.dl_tensor.dtype = {kDLInt, 32, 1};
    managed.dl_tensor.shape = shape;
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) {
      ++static_cast<Foreign*>(self->manager_ctx)->deleted;
    };
  }

  int32_t values[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {1, 2};
  DLManagedTensor managed = {};
  int deleted = 0;
};

void ExpectRefused(Foreign* foreign, const std::string& message) {
  const absl::StatusOr<Tensor> tensor = FromDLPack(&foreign->managed);
  ASSERT_FALSE(tensor.ok());
  EXPECT_EQ(KindOf(tensor.status()), ErrorKind::kArgument);
  EXPECT_THAT(std::string(tensor.status().message()), HasSubstr(message));
  EXPECT_EQ(foreign->deleted, 1);
}

TEST(DLPackTest, AnImportedTensorSharesTheMemoryAndFreesItWithItsLastView) {
  Foreign foreign;
  absl::StatusOr<Tensor> tensor = FromDLPack(&foreign.managed);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->data(), foreign.values);
  EXPECT_EQ(tensor->ToString(), "int32[2, 3] on cpu");
  EXPECT_TRUE(tensor->is_contiguous());
  EXPECT_EQ(tensor->access(), Access::kReadWrite);
  Tensor slice = tensor->Slice(0, 2);
  *tensor = Tensor();
  EXPECT_EQ(foreign.deleted, 0);
  slice = Tensor();
  EXPECT_EQ(foreign.deleted, 1);
}

TEST(DLPackTest, StridesAndTheOffsetInBytesAreHonoured) {
  Foreign foreign;
  foreign.shape[1] = 2;
  foreign.managed.dl_tensor.strides = foreign.strides;
  foreign.managed.dl_tensor.byte_offset = 8;
  const absl::StatusOr<Tensor> tensor = FromDLPack(&foreign.managed, Access::kReadOnly);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->data(), foreign.values + 2);
  EXPECT_EQ(tensor->strides(), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(tensor->is_contiguous());
  EXPECT_EQ(tensor->access(), Access::kReadOnly);
}

TEST(DLPackTest, AScalarAndAnEmptyTensorAreImported) {
  Foreign scalar;
  scalar.managed.dl_tensor.ndim = 0;
  scalar.managed.dl_tensor.shape = nullptr;
  EXPECT_EQ(FromDLPack(&scalar.managed)->numel(), 1);
  EXPECT_EQ(scalar.deleted, 1);
  Foreign empty;
  empty.shape[0] = 0;
  empty.managed.dl_tensor.data = nullptr;
  empty.managed.dl_tensor.byte_offset = 4;
  const absl::StatusOr<Tensor> tensor = FromDLPack(&empty.managed);
  EXPECT_EQ(tensor->numel(), 0);
  EXPECT_EQ(tensor->data(), nullptr);
}

TEST(DLPackTest, ATensorWithoutDeleterIsImported) {
  Foreign foreign;
  foreign.managed.deleter = nullptr;
  EXPECT_TRUE(FromDLPack(&foreign.managed).ok());
}

TEST(DLPackTest, WhatIsNotKnownIsRefusedAndFreedAtOnce) {
  {
    Foreign lanes;
    lanes.managed.dl_tensor.dtype.lanes = 4;
    ExpectRefused(&lanes, "4 lanes");
  }
  {
    Foreign bits;
    bits.managed.dl_tensor.dtype.bits = 4;
    ExpectRefused(&bits, "4 bits");
  }
  {
    Foreign device;
    device.managed.dl_tensor.device.device_type = kDLVulkan;
    ExpectRefused(&device, "device type 7");
  }
  {
    Foreign negative;
    negative.shape[1] = -3;
    ExpectRefused(&negative, "negative dimension");
  }
  {
    Foreign huge;
    huge.shape[0] = huge.shape[1] = int64_t{1} << 32;
    ExpectRefused(&huge, "address space");
  }
}

TEST(DLPackTest, EveryElementTypeSurvivesTheRoundTrip) {
  for (const DType dtype : AllDTypes()) {
    const Tensor tensor = Tensor::Zeros(dtype, {2, 3});
    const absl::StatusOr<Tensor> back = FromDLPack(ToDLPack(tensor));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->dtype(), dtype);
    EXPECT_EQ(back->data(), tensor.data());
    EXPECT_EQ(back->shape(), tensor.shape());
    EXPECT_EQ(back->strides(), tensor.strides());
  }
}

TEST(DLPackTest, FloatsOfEightBitsHaveTheCodesOfDLPack) {
  const std::pair<DType, uint8_t> cases[] = {{DType::kFloat8E4M3, uint8_t{10}},
                                             {DType::kFloat8E5M2, uint8_t{12}}};
  for (const auto& [dtype, code] : cases) {
    DLManagedTensor* const managed = ToDLPack(Tensor::Zeros(dtype, {3}));
    const DLDataType exported = managed->dl_tensor.dtype;
    managed->deleter(managed);
    EXPECT_EQ(exported.code, code) << Name(dtype);
    EXPECT_EQ(exported.bits, 8) << Name(dtype);
    EXPECT_EQ(exported.lanes, 1) << Name(dtype);
  }
  Foreign other;  // float8_e4m3fnuz, which has another zero.
  other.managed.dl_tensor.dtype = {11, 8, 1};
  ExpectRefused(&other, "code 11");
}

TEST(DLPackTest, ADeviceSurvivesTheRoundTrip) {
  char memory[4];
  const Tensor tensor(memory, DType::kUInt8, {4}, {}, Device{DeviceType::kCuda, 1});
  const absl::StatusOr<Tensor> back = FromDLPack(ToDLPack(tensor));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->device(), tensor.device());
}

TEST(DLPackTest, AnExportedTensorKeepsTheMemoryUntilItIsFreed) {
  Tensor tensor = Tensor::Zeros(DType::kFloat32, {4});
  const std::weak_ptr<void> memory = tensor.owner();
  DLManagedTensor* const managed = ToDLPack(tensor);
  tensor = Tensor();
  EXPECT_FALSE(memory.expired());
  managed->deleter(managed);
  EXPECT_TRUE(memory.expired());
}

}  // namespace
}  // namespace syncline
