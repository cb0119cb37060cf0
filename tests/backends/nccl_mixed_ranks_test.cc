// Backend nccl between ranks whose drivers, NCCLs and devices differ: all of them decide alike how
// a reduction is carried out, and whether. The program is its own worker.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "tests/backends/device_backend.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// What a rank finds on its machine.
struct Machine {
  int driver = 13000;
  int nccl = 23007;
  int capability = 90;
};

class Worker {
 public:
  Worker(int rank, int size, std::shared_ptr<Store> store) : rank_(rank), size_(size) {
    BackendConfig config = OnLoopback(std::move(store), rank, size, kTimeout);
    backend_ = MakeOnDevices("nccl", config).value();
  }

  void PrintAll() {
    std::vector<int> seeds = Upto(size_);
    const auto reduce = [&](const char* name, DType dtype, ReduceOp op, int64_t count) {
      const Tensor tensor = Numbers(dtype, count, rank_);
      absl::Status status = Run(Collective::AllReduce(tensor, op));
      if (status.ok()) status = CheckReduced(tensor, op, seeds);
      Print(name, status);
    };
    reduce("avg", DType::kInt32, ReduceOp::kAvg, 1001);
    reduce("int16", DType::kInt16, ReduceOp::kSum, 1001);
    const Tensor ones = Tensor::Zeros(DType::kFloat8E4M3, {9});
    for (int i = 0; i < 9; ++i) ones.data_as<uint8_t>()[i] = 0x38;
    Print("float8", Run(Collective::AllReduce(ones, ReduceOp::kMax)));
    // The group goes on.
    reduce("sum", DType::kFloat32, ReduceOp::kSum, 1001);
  }

 private:
  absl::Status Run(const Collective& call) {
    const Deadline deadline(kTimeout);
    CallContext context = {sequence_++, deadline};
    context.collective = &call;
    SYNCLINE_ASSIGN_OR_RETURN(const Completion completion, backend_->Run({call}, context));
    return WaitFor(completion, call, deadline).status();
  }

  static void Print(const char* name, const absl::Status& status) {
    std::printf("%s: %s\n", name, status.ToString().c_str());
    std::fflush(stdout);
  }

  const int rank_, size_;
  std::shared_ptr<Backend> backend_;
  uint64_t sequence_ = 0;
};

// What the ranks have said of each call, in order; each rank on a machine of its own.
std::vector<std::vector<std::string>> RunOn(const std::vector<Machine>& machines) {
  const ScratchFolder folder;
  std::vector<std::unique_ptr<Process>> workers;
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    const Machine& machine = machines[rank];
    workers.push_back(std::make_unique<Process>(std::vector<std::string>{
        "--worker", absl::StrCat(rank), absl::StrCat(machines.size()),
        absl::StrCat(folder.path(), "/store"), absl::StrCat(machine.driver),
        absl::StrCat(machine.nccl), absl::StrCat(machine.capability)}));
  }
  std::vector<std::vector<std::string>> calls(4);
  for (size_t rank = 0; rank < machines.size(); ++rank) {
    const std::vector<std::string> lines =
        absl::StrSplit(workers[rank]->Output(absl::Minutes(4)), '\n', absl::SkipEmpty());
    EXPECT_EQ(lines.size(), calls.size()) << "rank " << rank;
    for (size_t i = 0; i < calls.size() && i < lines.size(); ++i) calls[i].push_back(lines[i]);
  }
  return calls;
}

TEST(NcclMixedRanksTest, WithOneDriverThatIsTooOldForKernelsNoRankUsesThem) {
  Machine old;
  old.driver = 12040;
  for (const auto& machines :
       {std::vector<Machine>{{}, old}, std::vector<Machine>{old, {}}, {{}, {}, old}}) {
    const auto calls = RunOn(machines);
    const size_t without = machines[0].driver == old.driver ? 0 : machines.size() - 1;
    EXPECT_THAT(calls[0], Each("avg: OK"));
    EXPECT_THAT(calls[1], Each(AllOf(StartsWith("int16: UNIMPLEMENTED"), HasSubstr("R580"),
                                     HasSubstr(absl::StrCat("rank ", without, " (")))));
    EXPECT_THAT(calls[2], Each("float8: OK"));
    EXPECT_THAT(calls[3], Each("sum: OK"));
  }
}

TEST(NcclMixedRanksTest, FloatsOfEightBitsAreReducedIfEveryNcclCan) {
  Machine old;
  old.nccl = 22300;
  const auto calls = RunOn({{}, {}, old});
  EXPECT_THAT(calls[0], Each("avg: OK"));
  EXPECT_THAT(calls[1], Each("int16: OK"));
  EXPECT_THAT(calls[2], Each(AllOf(StartsWith("float8: UNIMPLEMENTED"), HasSubstr("rank 2 ("),
                                   HasSubstr("2.24"), HasSubstr("2.23.0"))));
  EXPECT_THAT(calls[3], Each("sum: OK"));
}

TEST(NcclMixedRanksTest, FloatsOfEightBitsAreReducedIfEveryDeviceCan) {
  Machine old;
  old.capability = 80;
  const auto calls = RunOn({{}, old});
  EXPECT_THAT(calls[0], Each("avg: OK"));
  EXPECT_THAT(calls[1], Each("int16: OK"));
  EXPECT_THAT(calls[2], Each(AllOf(StartsWith("float8: UNIMPLEMENTED"), HasSubstr("rank 1 ("),
                                   HasSubstr("9.0 or later"), HasSubstr("8.0"))));
  EXPECT_THAT(calls[3], Each("sum: OK"));
}

TEST(NcclMixedRanksTest, ADeviceThatIsTooOldForKernelsCountsForAllRanks) {
  Machine old;
  old.capability = 75;
  const auto calls = RunOn({{}, old});
  EXPECT_THAT(calls[0], Each("avg: OK"));
  EXPECT_THAT(calls[1], Each(AllOf(StartsWith("int16: UNIMPLEMENTED"), HasSubstr("rank 1 ("),
                                   HasSubstr("capability 8.0"), HasSubstr("7.5"))));
  EXPECT_THAT(calls[3], Each("sum: OK"));
}

int Work(char** argv) {
  int rank, size;
  if (!absl::SimpleAtoi(argv[2], &rank) || !absl::SimpleAtoi(argv[3], &size)) return 1;
  // Read when the devices and NCCL are first used.
  setenv("FAKE_CUDA_DRIVER_VERSION", argv[5], /*overwrite=*/1);
  setenv("FAKE_NCCL_VERSION", argv[6], /*overwrite=*/1);
  setenv("FAKE_CUDA_CAPABILITY", argv[7], /*overwrite=*/1);
  Worker(rank, size, FileStore::Open(argv[4]).value()).PrintAll();
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 8 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
