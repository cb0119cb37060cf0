// How ranks of one host notice that a peer's process has ended, also while the group is made and
// from other pid namespaces. The program is its own worker.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/testing/forwarding_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kOtherNamespace[] = "pid:[1]";
const absl::Duration kLong = absl::Seconds(60);

// What a rank's entry in the store says of its process: see PeerTable. Fields that are not set stay
// as the rank wrote them.
struct Forgery {
  int rank = 0;
  std::optional<pid_t> pid = std::nullopt;
  std::optional<std::string> pid_namespace = std::nullopt;
};

std::string Forged(absl::string_view entry, const Forgery& forgery) {
  std::vector<std::string> lines = absl::StrSplit(entry, absl::MaxSplits('\n', 1));
  Peer peer = Peer::Parse(lines[0]).value();
  if (forgery.pid.has_value()) {
    peer.pid = *forgery.pid;
    peer.started = base::ReadProcess(*forgery.pid).value().started;
  }
  if (forgery.pid_namespace.has_value()) peer.pid_namespace = *forgery.pid_namespace;
  lines[0] = peer.Serialize();
  return absl::StrJoin(lines, "\n");
}

// A store in which a rank's entry is forged while it is written. With `ghost`, that rank's entry,
// made of rank 1's, is written beside it: no such rank exists.
class ForgingStore final : public ForwardingStore {
 public:
  ForgingStore(std::shared_ptr<Store> store, Forgery forgery, bool ghost = false)
      : ForwardingStore(std::move(store)), forgery_(std::move(forgery)), ghost_(ghost) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const std::string forged_key = absl::StrCat("member/", forgery_.rank);
    if (ghost_ && absl::EndsWith(key, "member/1") && !absl::StrContains(key, "shm availability")) {
      const absl::string_view prefix = key.substr(0, key.size() - forged_key.size());
      SYNCLINE_RETURN_IF_ERROR(
          store().Set(absl::StrCat(prefix, forged_key), Forged(value, forgery_)));
    }
    const bool is_forged = !ghost_ && absl::EndsWith(key, forged_key);
    return store().Set(key, is_forged ? Forged(value, forgery_) : value);
  }

 private:
  const Forgery forgery_;
  const bool ghost_;
};

absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& backend,
                                              std::shared_ptr<Store> store, int rank, int size,
                                              absl::Duration timeout = kLong) {
  return BackendRegistry::Make(backend, OnLoopback(std::move(store), rank, size, timeout));
}

absl::Status Barrier(Backend& backend) {
  CallContext context;
  context.deadline = Deadline(kLong);
  context.sequence = 1;
  return RunAndWait(backend, Collective::Barrier(), context).status();
}

// A worker that is a rank: says that it has joined, and does nothing until it is killed.
// arguments: --rank RANK PATH, or --rank_elsewhere if it claims to be in another pid namespace
int WorkAsRank(char** argv, bool is_elsewhere) {
  int rank;
  if (!absl::SimpleAtoi(argv[2], &rank)) return 1;
  Forgery forgery{rank};
  if (is_elsewhere) forgery.pid_namespace = kOtherNamespace;
  auto store = std::make_shared<ForgingStore>(FileStore::Open(argv[3]).value(), forgery);
  const auto backend = Join("shm", store, rank, 2);
  if (!backend.ok() || !store->Set("joined", "").ok()) return 1;
  while (true) pause();
}

// A worker that is no rank. arguments: --bystander
int WorkAsBystander() {
  while (true) pause();
}

class ShmPeersTest : public testing::Test {
 protected:
  std::shared_ptr<Store> OpenStore() {
    return FileStore::Open(absl::StrCat(folder_.path(), "/store")).value();
  }

  const ScratchFolder folder_;
};

TEST_F(ShmPeersTest, AProcessThatHasThePidOfARankOfAnotherPidNamespaceMayEnd) {
  auto bystander = std::make_unique<Process>(std::vector<std::string>{"--bystander"});
  auto store =
      std::make_shared<ForgingStore>(OpenStore(), Forgery{1, bystander->pid(), kOtherNamespace});
  Countdown joined(3);
  absl::Notification is_over;
  std::thread end([&] {
    joined.StepAndWait();
    bystander = nullptr;
  });
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(auto backend, Join("shm", store, rank, 2));
         joined.StepAndWait();
         // Gives rank 0 the time to look after its peers.
         if (rank == 1) is_over.WaitForNotificationWithTimeout(absl::Milliseconds(500));
         const absl::Status status = Barrier(*backend);
         if (rank == 0) is_over.Notify();
         return status;
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
  end.join();
}

TEST_F(ShmPeersTest, TheDeathOfARankOfAnotherPidNamespaceIsNoticed) {
  for (int victim : {0, 1}) {
    const std::string path = absl::StrCat(folder_.path(), "/", victim);
    const std::shared_ptr<Store> store = FileStore::Open(path).value();
    auto worker = std::make_unique<Process>(
        std::vector<std::string>{"--rank_elsewhere", absl::StrCat(victim), path});
    const auto backend = Join("shm", store, 1 - victim, 2);
    ASSERT_TRUE(backend.ok()) << backend.status();
    ASSERT_TRUE(store->Wait({"joined"}, kLong).ok());
    worker = nullptr;
    const absl::Status status = Barrier(**backend);
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", victim, " (")));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has died"));
  }
}

// From now on the kernel gives this thread no pidfds, as some sandboxes do.
void LosePidfds() {
  constexpr uint32_t kPeerPidfd = 77;  // SO_PEERPIDFD.
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPeerPidfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {static_cast<unsigned short>(std::size(filter)), filter};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

TEST_F(ShmPeersTest, ADeathIsNoticedWhereNoPidfdIsToBeHad) {
  for (int victim : {0, 1}) {
    const std::string path = absl::StrCat(folder_.path(), "/", victim);
    auto worker =
        std::make_unique<Process>(std::vector<std::string>{"--rank", absl::StrCat(victim), path});
    // The filter is for the life of a thread.
    std::thread rank([&] {
      LosePidfds();
      const std::shared_ptr<Store> store = FileStore::Open(path).value();
      const auto backend = Join("shm", store, 1 - victim, 2);
      ASSERT_TRUE(backend.ok()) << backend.status();
      ASSERT_TRUE(store->Wait({"joined"}, kLong).ok());
      worker = nullptr;
      const absl::Status status = Barrier(**backend);
      EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat("rank ", victim, " (")), HasSubstr("has died")));
    });
    rank.join();
  }
}

int CountPidfds() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry, ignored).string();
    if (absl::StrContains(target, "pidfd")) ++count;
  }
  return count;
}

TEST_F(ShmPeersTest, AllGroupsShareOnePidfdForEachPeer) {
  const Process bystander({"--bystander"});
  const std::shared_ptr<Store> store = OpenStore();
  {
    std::vector<std::shared_ptr<Backend>> groups;
    for (int group = 0; group < 3; ++group) {
      auto own = std::make_shared<ForgingStore>(
          FileStore::Open(absl::StrCat(folder_.path(), "/", group)).value(),
          Forgery{1, bystander.pid()});
      std::vector<std::shared_ptr<Backend>> ranks(2);
      for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
             SYNCLINE_ASSIGN_OR_RETURN(ranks[rank], Join("shm", own, rank, 2));
             return absl::OkStatus();
           })) {
        EXPECT_TRUE(status.ok()) << status;
      }
      groups.insert(groups.end(), ranks.begin(), ranks.end());
    }
    EXPECT_EQ(CountPidfds(), 1);
  }
  EXPECT_EQ(CountPidfds(), 0);
}

class JoiningTest : public ShmPeersTest, public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, JoiningTest, testing::Values("auto", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(JoiningTest, TheDeathOfARankIsNoticedWhileTheGroupIsMade) {
  auto ghost = std::make_unique<Process>(std::vector<std::string>{"--bystander"});
  auto store = std::make_shared<ForgingStore>(OpenStore(), Forgery{2, ghost->pid()},
                                              /*ghost=*/true);
  const std::string entry = GetParam() == std::string("auto") ? "all/member/2" : "member/2";
  std::thread kill([&] {
    EXPECT_TRUE(store->Wait({entry}, kLong).ok());
    ghost = nullptr;
  });
  const Deadline quick(absl::Seconds(20));
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         return Join(GetParam(), store, rank, 3).status();
       })) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 2 ("));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has died"));
  }
  EXPECT_FALSE(quick.Expired());
  kill.join();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--rank") return syncline::WorkAsRank(argv, false);
  if (argc == 4 && std::string(argv[1]) == "--rank_elsewhere") {
    return syncline::WorkAsRank(argv, true);
  }
  if (argc == 2 && std::string(argv[1]) == "--bystander") return syncline::WorkAsBystander();
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
