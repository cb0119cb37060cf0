// Ranks of backend tcp join while very many strangers hold connections to their ports, and have few
// descriptors themselves.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/tcp/tcp_connections.h"
#include "core/testing/flood.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr rlim_t kMostDescriptors = 1024;
constexpr int kRanks = 2;
// Descriptors that a listener gives to strangers, of those of a rank.
constexpr int64_t kOfStrangers = 64 + 2 * kRanks;
constexpr int64_t kMostMemory = 16 << 20;
// What a caller says at first, as far as a stranger knows it.
constexpr char kBeginning[] = "2HYS";

int strangers = 2000;

void SetMostDescriptors(rlim_t most) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min(most, limit.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

int64_t MostMemory() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    absl::string_view value = line;
    int64_t kibibytes = 0;
    if (!absl::ConsumePrefix(&value, "VmHWM:")) continue;
    value = absl::StripSuffix(value, " kB");
    if (absl::SimpleAtoi(value, &kibibytes)) return kibibytes << 10;
  }
  ADD_FAILURE() << "no VmHWM";
  return 0;
}

using Joined = absl::StatusOr<std::unique_ptr<tcp::TcpConnections>>;

// Listens before it waits for the other rank.
Joined Join(std::shared_ptr<Store> store, int rank) {
  return tcp::TcpConnections::Connect(OnLoopback(std::move(store), rank, kRanks, kTimeout));
}

// A process with the strangers: it has descriptors of its own.
class Strangers {
 public:
  Strangers(int port, const std::string& kind)
      : path_(folder_.path() + "/ready"),
        process_({"--flood", absl::StrCat(port), absl::StrCat(strangers), kind, path_}) {}

  bool Await() const {
    for (const Deadline deadline(kTimeout); !deadline.Expired();) {
      if (std::ifstream(path_).good()) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

 private:
  const ScratchFolder folder_;
  const std::string path_;
  Process process_;
};

int RunFlood(int port, int count, const std::string& kind, const std::string& path) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const Flood flood(port, count, kind == "slow" ? kBeginning : "");
  // The kernel takes so many before the rank looks at any; the others wait for it to.
  while (flood.made() < std::min(count, 4000)) absl::SleepFor(absl::Milliseconds(10));
  std::ofstream(path) << "ready";
  absl::SleepFor(absl::Hours(1));  // Its parent ends it.
  return 0;
}

class TcpFloodTest : public testing::TestWithParam<const char*> {};

TEST_P(TcpFloodTest, RanksJoinInTime) {
  SetMostDescriptors(kMostDescriptors);
  const auto store = std::make_shared<HashStore>();
  const int64_t descriptors = CountPossessions(), memory = MostMemory();
  const std::set<int> before = ListeningPorts();
  Joined ranks[kRanks];
  std::atomic<int> joined{0};
  const auto join = [&](int rank) {
    ranks[rank] = Join(store, rank);
    ++joined;
  };
  std::thread first(join, 0);
  std::vector<int> port;
  for (const Deadline deadline(kTimeout); port.empty() && !deadline.Expired();) {
    const std::set<int> now = ListeningPorts();
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                        std::back_inserter(port));
  }
  ASSERT_EQ(port.size(), 1u);
  {
    const Strangers flood(port[0], GetParam());
    ASSERT_TRUE(flood.Await());
    const absl::Time begin = absl::Now();
    std::thread second(join, 1);
    int64_t most = 0;
    while (joined < kRanks) {
      most = std::max(most, CountPossessions());
      absl::SleepFor(absl::Milliseconds(5));
    }
    first.join();
    second.join();
    const absl::Duration taken = absl::Now() - begin;
    ASSERT_TRUE(ranks[0].ok() && ranks[1].ok()) << ranks[0].status() << ranks[1].status();
    EXPECT_LT(taken, absl::Seconds(30));
    // Two listeners, three threads more, and two ends of two connections.
    EXPECT_LE(most, descriptors + kOfStrangers + 24);
    std::printf("joined in %s, %d descriptors and threads more, %d KiB\n",
                absl::FormatDuration(taken).c_str(), static_cast<int>(most - descriptors),
                static_cast<int>((MostMemory() - memory) >> 10));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(MostMemory() - memory, kMostMemory);
#endif
  EXPECT_TRUE(ListeningPorts() == before);
}

INSTANTIATE_TEST_SUITE_P(Strangers, TcpFloodTest, testing::Values("silent", "slow"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv, argv + argc);
  if (argc == 6 && arguments[1] == "--flood") {
    return syncline::RunFlood(std::stoi(arguments[2]), std::stoi(arguments[3]), arguments[4],
                              arguments[5]);
  }
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view count = argv[i];
    if (absl::ConsumePrefix(&count, "--strangers=")) {
      if (!absl::SimpleAtoi(count, &syncline::strangers)) return 1;
    }
  }
  return RUN_ALL_TESTS();
}
