#include "core/tensor/memory.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncline::tensor {
namespace {

// The files of a host of 64 GiB, of which 32 are available.
class MemoryTest : public testing::Test {
 protected:
  MemoryTest() {
    Write("/proc/meminfo", "MemTotal: 67108864 kB\nMemFree: 1 kB\nMemAvailable: 33554432 kB\n");
  }
  ~MemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  // Of version 2.
  void WriteGroup(const std::string& group, const std::string& limit, int64_t usage,
                  int64_t cached = 0) const {
    const std::string folder = absl::StrCat("/sys/fs/cgroup", group, "/");
    Write(folder + "memory.max", limit + "\n");
    Write(folder + "memory.current", absl::StrCat(usage, "\n"));
    Write(folder + "memory.stat", absl::StrCat("anon 5\ninactive_file ", cached, "\nfile 7\n"));
  }

  const std::string root_ =
      absl::StrCat(testing::TempDir(), "/memory_",
                   testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(MemoryTest, WithoutLimitsItIsTheHosts) {
  EXPECT_EQ(AvailableMemory(root_).available, size_t{32} << 30);
  EXPECT_EQ(AvailableMemory(root_).owner, "this host");
  EXPECT_EQ(LargestMemory(root_).available, size_t{64} << 30);
  Write("/proc/self/cgroup", "0::/a\n");
  WriteGroup("/a", "max", 1000);
  EXPECT_EQ(AvailableMemory(root_).available, size_t{32} << 30);
}

TEST_F(MemoryTest, TheGroupsLimitCountsLessWhatIsInUseAndCannotBeDropped) {
  Write("/proc/self/cgroup", "0::/a\n");
  WriteGroup("/a", "10000", 7000, 500);
  for (const MemoryBudget& memory : {AvailableMemory(root_), LargestMemory(root_)}) {
    EXPECT_EQ(memory.available, 3500u);
    EXPECT_EQ(memory.owner, "control group '/a'");
  }
  WriteGroup("/a", "10000", 12000);
  EXPECT_EQ(AvailableMemory(root_).available, 0u);
}

TEST_F(MemoryTest, TheTightestOfTheGroupsAboveCounts) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  WriteGroup("/a/b/c", "max", 0);
  WriteGroup("/a/b", "9000", 1000);
  WriteGroup("/a", "10000", 4000);
  EXPECT_EQ(AvailableMemory(root_).available, 6000u);
  EXPECT_EQ(AvailableMemory(root_).owner, "control group '/a'");
}

TEST_F(MemoryTest, InAContainerTheLimitIsAtTheTop) {
  Write("/proc/self/cgroup", "0::/../../system.slice/docker-1\n");
  WriteGroup("", "10000", 4000);
  EXPECT_EQ(AvailableMemory(root_).available, 6000u);
  Write("/proc/self/cgroup", "0::/system.slice/docker-1\n");
  EXPECT_EQ(AvailableMemory(root_).available, 6000u);
  EXPECT_EQ(AvailableMemory(root_).owner, "control group '/'");
}

TEST_F(MemoryTest, TheFirstVersionOfGroupsIsKnown) {
  Write("/proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a\n0::/\n");
  const std::string folder = "/sys/fs/cgroup/memory";
  Write(folder + "/memory.limit_in_bytes", "9223372036854771712\n");
  Write(folder + "/memory.usage_in_bytes", "5000\n");
  Write(folder + "/a/memory.limit_in_bytes", "10000\n");
  Write(folder + "/a/memory.usage_in_bytes", "5000\n");
  Write(folder + "/a/memory.stat", "inactive_file 1\ntotal_inactive_file 1000\n");
  EXPECT_EQ(AvailableMemory(root_).available, 6000u);
}

TEST_F(MemoryTest, WhereNothingIsKnownThereIsNoLimit) {
  EXPECT_GT(AvailableMemory(root_ + "/nowhere").available, size_t{1} << 60);
}

TEST(ThisHostTest, HasMemory) {
  EXPECT_GT(AvailableMemory().available, 0u);
  EXPECT_LE(AvailableMemory().available, LargestMemory().available);
}

}  // namespace
}  // namespace syncline::tensor
