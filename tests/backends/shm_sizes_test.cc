// Backend shm with more ranks than it is made for, and with the smallest buffers.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/operations.h"
#include "tests/support/page_trap.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank, int size) {
  return BackendRegistry::Make("shm", OnLoopback(std::move(store), rank, size, kTimeout));
}

// Those in which a rank has a block for each other: the others do not depend on how many there are.
TEST(ShmSizesTest, BlocksForMoreThan256RanksArrive) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "what ThreadSanitizer keeps of 257 mappings takes more memory than hosts have";
#endif
  constexpr int kRanks = 257;
  std::vector<Spec> specs;
  for (OpKind kind : {OpKind::kScatter, OpKind::kReduceScatter, OpKind::kAllToAll}) {
    Spec spec{kind};
    spec.root = HasRoot(kind) ? 256 : 0;
    specs.push_back(spec);
  }
  const auto store = std::make_shared<HashStore>();
  const auto run = [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, kRanks));
    uint64_t sequence = 0;
    for (const Spec& spec : specs) {
      const Collective operation = Build(spec, rank, kRanks);
      const CallContext context = {sequence++, Deadline(kTimeout)};
      SYNCLINE_RETURN_IF_ERROR(RunAndWait(*backend, operation, context).status());
      SYNCLINE_RETURN_IF_ERROR(Annotate(CheckDone(spec, operation, rank, kRanks), spec.ToString()));
    }
    return absl::OkStatus();
  };
  for (const absl::Status& status : RunRanks(kRanks, run, kTimeout)) {
    ASSERT_TRUE(status.ok()) << status;
  }
}

// Memory of whole pages.
class Pages {
 public:
  explicit Pages(int count)
      : size_(count * sysconf(_SC_PAGESIZE)),
        data_(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~Pages() { munmap(data_, size_); }

  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  void* data() const { return data_; }

 private:
  const size_t size_;
  void* const data_;
};

// Where all that is short fits the same two buffers, which take turns.
TEST(ShmSizesTest, AnAllToAllLeavesTheBuffersOfTheOneBeforeAlone) {
  constexpr int kRanks = 3, kSlow = 2;
  constexpr int64_t kCount = 512;
  ASSERT_EQ(setenv("SYNCLINE_SHM_TUNING", "4096,32768,524288", 1), 0);
  const auto store = std::make_shared<HashStore>();
  const Pages page(1);
  std::unique_ptr<PageTrap> trap;
  Countdown ready(kRanks + 1), have_called(kRanks - 1), given_up(kRanks - 1);
  const auto run = [&](int rank) -> absl::Status {
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(store, rank, kRanks));
    // The slow rank is held when it takes what rank 0 has for it; rank 1's comes after that.
    std::vector<Tensor> inputs, outputs;
    for (int r = 0; r < kRanks; ++r) {
      inputs.push_back(Tensor::Zeros(DType::kUInt8, {kCount}));
      outputs.push_back(rank == kSlow && r == 0 ? Tensor(page.data(), DType::kUInt8, {kCount})
                                                : Tensor::Zeros(DType::kUInt8, {kCount}));
    }
    const auto call = [&](uint64_t sequence, absl::Duration timeout) {
      for (const Tensor& input : inputs) std::memset(input.data(), 1 + sequence, input.nbytes());
      return RunAndWait(*backend, Collective::AllToAll(outputs, inputs),
                        {sequence, Deadline(timeout)})
          .status();
    };
    if (rank == kSlow) trap = std::make_unique<PageTrap>(page.data());
    ready.StepAndWait();
    SYNCLINE_RETURN_IF_ERROR(call(0, kTimeout));
    if (rank != kSlow) {
      have_called.StepAndWait();  // What fails would fail the call for who is still in it.
      // Stages what it has, and waits in vain.
      EXPECT_FALSE(call(1, absl::Milliseconds(100)).ok());
      given_up.Step();
      return absl::OkStatus();
    }
    for (const Tensor& output : outputs) {
      for (int64_t i = 0; i < kCount; ++i) {
        const int value = output.data_as<uint8_t>()[i];
        if (value != 1) return absl::InternalError(absl::StrCat("byte ", i, " is ", value));
      }
    }
    return absl::OkStatus();
  };
  const auto conduct = [&] {
    ready.StepAndWait();
    trap->AwaitHeld();
    given_up.Wait();
    trap->Release();
    return absl::OkStatus();
  };
  for (const absl::Status& status :
       RunRanks(kRanks + 1, [&](int rank) { return rank < kRanks ? run(rank) : conduct(); })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  unsetenv("SYNCLINE_SHM_TUNING");
}

}  // namespace
}  // namespace syncline
