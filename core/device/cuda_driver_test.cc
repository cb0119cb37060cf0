#include "core/device/cuda_driver.h"

#include <cstdlib>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

// The driver library that SYNCLINE_CUDA_LIBRARY names, for the duration of a test.
class NamedLibrary {
 public:
  explicit NamedLibrary(const std::string& path) {
    setenv("SYNCLINE_CUDA_LIBRARY", path.c_str(), 1);
  }
  ~NamedLibrary() { setenv("SYNCLINE_CUDA_LIBRARY", former_.c_str(), 1); }

 private:
  const std::string former_ = base::GetEnv("SYNCLINE_CUDA_LIBRARY").value_or("");
};

std::string Simulated(const std::string& name) {
  const std::string path = base::GetEnv("SYNCLINE_CUDA_LIBRARY").value_or("");
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), name);
}

TEST(CudaDriverTest, HasAllFunctionsOfALibraryThatHasThem) {
  const absl::StatusOr<CudaDriver> driver = OpenCudaDriver();
  ASSERT_TRUE(driver.ok()) << driver.status();
#define EXPECT_THERE(name, symbol, parameters) EXPECT_NE(driver->name, nullptr) << #symbol;
  SYNCLINE_CUDA_FUNCTIONS(EXPECT_THERE, EXPECT_THERE)
#undef EXPECT_THERE
}

TEST(CudaDriverTest, LeavesOutWhatAnOldDriverLacks) {
  const NamedLibrary old(Simulated("libfake_cuda_old.so"));
  const absl::StatusOr<CudaDriver> driver = OpenCudaDriver();
  ASSERT_TRUE(driver.ok()) << driver.status();
#define EXPECT_THERE(name, symbol, parameters) EXPECT_NE(driver->name, nullptr) << #symbol;
#define EXPECT_ABSENT(name, symbol, parameters) EXPECT_EQ(driver->name, nullptr) << #symbol;
  SYNCLINE_CUDA_FUNCTIONS(EXPECT_THERE, EXPECT_ABSENT)
#undef EXPECT_THERE
#undef EXPECT_ABSENT
  EXPECT_EQ(driver->Describe(CUDA_ERROR_OUT_OF_MEMORY), "CUDA's error 2");
}

TEST(CudaDriverTest, NamesTheEssentialFunctionThatALibraryLacks) {
  const std::string path = Simulated("libfake_cuda_poor.so");
  const NamedLibrary poor(path);
  const absl::Status status = OpenCudaDriver().status();
  EXPECT_EQ(KindOf(status), ErrorKind::kUnsupported);
  EXPECT_TRUE(absl::StrContains(status.message(), "cuEventQuery")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), path)) << status;
}

TEST(CudaDriverTest, SaysWhyTheLibraryThatIsNamedCannotBeOpened) {
  const NamedLibrary nowhere("/nowhere/libcuda.so.1");
  const absl::Status status = OpenCudaDriver().status();
  EXPECT_EQ(KindOf(status), ErrorKind::kUnsupported);
  for (const char* part : {"/nowhere/libcuda.so.1", "No such file", "SYNCLINE_CUDA_LIBRARY"}) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status;
  }
}

TEST(CudaDriverTest, SaysThatAFileIsNoLibrary) {
  const NamedLibrary text("/proc/self/status");
  const absl::Status status = OpenCudaDriver().status();
  EXPECT_EQ(KindOf(status), ErrorKind::kUnsupported);
  EXPECT_TRUE(absl::StrContains(status.message(), "/proc/self/status")) << status;
}

TEST(CudaDriverTest, LooksForTheDriverOfTheMachineIfNoneIsNamed) {
  const NamedLibrary empty("");
  const absl::StatusOr<CudaDriver> driver = OpenCudaDriver();
  if (driver.ok()) {
    EXPECT_EQ(driver->library, "libcuda.so.1");
  } else {
    EXPECT_EQ(KindOf(driver.status()), ErrorKind::kUnsupported);
    EXPECT_TRUE(absl::StrContains(driver.status().message(), "libcuda.so.1")) << driver.status();
  }
}

TEST(CudaDriverTest, AnErrorHasTheFunctionThePlaceAndTheDriversName) {
  const CudaDriver driver = *OpenCudaDriver();
  EXPECT_TRUE(driver.Check(CUDA_SUCCESS, "cuMemAlloc").ok());
  const absl::Status status = driver.Check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", "on cuda:3");
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_EQ(status.message(),
            "cuMemAlloc on cuda:3 failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  // One that is newer than the driver.
  EXPECT_EQ(driver.Check(static_cast<CUresult>(998), "cuMemAlloc").message(),
            "cuMemAlloc failed: CUDA's error 998");
}

}  // namespace
}  // namespace syncline::device
