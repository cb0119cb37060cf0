#include "syncline/shared_memory.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor/segment.h"
#include "core/tensor/shared_place.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kCount = 10'000;

Tensor Made(int64_t count = kCount) { return EmptyShared(DType::kFloat32, {count}).value(); }

// Pages of 512 bytes that the memory takes.
int64_t BlocksOf(int descriptor) {
  struct stat status;
  return fstat(descriptor, &status) == 0 ? status.st_blocks : -1;
}

TEST(EmptySharedTest, IsAnAlignedTensorOfZerosThatCanBeWritten) {
  const Tensor tensor = EmptyShared(DType::kInt16, {3, 5, 1}).value();
  EXPECT_EQ(tensor.ToString(), "int16[3, 5, 1] on cpu");
  EXPECT_TRUE(tensor.is_contiguous());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  auto* const elements = tensor.data_as<int16_t>();
  EXPECT_EQ(std::count(elements, elements + 15, 0), 15);
  elements[14] = 7;
}

TEST(EmptySharedTest, EveryShapeServes) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0}, {2, 0, 3}, {1}, {100'003}}) {
    const auto tensor = EmptyShared(DType::kComplex128, shape);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->shape(), absl::MakeConstSpan(shape));
    EXPECT_EQ(FindShared(tensor->data(), tensor->nbytes()).has_value(), tensor->numel() > 0);
  }
}

TEST(MapSharedTest, TheSameSegmentIsMappedOnceAndFoundByItsAddress) {
  const int descriptor = Segment::Write(kCount, {{0, {"abc", 3}}}).value();
  const int another = dup(descriptor);
  Tensor first = MapShared(descriptor, kCount).value();
  const Tensor second = MapShared(another, kCount).value();
  EXPECT_EQ(first.data(), second.data());
  EXPECT_EQ(fcntl(another, F_GETFD), -1);
  EXPECT_EQ(first.nbytes(), size_t{kCount});
  const auto place = FindShared(first.data_as<char>() + 7, 9);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(place->offset, 7u);
  const int own = dup(place->descriptor);
  first = Tensor();
  EXPECT_EQ(second.data_as<char>()[2], 'c');
  EXPECT_EQ(KindOf(MapShared(own, kCount + 1).status()), ErrorKind::kBackend);
}

TEST(MapSharedTest, OnlySealedSegmentsAreMapped) {
  EXPECT_FALSE(MapShared(-1, 1).ok());
  EXPECT_FALSE(MapShared(open("/dev/zero", O_RDWR | O_CLOEXEC), 1).ok());
}

TEST(MapSharedTest, ContentsOutliveTheOwnerIfTheyAreKept) {
  for (const bool kept : {false, true}) {
    Tensor tensor = Made();
    tensor.data_as<float>()[5] = 3;
    const int descriptor = dup(FindShared(tensor.data(), tensor.nbytes())->descriptor);
    if (kept) KeepContents(tensor.data());
    tensor = Tensor();
    const Tensor mapped = MapShared(descriptor, 4 * kCount).value();
    EXPECT_EQ(mapped.data_as<float>()[5], kept ? 3 : 0);
  }
}

TEST(EmptySharedTest, WhatCannotBeIsAnErrorThatSaysWhy) {
  EXPECT_EQ(KindOf(EmptyShared(DType::kInt8, {-1}).status()), ErrorKind::kArgument);
  const auto too_large = EmptyShared(DType::kFloat32, {int64_t{1} << 44}).status();
  EXPECT_EQ(KindOf(too_large), ErrorKind::kBackend);
  EXPECT_THAT(std::string(too_large.message()),
              AllOf(HasSubstr("float32[17592186044416]"), HasSubstr("68719476736 KiB")));
  // Not much more than there is: ThreadSanitizer leaves little room for mappings.
  const int64_t twice = 2 * int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const auto more_than_there_is = EmptyShared(DType::kInt8, {twice}).status();
  EXPECT_EQ(KindOf(more_than_there_is), ErrorKind::kBackend);
  EXPECT_THAT(std::string(more_than_there_is.message()),
              AllOf(HasSubstr(absl::StrCat(twice / 1024, " KiB")), HasSubstr("KiB available")));
}

TEST(EmptySharedTest, WantOfDescriptorsIsAnError) {
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none = {0, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto tensor = EmptyShared(DType::kInt8, {1});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(KindOf(tensor.status()), ErrorKind::kBackend);
}

TEST(FindSharedTest, AllBytesOfATensorAreFoundByTheirAddress) {
  const Tensor tensor = Made(), other = Made();
  const auto location = FindShared(tensor.data(), tensor.nbytes()).value();
  EXPECT_EQ(location.offset, 0u);
  EXPECT_EQ(location.size, tensor.nbytes());
  const Tensor slice = tensor.Slice(100, 50);
  const auto part = FindShared(slice.data(), slice.nbytes()).value();
  EXPECT_EQ(part.memory, location.memory);
  EXPECT_EQ(part.offset, 400u);
  EXPECT_NE(FindShared(other.data(), 1)->memory, location.memory);
}

TEST(FindSharedTest, NothingElseIsFound) {
  int value = 0;
  EXPECT_FALSE(FindShared(&value, sizeof(value)).has_value());
  const Tensor tensor = Made();
  EXPECT_FALSE(FindShared(&value, sizeof(value)).has_value());
  EXPECT_FALSE(FindShared(tensor.data(), tensor.nbytes() + 1).has_value());
  EXPECT_FALSE(FindShared(tensor.data_as<char>() - 1, 1).has_value());
  EXPECT_FALSE(FindShared(tensor.data_as<char>() + tensor.nbytes(), 1).has_value());
}

TEST(FindSharedTest, ThePlaceIsWhereOthersSeeTheElements) {
  const Tensor tensor = Made();
  const auto location = FindShared(tensor.data(), tensor.nbytes()).value();
  const Segment theirs = Segment::MapToRead(dup(location.descriptor), location.size).value();
  EXPECT_TRUE(theirs.identity() == location.identity);
  tensor.data_as<float>()[kCount - 1] = 2.5;
  EXPECT_EQ(reinterpret_cast<const float*>(theirs.data())[kCount - 1], 2.5);
  EXPECT_NE(fcntl(location.descriptor, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(ftruncate(location.descriptor, 0), 0);
}

TEST(FindSharedTest, ATensorIsKnownUntilItsLastViewIsGoneAndNeverTakenForALaterOne) {
  std::set<uint64_t> memories;
  for (int i = 0; i < 50; ++i) {
    Tensor tensor = Made();
    const Tensor view = tensor.Slice(0, 1);
    tensor = Tensor();
    const uint64_t memory = FindShared(view.data(), 4)->memory;
    EXPECT_TRUE(IsShared(memory));
    EXPECT_TRUE(memories.insert(memory).second);
  }
  const uint64_t freed = SharedMemoriesFreed();
  for (uint64_t memory : memories) EXPECT_FALSE(IsShared(memory));
  EXPECT_GE(freed, memories.size());
}

TEST(FindSharedTest, ThreadsMakeFindAndFreeTensors) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 100; ++i) {
        const Tensor tensor = Made(1);
        EXPECT_EQ(FindShared(tensor.data(), 4)->offset, 0u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(SharedMemoryTest, IsFreedWithTheLastViewThoughAPeerStillMapsIt) {
  Tensor tensor = Made();
  const auto location = FindShared(tensor.data(), tensor.nbytes()).value();
  const Segment theirs = Segment::MapToRead(dup(location.descriptor), location.size).value();
  EXPECT_GT(BlocksOf(theirs.descriptor()), 0);
  tensor = Tensor();
  EXPECT_EQ(BlocksOf(theirs.descriptor()), 0);
}

TEST(SharedMemoryTest, AForkedChildKeepsWhatItsParentFrees) {
  Tensor tensor = Made();
  tensor.data_as<float>()[0] = 4;
  int freed[2];
  ASSERT_EQ(pipe(freed), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    _exit(read(freed[0], &byte, 1) == 1 && tensor.data_as<float>()[0] == 4 ? 0 : 1);
  }
  tensor = Tensor();
  ASSERT_EQ(write(freed[1], "x", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(freed[0]);
  close(freed[1]);
}

}  // namespace
}  // namespace syncline::tensor
