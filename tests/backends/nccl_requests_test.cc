// What becomes of a communicator that a rank makes only because another one has asked for it, when
// that one dies or stops meanwhile: the first rank is in no call. The program is its own worker.
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/device/device_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/device_memory.h"
#include "syncline/error_origin.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "tests/backends/fake_nccl_control.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(60);

device::DeviceRuntime& Runtime() { return **device::DeviceRuntime::Get(); }

// One rank of two.
class Rank {
 public:
  Rank(const std::string& store, int rank)
      : stream_(Runtime().MakeStream({DeviceType::kCuda, rank}).value()),
        tensor_(EmptyOnDevice({DeviceType::kCuda, rank}, DType::kInt32, {9}).value()) {
    BackendConfig config = OnLoopback(FileStore::Open(store).value(), rank, 2, kTimeout);
    backend_ = BackendRegistry::Make("nccl", config).value();
  }

  const Tensor& tensor() const { return tensor_; }

  absl::Status Run(const Collective& call, absl::Duration timeout) {
    CallerStream caller = {*stream_, Runtime().Record(*stream_).value(), {}};
    CallContext context;
    context.sequence = sequence_++;
    context.deadline = Deadline(timeout);
    context.caller = &caller;
    SYNCLINE_ASSIGN_OR_RETURN(const Completion completion, backend_->Run({call}, context));
    return completion.handle()->Wait(context.deadline).status();
  }

 private:
  const std::shared_ptr<const Stream> stream_;
  const Tensor tensor_;
  std::shared_ptr<Backend> backend_;
  uint64_t sequence_ = 0;
};

bool Await(const std::function<bool()>& holds) {
  const Deadline deadline(kTimeout);
  while (!holds()) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return true;
}

// Rank 1 asks for a communicator that it does not go on to make, and gets `signal`. Returns what
// rank 0, which is in no call, is told by its next one.
absl::Status AskAndSignal(absl::Duration timeout, int signal) {
  const ScratchFolder folder;
  const std::string store = absl::StrCat(folder.path(), "/store");
  Process worker({"--worker", store, absl::StrCat(absl::ToInt64Milliseconds(timeout))});
  Rank rank(store, 0);
  const FakeNccl& nccl = FakeNccl::Get();
  const int made = nccl.calls("ncclCommInitRankConfig");
  EXPECT_TRUE(rank.Run(Collective::Broadcast(rank.tensor(), 0), kTimeout).ok());
  // The group's, and that for which rank 1 asks, which may have come already.
  EXPECT_TRUE(Await([&] { return nccl.calls("ncclCommInitRankConfig") >= made + 2; }));
  kill(worker.pid(), signal);
  // What the group had is ended though nobody calls it.
  EXPECT_TRUE(Await([&] { return nccl.live_communicators() == 0; }));
  return rank.Run(Collective::Broadcast(rank.tensor(), 0), kTimeout);
}

TEST(NcclRequestsTest, ARankThatHasDiedIsNotWaitedFor) {
  const absl::Status status = AskAndSignal(kTimeout, SIGKILL);
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has died"));
  EXPECT_THAT(RanksOf(status), ElementsAre(1));
}

TEST(NcclRequestsTest, ARankThatIsStoppedIsWaitedForUntilItsCallEnds) {
  const absl::Status status = AskAndSignal(absl::Seconds(3), SIGSTOP);
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("its process is stopped"));
  EXPECT_THAT(RanksOf(status), ElementsAre(1));
}

int Work(char** argv) {
  Rank rank(argv[2], 1);
  int timeout;
  if (!absl::SimpleAtoi(argv[3], &timeout)) return 1;
  if (!rank.Run(Collective::Broadcast(rank.tensor(), 0), kTimeout).ok()) return 1;
  setenv("FAKE_NCCL_INIT_DELAY_MS", "600000", /*overwrite=*/1);
  rank.Run(Collective::Recv(rank.tensor(), 0), absl::Milliseconds(timeout)).IgnoreError();
  return 0;
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
