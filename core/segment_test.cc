#include "core/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
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

TEST(SegmentTest, StaysMappedWithoutItsDescriptorAndWhenMoved) {
  Segment first = Segment::Create(kSize).value();
  first.CloseDescriptor();
  EXPECT_EQ(first.descriptor(), -1);
  Segment second = std::move(first);
  second.data()[0] = 1;
  EXPECT_EQ(second.size(), kSize);
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
  Segment segment = Segment::Create(size_t{1} << 42).value();
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

}  // namespace
}  // namespace syncline
