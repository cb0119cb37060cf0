#include "tests/backends/auto_workers.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"
#include "syncline/file_store.h"
#include "syncline/prefix_store.h"

namespace syncline {
namespace {

constexpr char kMode[] = "--worker-on-host";
constexpr char kStore[] = "/store";

}  // namespace

absl::StatusOr<std::shared_ptr<Backend>> Worker::Join(const std::string& backend,
                                                      const std::string& name) const {
  BackendConfig config;
  config.store = std::make_shared<PrefixStore>(name, store);
  config.rank = rank;
  config.size = size;
  config.local_address = address;
  config.deadline = Deadline(absl::Seconds(60));
  return BackendRegistry::Make(backend, config);
}

Workers::Workers(const std::vector<int>& hosts, const std::string& task,
                 const std::string& argument)
    : store_(FileStore::Open(folder_.path() + kStore).value()),
      hosts_(1 + *std::max_element(hosts.begin(), hosts.end())) {
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    ranks_.push_back(std::make_unique<Process>(std::vector<std::string>{
        kMode, task, argument, absl::StrCat(rank), absl::StrCat(hosts.size()),
        folder_.path() + kStore, hosts_.door(hosts[rank]), AddressOfHost(hosts[rank])}));
  }
}

void Workers::Signal(int rank, int signal) const { kill(ranks_[rank]->pid(), signal); }

std::string Workers::Describe(int rank) const {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat("rank ", rank, " (host ", host, ", pid ", ranks_[rank]->pid(), ")");
}

std::optional<int> WorkOnHost(int argc, char** argv, const std::map<std::string, Task>& tasks) {
  if (const auto status = WorkAsHost(argc, argv)) return status;
  if (argc != 9 || std::string(argv[1]) != kMode) return std::nullopt;
  EnterHost(argv[7]);
  Worker worker;
  worker.argument = argv[3];
  worker.address = argv[8];
  const auto task = tasks.find(argv[2]);
  if (task == tasks.end() || !absl::SimpleAtoi(argv[4], &worker.rank) ||
      !absl::SimpleAtoi(argv[5], &worker.size)) {
    return 1;
  }
  worker.store = FileStore::Open(argv[6]).value();
  task->second(worker);
  return 0;
}

int RunTestsOnHosts(int argc, char** argv, const std::map<std::string, Task>& tasks) {
  if (const auto status = WorkOnHost(argc, argv, tasks)) return *status;
  testing::InitGoogleMock(&argc, argv);
  if (!EnterNewNetwork() && getuid() != 0) {
    std::puts("skipped: this user may not make network namespaces");
    return 0;
  }
  return RUN_ALL_TESTS();
}

}  // namespace syncline
