#include "launch/numa.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Numa = LaunchOptions::Numa;

// A made-up host below a folder: two sockets with two NUMA nodes each, a node of four cores with
// two SMT siblings each. The siblings of CPU i in 0-15 is i + 16. Two cores share a level-3 cache.
class NumaTest : public testing::Test {
 protected:
  NumaTest() {
    std::string folder = testing::TempDir() + "/numa-XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    root_ = folder;
    for (int cpu = 0; cpu < 32; ++cpu) {
      const int core = cpu % 16;
      const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu);
      Put(folder + "/topology/physical_package_id", absl::StrCat(core / 8));
      Put(folder + "/topology/thread_siblings_list", absl::StrCat(core, ",", core + 16));
      Put(folder + "/cache/index0/level", "1");
      Put(folder + "/cache/index0/shared_cpu_list", absl::StrCat(core, ",", core + 16));
      Put(folder + "/cache/index3/level", "3");
      const int first = core / 2 * 2;
      Put(folder + "/cache/index3/shared_cpu_list",
          absl::StrCat(first, "-", first + 1, ",", first + 16, "-", first + 17));
      allowed_.push_back(cpu);
    }
    for (int node = 0; node < 4; ++node) {
      Put(absl::StrCat("/sys/devices/system/node/node", node, "/cpulist"),
          absl::StrCat(node * 4, "-", node * 4 + 3, ",", node * 4 + 16, "-", node * 4 + 19));
    }
    Put("/sys/devices/system/node/online", "0-3");
  }
  ~NumaTest() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << "\n";
  }

  void PutNvidia(const std::string& address, int node, const std::string& uuid) {
    Put(absl::StrCat("/proc/driver/nvidia/gpus/", address, "/information"),
        "Model: \t\t Some\nGPU UUID: \t " + uuid);
    Put(absl::StrCat("/sys/bus/pci/devices/", address, "/numa_node"), absl::StrCat(node));
  }

  // GPUs 0 and 1 on node 1, GPU 2 on node 3, GPU 3 unknown.
  void PutFourGpus() {
    PutNvidia("0000:3b:00.0", 1, "GPU-aa");
    PutNvidia("0000:5e:00.0", 1, "GPU-bb");
    PutNvidia("0000:af:00.0", 3, "GPU-cc");
    PutNvidia("0000:d8:00.0", -1, "GPU-dd");
  }

  NumaTopology Read(const std::string& visible = "") {
    const absl::StatusOr<NumaTopology> topology = ReadTopology(root_, allowed_, visible);
    EXPECT_TRUE(topology.ok()) << topology.status();
    return *topology;
  }

  std::vector<std::vector<int>> Bind(Numa mode, int workers, const std::string& visible = "") {
    const auto bound = BindWorkers(Read(visible), mode, workers);
    EXPECT_TRUE(bound.ok()) << bound.status();
    return bound.ok() ? *bound : std::vector<std::vector<int>>(static_cast<size_t>(workers));
  }

  std::string root_;
  std::vector<int> allowed_;
};

TEST_F(NumaTest, ListsOfCpusAreRead) {
  EXPECT_THAT(ParseCpuList("0-2,8, 10-11\n"), ElementsAre(0, 1, 2, 8, 10, 11));
  EXPECT_THAT(ParseCpuList("5"), ElementsAre(5));
  EXPECT_THAT(ParseCpuList(""), IsEmpty());
  EXPECT_THAT(ParseCpuList("x"), IsEmpty());
}

TEST_F(NumaTest, WorkersWithoutGpusAreSpreadOverTheNodes) {
  const auto two = Bind(Numa::kNode, 2);
  EXPECT_THAT(two[0], ElementsAre(0, 1, 2, 3, 16, 17, 18, 19));
  EXPECT_THAT(two[1], ElementsAre(8, 9, 10, 11, 24, 25, 26, 27));
  const auto eight = Bind(Numa::kNode, 8);
  EXPECT_EQ(eight[0], eight[1]);  // Neighbours together.
  EXPECT_EQ(eight[6], eight[7]);
  EXPECT_THAT(eight[7], ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));
}

TEST_F(NumaTest, AWorkerGetsTheNodeOfItsGpu) {
  PutFourGpus();
  const auto bound = Bind(Numa::kNode, 4);
  EXPECT_THAT(bound[0], ElementsAre(4, 5, 6, 7, 20, 21, 22, 23));
  EXPECT_EQ(bound[1], bound[0]);
  EXPECT_THAT(bound[2], ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));
  EXPECT_THAT(bound[3], ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));  // Spread, as if it had none.
}

TEST_F(NumaTest, VisibleDevicesChooseTheGpus) {
  PutFourGpus();
  const auto numbers = Bind(Numa::kNode, 2, "2, 0");
  EXPECT_EQ(numbers[0][0], 12);
  EXPECT_EQ(numbers[1][0], 4);
  const auto uuids = Bind(Numa::kNode, 2, "GPU-cc,GPU-b");
  EXPECT_EQ(uuids[0][0], 12);
  EXPECT_EQ(uuids[1][0], 4);
  EXPECT_THAT(Read("9,MIG-x").gpu_nodes,
              ElementsAre(NumaTopology::kUnknown, NumaTopology::kUnknown));
}

TEST_F(NumaTest, GpusOfTheOtherMakerAreFoundByTheirPciAddresses) {
  for (const auto& [card, address, node] : std::vector<std::tuple<int, std::string, int>>{
           {128, "0000:c1:00.0", 0}, {129, "0000:21:00.0", 2}}) {
    const std::string device = "/sys/devices/pci0000/" + address;
    Put(device + "/vendor", "0x1002");
    Put(device + "/numa_node", absl::StrCat(node));
    const std::string drm = absl::StrCat(root_, "/sys/class/drm/renderD", card);
    std::filesystem::create_directories(drm);
    std::filesystem::create_directory_symlink(root_ + device, drm + "/device");
  }
  Put("/sys/class/drm/renderD130/device/vendor", "0x8086");
  EXPECT_THAT(Read().gpu_nodes, ElementsAre(2, 0));
}

TEST_F(NumaTest, ASocketHasAllItsNodes) {
  PutFourGpus();
  const auto bound = Bind(Numa::kSocket, 3);
  EXPECT_THAT(bound[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
  EXPECT_EQ(bound[2][0], 8);
  EXPECT_EQ(bound[2].size(), 16u);
}

TEST_F(NumaTest, ExclusiveSharesKeepSiblingsTogetherAndTheFirstGetTheRest) {
  allowed_ = {0, 1, 2, 16, 17, 18};  // Three cores of node 0.
  const auto bound = Bind(Numa::kExclusive, 2);
  EXPECT_THAT(bound[0], ElementsAre(0, 1, 16, 17));
  EXPECT_THAT(bound[1], ElementsAre(2, 18));
}

TEST_F(NumaTest, ExclusiveSharesAreThoseOfOneNodesWorkers) {
  PutFourGpus();
  const auto bound = Bind(Numa::kExclusive, 3);
  EXPECT_THAT(bound[0], ElementsAre(4, 5, 20, 21));
  EXPECT_THAT(bound[1], ElementsAre(6, 7, 22, 23));
  EXPECT_EQ(bound[2].size(), 8u);
}

TEST_F(NumaTest, TooFewCoresForExclusiveSharesAreAnError) {
  allowed_ = {0, 16};
  const auto bound = BindWorkers(Read(), Numa::kExclusive, 2);
  EXPECT_THAT(bound.status().message(),
              HasSubstr("NUMA node 0 has fewer cores (of 2 CPUs) than workers (2): none is left "
                        "for local rank 1"));
}

TEST_F(NumaTest, CoreComplexesAreTakenInTurnTheLargestFirst) {
  allowed_ = {0, 2, 3, 16, 18, 19};  // The cache of 0 and 1 has two CPUs, that of 2 and 3 four.
  const auto bound = Bind(Numa::kCoreComplex, 3);
  EXPECT_THAT(bound[0], ElementsAre(2, 3, 18, 19));
  EXPECT_THAT(bound[1], ElementsAre(0, 16));
  EXPECT_EQ(bound[2], bound[0]);
}

TEST_F(NumaTest, WithoutALevel3CacheANodeIsOneComplex) {
  std::filesystem::remove_all(root_ + "/sys/devices/system/cpu");
  const auto bound = Bind(Numa::kCoreComplex, 4);
  EXPECT_THAT(bound[1], ElementsAre(4, 5, 6, 7, 20, 21, 22, 23));
}

TEST_F(NumaTest, AGpuWhoseNodeIsOutOfReachIsAnError) {
  PutFourGpus();
  allowed_ = {0, 1};
  const auto bound = BindWorkers(Read(), Numa::kNode, 1);
  EXPECT_THAT(bound.status().message(), HasSubstr("may use no CPU of that node"));
}

TEST_F(NumaTest, AKernelWithoutNumaHasOneNode) {
  std::filesystem::remove_all(root_ + "/sys/devices/system/node");
  const auto bound = Bind(Numa::kNode, 3);
  EXPECT_EQ(bound[2].size(), 32u);
}

TEST_F(NumaTest, NoModeBindsNothing) {
  EXPECT_THAT(Bind(Numa::kNone, 2), ElementsAre(IsEmpty(), IsEmpty()));
}

TEST(AllowedCpusTest, ThisHostIsReadToo) {
  const std::vector<int> allowed = AllowedCpus();
  ASSERT_FALSE(allowed.empty());
  const absl::StatusOr<NumaTopology> topology = ReadTopology("", allowed, "");
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_EQ(topology->cpus.size(), allowed.size());
}

}  // namespace
}  // namespace syncline::launch
