#include "backends/shm/segment.h"

#include <sys/mman.h>
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
