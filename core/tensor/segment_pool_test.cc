#include "core/tensor/segment_pool.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "core/tensor/shared_place.h"
#include "gtest/gtest.h"

namespace syncline::tensor {
namespace {

// Each test has a size of its own, as the pool is the process's.
constexpr size_t kSize = 100'000;

uint64_t InodeOf(int descriptor) {
  struct stat status = {};
  fstat(descriptor, &status);
  return status.st_ino;
}

Tensor Receive(int descriptor, size_t size) {
  return MapShared(descriptor, LeasedSize(size), LeaseKind::kUntilFreed).value();
}

TEST(SegmentPoolTest, ASegmentIsUsedAgainWhenItsReceiverHasFreedItAndNotBefore) {
  const int first = WriteLeased(kSize, {{0, {"first", 5}}}).value();
  const uint64_t inode = InodeOf(first);
  Tensor received = Receive(first, kSize);
  const int second = WriteLeased(kSize, {{0, {"other", 5}}}).value();
  EXPECT_NE(InodeOf(second), inode);
  close(second);  // Never received, so never used again.
  EXPECT_EQ(std::string(received.data_as<char>(), 5), "first");
  received = Tensor();
  const int third = WriteLeased(kSize, {{2, {"third", 5}}}).value();
  EXPECT_EQ(InodeOf(third), inode);
  received = Receive(third, kSize);
  EXPECT_EQ(std::string(received.data_as<char>() + 2, 5), "third");
}

TEST(SegmentPoolTest, AReceiverMapsASegmentOnceHoweverOftenItIsUsedAgain) {
  constexpr size_t kOwnSize = kSize + 4000;
  FreeIdleMappings();
  Tensor received = Receive(WriteLeased(kOwnSize, {{0, {"first", 5}}}).value(), kOwnSize);
  const void* const address = received.data();
  received = Tensor();
  EXPECT_EQ(IdleMappingCount(), 1u);
  received = Receive(WriteLeased(kOwnSize, {{0, {"again", 5}}}).value(), kOwnSize);
  EXPECT_EQ(received.data(), address);
  EXPECT_EQ(IdleMappingCount(), 0u);
  EXPECT_EQ(std::string(received.data_as<char>(), 5), "again");
  EXPECT_TRUE(FindShared(address, kOwnSize).has_value());
  received = Tensor();
  EXPECT_FALSE(FindShared(address, 1).has_value());
  const pid_t child = fork();
  if (child == 0) _exit(IdleMappingCount() == 0 ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(IdleMappingCount(), 1u);
  for (size_t i = 0; i < 40; ++i) {
    Receive(WriteLeased(kOwnSize + 100 * i, {}).value(), kOwnSize + 100 * i);
    EXPECT_LE(IdleMappingCount(), 16u);
  }
  FreeIdleMappings();
  EXPECT_EQ(IdleMappingCount(), 0u);
}

TEST(SegmentPoolTest, ASegmentThatIsHandedOnIsNotUsedAgain) {
  constexpr size_t kOwnSize = kSize + 1000;
  const int first = WriteLeased(kOwnSize, {}).value();
  const uint64_t inode = InodeOf(first);
  Tensor received = Receive(first, kOwnSize);
  KeepContents(received.data());
  received = Tensor();
  const int second = WriteLeased(kOwnSize, {}).value();
  EXPECT_NE(InodeOf(second), inode);
  close(second);
}

TEST(SegmentPoolTest, AReceiverThatHasForkedSinceKeepsItsSegment) {
  constexpr size_t kOwnSize = kSize + 2000;
  const int first = WriteLeased(kOwnSize, {}).value();
  const uint64_t inode = InodeOf(first);
  Tensor received = Receive(first, kOwnSize);
  const pid_t child = fork();
  if (child == 0) {
    received = Tensor();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  received = Tensor();
  const int second = WriteLeased(kOwnSize, {}).value();
  EXPECT_NE(InodeOf(second), inode);
  close(second);
}

TEST(SegmentPoolTest, AChildOfForkDoesNotWriteToItsParentsSegments) {
  constexpr size_t kOwnSize = kSize + 3000;
  const int first = WriteLeased(kOwnSize, {}).value();
  const uint64_t inode = InodeOf(first);
  Receive(first, kOwnSize);  // And frees it.
  const pid_t child = fork();
  if (child == 0) _exit(InodeOf(WriteLeased(kOwnSize, {}).value()) == inode ? 1 : 0);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(SegmentPoolTest, SegmentsOfEverySizeArriveWhole) {
  for (const size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{40 << 20}}) {
    const std::string bytes(size, 'x');
    const Tensor received = Receive(WriteLeased(size, {{0, bytes}}).value(), size);
    EXPECT_EQ(std::string(received.data_as<char>(), size), bytes);
  }
}

}  // namespace
}  // namespace syncline::tensor
