#include "core/tensor/segment.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace {

// Until Linux 6.11 a signal undoes what a call has reserved so far: with a periodic one, a call
// that takes longer than the period never succeeds.
std::atomic<off_t> largest_uninterrupted{std::numeric_limits<off_t>::max()};
std::atomic<int> reservations{0};

}  // namespace

// In place of the C library's.
extern "C" int posix_fallocate(int descriptor, off_t offset, off_t size) {
  // The old kernel would go on for ever; a test does not.
  if (++reservations < 100'000 && size > largest_uninterrupted) return EINTR;
  return fallocate(descriptor, 0, offset, size) == 0 ? 0 : errno;
}

namespace syncline::tensor {
namespace {

using ::testing::HasSubstr;

constexpr size_t kSize = 1 << 20;

TEST(SegmentTest, IsZeroAndSeenByAllWhoMapIt) {
  Segment own = Segment::Create(kSize).value();
  EXPECT_TRUE(std::all_of(own.data(), own.data() + kSize, [](char c) { return c == 0; }));
  const Segment other = Segment::Map(dup(own.descriptor()), kSize).value();
  ASSERT_NE(own.data(), other.data());
  own.data()[kSize - 1] = 7;
  EXPECT_EQ(other.data()[kSize - 1], 7);
}

TEST(SegmentTest, IsWrittenInPartsWithoutBeingMapped) {
  const int descriptor = Segment::Write(kSize, {{3, {"abc", 3}}, {kSize - 2, {"yz", 2}}}).value();
  const Segment segment = Segment::Map(descriptor, kSize).value();
  EXPECT_EQ(std::string(segment.data(), 8), std::string("\0\0\0abc\0\0", 8));
  EXPECT_EQ(segment.data()[kSize - 3], 0);
  EXPECT_EQ(segment.data()[kSize - 1], 'z');
}

TEST(SegmentTest, WhatIsTooLargeToBeWrittenIsAnErrorWithSizes) {
  const auto descriptor = Segment::Write(size_t{1} << 50, {});
  EXPECT_EQ(KindOf(descriptor.status()), ErrorKind::kBackend);
  EXPECT_THAT(descriptor.status().message(), HasSubstr("KiB available"));
}

TEST(SegmentTest, StaysMappedWithoutItsDescriptorAndWhenMoved) {
  Segment first = Segment::Create(kSize).value();
  first.CloseDescriptor();
  EXPECT_EQ(first.descriptor(), -1);
  Segment second = std::move(first);
  second.data()[0] = 1;
  EXPECT_EQ(second.size(), kSize);
}

// Runs `body` in a new pid namespace whose sysctl vm.memfd_noexec is 2, which refuses memory that
// could be executed. Returns the exit status, or nothing where this user may not do that.
std::optional<int> RunWithoutExecutableMemory(int (*body)()) {
  constexpr int kMayNot = 77;
  const pid_t outer = fork();
  if (outer == 0) {
    if (unshare(CLONE_NEWPID) != 0) _exit(kMayNot);
    const pid_t inner = fork();
    if (inner == 0) {
      const int setting = open("/proc/sys/vm/memfd_noexec", O_WRONLY | O_CLOEXEC);
      if (setting < 0 || write(setting, "2", 1) != 1) _exit(kMayNot);
      _exit(body());
    }
    int status = 0;
    if (inner < 0 || waitpid(inner, &status, 0) != inner) _exit(kMayNot);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  int status = 0;
  if (waitpid(outer, &status, 0) != outer || !WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) == kMayNot) return std::nullopt;
  return WEXITSTATUS(status);
}

TEST(SegmentTest, IsMadeWhereMemoryMustNotBeExecutable) {
  const auto status = RunWithoutExecutableMemory([] {
    const absl::StatusOr<Segment> own = Segment::Create(kSize);
    if (!own.ok()) return 1;
    own->data()[0] = 7;
    const absl::StatusOr<Segment> other = Segment::Map(dup(own->descriptor()), kSize);
    return other.ok() && other->data()[0] == 7 ? 0 : 1;
  });
  if (!status.has_value()) GTEST_SKIP() << "needs a pid namespace and Linux 6.3";
  EXPECT_EQ(*status, 0);
}

TEST(SegmentTest, CannotShrinkUnderThoseWhoMapIt) {
  const Segment segment = Segment::Create(kSize).value();
  EXPECT_NE(ftruncate(segment.descriptor(), 0), 0);
}

TEST(SegmentTest, HasNoNameInAnyFileSystem) {
  const auto before = std::distance(std::filesystem::directory_iterator("/dev/shm"), {});
  const Segment segment = Segment::Create(kSize).value();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("/dev/shm"), {}), before);
}

TEST(SegmentTest, WantOfMemoryIsAnErrorThatSaysHowMuchWasAskedFor) {
  const auto segment = Segment::Create(size_t{1} << 52);
  EXPECT_EQ(KindOf(segment.status()), ErrorKind::kBackend);
  EXPECT_THAT(std::string(segment.status().message()), HasSubstr("KiB"));
}

TEST(SegmentTest, TakesMemoryOnlyForWhatIsReserved) {
  Segment segment = Segment::Create(kSize).value();
  const auto blocks = [&] {
    struct stat status = {};
    fstat(segment.descriptor(), &status);
    return static_cast<size_t>(status.st_blocks) * 512;
  };
  EXPECT_EQ(blocks(), 0u);
  EXPECT_TRUE(segment.Reserve(kSize / 2, kSize / 4).ok());
  EXPECT_EQ(blocks(), kSize / 4);
  segment.data()[kSize / 2] = 1;
  EXPECT_TRUE(segment.Reserve(0, kSize).ok());
  EXPECT_EQ(blocks(), kSize);
  EXPECT_EQ(segment.data()[kSize / 2], 1);
  segment.Populate();
  segment.Discard();
  EXPECT_EQ(blocks(), 0u);
}

TEST(SegmentTest, MoreThanThereIsCannotBeReserved) {
  // Not much more: ThreadSanitizer leaves little room for mappings.
  const size_t memory = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  Segment segment = Segment::Create(2 * memory).value();
  const absl::Status status = segment.Reserve(0, segment.size());
  EXPECT_EQ(KindOf(status), ErrorKind::kBackend);
  EXPECT_THAT(std::string(status.message()), HasSubstr("KiB available"));
  EXPECT_FALSE(segment.Reserve(segment.size(), 4096).ok());
}

TEST(SegmentTest, IsToldFromOthersByItsIdentity) {
  const Segment own = Segment::Create(kSize).value(), other = Segment::Create(kSize).value();
  const Segment same = Segment::MapToRead(dup(own.descriptor()), kSize).value();
  EXPECT_TRUE(same.identity() == own.identity());
  EXPECT_FALSE(other.identity() == own.identity());
}

TEST(SegmentTest, WhatCouldShrinkOrIsTooSmallIsNotMapped) {
  const int unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(unsealed, kSize), 0);
  EXPECT_THAT(std::string(Segment::Map(unsealed, kSize).status().message()),
              HasSubstr("no sealed segment"));
  const Segment segment = Segment::Create(kSize).value();
  EXPECT_FALSE(Segment::Map(dup(segment.descriptor()), 2 * kSize).ok());
}

TEST(SegmentTest, IsReservedThoughSignalsKeepComing) {
  Segment segment = Segment::Create(8 << 20).value();
  largest_uninterrupted = 64 << 10;
  const absl::Status status = segment.Reserve(0, segment.size());
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_LT(reservations.exchange(0), 1000);
  largest_uninterrupted = std::numeric_limits<off_t>::max();
  struct stat now = {};
  fstat(segment.descriptor(), &now);
  EXPECT_EQ(now.st_blocks * 512, 8 << 20);
}

}  // namespace
}  // namespace syncline::tensor
