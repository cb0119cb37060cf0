#include "core/device/device_runtime.h"

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/device/device_tensor.h"
#include "core/device/testing/fake_cuda_env.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::device {
namespace {

constexpr Device kCuda0 = {DeviceType::kCuda, 0};
constexpr Device kCuda1 = {DeviceType::kCuda, 1};

Deadline Soon() { return Deadline(absl::Seconds(60)); }

// Before main(): the machine is asked once.
const bool has_two_devices = setenv("FAKE_CUDA_DEVICES", "2", 1) == 0;

DeviceRuntime& Runtime() { return **DeviceRuntime::Get(); }

std::vector<char> Contents(const void* address, size_t bytes, const Stream& stream) {
  std::vector<char> contents(bytes);
  EXPECT_TRUE(Runtime().Copy(contents.data(), address, bytes, stream).ok());
  EXPECT_TRUE(Runtime().Synchronize(stream, Soon()).ok());
  return contents;
}

TEST(DeviceRuntimeTest, HasTheDevicesAndTheVersionOfTheDriver) {
  ASSERT_TRUE(DeviceRuntime::Get().ok()) << DeviceRuntime::Get().status();
  EXPECT_TRUE(DeviceRuntime::IsLoaded());
  EXPECT_EQ(Runtime().device_count(), 2);
  EXPECT_EQ(Runtime().driver_version(), 13000);
}

TEST(DeviceRuntimeTest, WorkOfAStreamWaitsForAnEventOfAnother) {
  const auto first = *Runtime().MakeStream(kCuda0);
  const auto second = *Runtime().MakeStream(kCuda1);
  const auto memory = *Runtime().Allocate(kCuda0, 1000);
  const auto copy = *Runtime().Allocate(kCuda1, 1000);
  {
    const HeldStreams held(0);
    ASSERT_TRUE(Runtime().Fill(memory.get(), 7, 1000, *first).ok());
    const auto filled = *Runtime().Record(*first);
    EXPECT_FALSE(*filled->IsDone());
    ASSERT_TRUE(filled->EnqueueWait(*second).ok());
    ASSERT_TRUE(Runtime().Copy(copy.get(), memory.get(), 1000, *second).ok());
    const absl::Status status = Runtime().Synchronize(*second, Deadline(absl::Milliseconds(1)));
    EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  }
  EXPECT_EQ(Contents(copy.get(), 1000, *second), std::vector<char>(1000, 7));
}

}  // namespace
}  // namespace syncline::device
