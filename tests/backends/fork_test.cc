// A rank that has forked dies, and its child lives on with what it has of its parent's memory: a
// loader of data, for example. The program is its own worker.
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/file_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(60);

absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& backend,
                                              std::shared_ptr<Store> store, int rank) {
  return BackendRegistry::Make(backend, OnLoopback(std::move(store), rank, 2, kLong));
}

absl::Status Barrier(Backend& backend, uint64_t sequence) {
  return RunAndWait(backend, Collective::Barrier(), {sequence, Deadline(kLong)}).status();
}

// Rank 1: makes a call, forks, says what its child is called, and waits to be killed.
// arguments: --rank BACKEND PATH
int WorkAsRank(char** argv) {
  const std::shared_ptr<Store> store = FileStore::Open(argv[3]).value();
  const auto backend = Join(argv[2], store, 1);
  if (!backend.ok() || !Barrier(**backend, 0).ok()) return 1;
  const pid_t child = fork();
  if (child == 0) {
    while (true) pause();
  }
  if (!store->Set("child", absl::StrCat(child)).ok()) return 1;
  while (true) pause();
}

class ForkTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Backends, ForkTest, testing::Values("shm", "tcp", "auto"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ForkTest, ADeathIsNoticedThoughAChildLives) {
  const ScratchFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/store");
  const std::shared_ptr<Store> store = FileStore::Open(path).value();
  auto worker = std::make_unique<Process>(std::vector<std::string>{"--rank", GetParam(), path});
  const auto backend = Join(GetParam(), store, 0);
  ASSERT_TRUE(backend.ok()) << backend.status();
  ASSERT_TRUE(Barrier(**backend, 0).ok());
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(store->Get("child", kLong).value(), &child));
  const absl::Cleanup end_child = [child] { kill(child, SIGKILL); };

  worker = nullptr;  // Kills it.
  const absl::Status status = Barrier(**backend, 1);
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("rank 1 ("), HasSubstr("has died")));
  EXPECT_EQ(kill(child, 0), 0);
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--rank") return syncline::WorkAsRank(argv);
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
