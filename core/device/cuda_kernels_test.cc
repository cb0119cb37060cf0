// What MakeCudaKernels and the kernels' launches do where the driver fails.
#include "core/device/cuda_kernels.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/device/cuda_driver.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};

const FakeCuda& Fake() { return FakeCuda::Get(); }

class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto driver = OpenCudaDriver();
    ASSERT_TRUE(driver.ok()) << driver.status();
    driver_ = *driver;
    ASSERT_EQ(driver_.cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuCtxPushCurrent(context_), CUDA_SUCCESS);
  }

  void TearDown() override {
    for (const CUdeviceptr address : allocated_) {
      EXPECT_EQ(driver_.cuMemFree(address), CUDA_SUCCESS);
    }
    CUcontext popped = nullptr;
    EXPECT_EQ(driver_.cuCtxPopCurrent(&popped), CUDA_SUCCESS);
    EXPECT_EQ(popped, context_);
    EXPECT_EQ(Fake().Counts().libraries, 0) << "a module is left loaded";
  }

  // Lets the next call of `function` fail, and expects an error that names it.
  void ExpectLoadError(const char* function, int nth, CUresult result, const std::string& text) {
    Fake().fail_next(function, nth, result);
    const int depth = Fake().context_depth();
    const auto kernels = MakeCudaKernels(driver_, kCuda0);
    EXPECT_EQ(KindOf(kernels.status()), ErrorKind::kBackend) << function << kernels.status();
    EXPECT_NE(kernels.status().message().find(function), std::string::npos) << kernels.status();
    EXPECT_NE(kernels.status().message().find(text), std::string::npos) << kernels.status();
    EXPECT_NE(kernels.status().message().find("cuda:0"), std::string::npos) << kernels.status();
    EXPECT_EQ(Fake().context_depth(), depth) << function;
    Fake().fail_next(function, 0, 0);
  }

  // Memory of the device for as long as the test, of zeros.
  void* Allocate(size_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(driver_.cuMemAlloc(&address, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemsetD8Async(address, 0, bytes, nullptr), CUDA_SUCCESS);
    allocated_.push_back(address);
    return reinterpret_cast<void*>(address);
  }

  // Waits until the work on the default stream has ended.
  void AwaitDevice() {
    CUevent end = nullptr;
    ASSERT_EQ(driver_.cuEventCreate(&end, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuEventRecord(end, nullptr), CUDA_SUCCESS);
    const Deadline deadline(absl::Seconds(60));
    CUresult state = CUDA_ERROR_NOT_READY;
    while (state == CUDA_ERROR_NOT_READY && !deadline.Expired()) {
      state = driver_.cuEventQuery(end);
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(state, CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuEventDestroy(end), CUDA_SUCCESS);
  }

  CudaDriver driver_;
  CUcontext context_ = nullptr;
  std::vector<CUdeviceptr> allocated_;
};

TEST_F(CudaKernelsTest, ErrorsOfTheDriverWhileLoadingAreNamed) {
  ExpectLoadError("cuDeviceGet", 1, CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE");
  ExpectLoadError("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_OUT_OF_MEMORY, "out of memory");
  for (int nth = 1; nth <= 3; ++nth) {
    ExpectLoadError("cuDeviceGetAttribute", nth, CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN");
  }
  ExpectLoadError("cuModuleLoadData", 1, CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
  ExpectLoadError("cuModuleGetFunction", 1, CUDA_ERROR_NOT_FOUND, "syncline_copy_few");
  ExpectLoadError("cuModuleGetFunction", 5, CUDA_ERROR_OUT_OF_MEMORY, "syncline_");
}

TEST_F(CudaKernelsTest, ADriverThatIsTooOldIsUnsupported) {
  driver_.cuDriverGetVersion = +[](int* version) {
    *version = 12090;
    return CUDA_SUCCESS;
  };
  const auto kernels = MakeCudaKernels(driver_, kCuda0);
  EXPECT_EQ(KindOf(kernels.status()), ErrorKind::kUnsupported) << kernels.status();
  EXPECT_NE(kernels.status().message().find("R580"), std::string::npos) << kernels.status();
  EXPECT_NE(kernels.status().message().find("12.9"), std::string::npos) << kernels.status();
}

TEST_F(CudaKernelsTest, ADriverWithoutKernelsIsUnsupported) {
  driver_.cuLaunchKernel = nullptr;
  const auto kernels = MakeCudaKernels(driver_, kCuda0);
  EXPECT_EQ(KindOf(kernels.status()), ErrorKind::kUnsupported) << kernels.status();
}

TEST_F(CudaKernelsTest, ADeviceThatIsTooOldIsUnsupported) {
  driver_.cuDeviceGetAttribute = +[](int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 7 : 5;
    return CUDA_SUCCESS;
  };
  const auto kernels = MakeCudaKernels(driver_, kCuda0);
  EXPECT_EQ(KindOf(kernels.status()), ErrorKind::kUnsupported) << kernels.status();
  EXPECT_NE(kernels.status().message().find("7.5"), std::string::npos) << kernels.status();
}

TEST_F(CudaKernelsTest, AFailedLaunchNamesTheKernelAndLeavesTheContextAsItWas) {
  const auto made = MakeCudaKernels(driver_, kCuda0);
  ASSERT_TRUE(made.ok()) << made.status();
  const Kernels& kernels = **made;
  const Stream stream = {kCuda0, nullptr};
  void* const a = Allocate(16);
  const void* const b = Allocate(16);
  const std::vector<CopySpan> copies = {{a, b, 16}};
  const void* const inputs[] = {a, b};
  const auto calls = [&](int which) {
    switch (which) {
      case 0:
        return kernels.CopyMany(copies, stream);
      case 1:
        return kernels.Reduce(DType::kFloat32, ReduceOp::kSum, a, inputs, 4, stream);
      case 2:
        return kernels.Scale(DType::kFloat32, a, 2, 4, stream);
      case 3:
        return kernels.Divide(DType::kFloat32, a, 2, 4, stream);
      default:
        return kernels.Convert(DType::kFloat16, a, DType::kFloat32, b, 4, stream);
    }
  };
  const char* const names[] = {"syncline_copy_few", "syncline_reduce_few_float32",
                               "syncline_scale_float32", "syncline_divide_float32",
                               "syncline_convert_float32_to_float16"};
  const int depth = Fake().context_depth();
  for (int which = 0; which < 5; ++which) {
    for (const auto& [function, result] :
         {std::pair<const char*, int>{"cuLaunchKernel", CUDA_ERROR_LAUNCH_FAILED},
          {"cuCtxPushCurrent_v2", CUDA_ERROR_INVALID_CONTEXT}}) {
      Fake().fail_next(function, 1, result);
      const absl::Status status = calls(which);
      EXPECT_EQ(KindOf(status), ErrorKind::kBackend) << status;
      if (result == CUDA_ERROR_LAUNCH_FAILED) {
        EXPECT_NE(status.message().find(names[which]), std::string::npos) << status;
        EXPECT_NE(status.message().find("CUDA_ERROR_LAUNCH_FAILED"), std::string::npos) << status;
      }
      EXPECT_EQ(Fake().context_depth(), depth);
    }
    EXPECT_TRUE(calls(which).ok()) << "after a failure";
  }
  AwaitDevice();
}

TEST_F(CudaKernelsTest, NothingToDoLaunchesNothing) {
  const auto made = MakeCudaKernels(driver_, kCuda0);
  ASSERT_TRUE(made.ok()) << made.status();
  const Kernels& kernels = **made;
  const Stream stream = {kCuda0, nullptr};
  const int64_t launches = Fake().calls("cuLaunchKernel");
  float a[4] = {};
  const void* const inputs[] = {a, a};
  const std::vector<CopySpan> copies = {{a, nullptr, 0}, {a, a, sizeof(a)}};
  EXPECT_TRUE(kernels.CopyMany({}, stream).ok());
  EXPECT_TRUE(kernels.CopyMany(copies, stream).ok());
  EXPECT_TRUE(kernels.Reduce(DType::kFloat32, ReduceOp::kSum, a, inputs, 0, stream).ok());
  EXPECT_TRUE(
      kernels.Reduce(DType::kFloat32, ReduceOp::kAvg, a, absl::MakeSpan(inputs, 1), 4, stream)
          .ok());
  EXPECT_TRUE(kernels.Scale(DType::kFloat32, a, 2, 0, stream).ok());
  EXPECT_TRUE(kernels.Divide(DType::kFloat32, a, 1, 4, stream).ok());
  EXPECT_TRUE(kernels.Convert(DType::kFloat32, a, DType::kFloat32, a, 4, stream).ok());
  EXPECT_EQ(Fake().calls("cuLaunchKernel"), launches);
}

}  // namespace
}  // namespace syncline::device
