// Ranks of backend tcp join while very many strangers hold connections to their ports, and have few
// descriptors themselves. Or callers that know the group's secret do, who begin TLS and stop.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/rank_handshake.h"
#include "backends/tcp/tcp_connections.h"
#include "core/testing/flood.h"
#include "core/testing/tls_environment.h"
#include "core/tls/settings.h"
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

// Of each of rank 1's connections, what its first number is.
constexpr int kNumberOfRank1 = 2;
// Callers that know the secret are those of the job: fewer, and each costs a TLS session.
constexpr int kTlsCallers = 200;
// Descriptors that a listener gives to them: those that have sent the right tag count apart.
constexpr int64_t kOfTlsCallers = 2 * kOfStrangers;

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

// A caller that proves that it knows the secret, says that it is rank 1, and stops in the middle of
// the first TLS record.
class HalfOfTls final : public Flood::Talk {
 public:
  explicit HalfOfTls(const std::string& secret) : handshake_(secret, kNumberOfRank1) {}

  std::string Begin() override { return Bytes(handshake_.hello()); }
  std::string Answer(absl::string_view received) override {
    backends::ChallengeMessage challenge;
    if (received.size() != sizeof(challenge)) return "";
    std::memcpy(&challenge, received.data(), sizeof(challenge));
    const auto proof = handshake_.Answer(challenge);
    return proof.ok() ? Bytes(*proof) + "\x16\x03\x01\x02" : "";
  }

 private:
  template <typename Message>
  static std::string Bytes(const Message& message) {
    return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
  }

  const backends::CallerHandshake handshake_;
};

// What a rank's entry in the store says of its listener: an address, a port, and the secret.
std::string SecretOf(Store& store, int rank) {
  const auto entry = store.Get(absl::StrCat("member/", rank), kTimeout);
  if (!entry.ok()) return "";
  const std::vector<std::string> words =
      absl::StrSplit(entry->substr(entry->find("127.0.0.1 ")), ' ');
  return words.at(2);
}

// A process with the strangers: it has descriptors of its own. `kind` is "silent", "slow", or the
// secret of callers that begin TLS.
class Strangers {
 public:
  Strangers(int port, const std::string& kind, int count)
      : path_(folder_.path() + "/ready"),
        process_({"--flood", absl::StrCat(port), absl::StrCat(count), kind, path_}) {}

  bool Await() const { return AwaitFile(path_); }
  // Until one has come as far as it wanted.
  bool AwaitAnswer() const { return AwaitFile(absl::StrCat(path_, kAnswered)); }

  // Of the file that says so.
  static constexpr char kAnswered[] = ".answered";

 private:
  static bool AwaitFile(const std::string& path) {
    for (const Deadline deadline(kTimeout); !deadline.Expired();) {
      if (std::ifstream(path).good()) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  const ScratchFolder folder_;
  const std::string path_;
  Process process_;
};

int RunFlood(int port, int count, const std::string& kind, const std::string& path) {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const bool knows_secret = kind.size() == backends::kHelloSecretSize;
  const auto flood =
      knows_secret
          ? std::make_unique<Flood>(port, count, [&] { return std::make_unique<HalfOfTls>(kind); })
          : std::make_unique<Flood>(port, count, kind == "slow" ? kBeginning : "");
  // The kernel takes so many before the rank looks at any; the others wait for it to.
  while (flood->made() < std::min(count, 4000)) absl::SleepFor(absl::Milliseconds(10));
  std::ofstream(path) << "ready";
  while (knows_secret && flood->answered() == 0) absl::SleepFor(absl::Milliseconds(10));
  std::ofstream(absl::StrCat(path, Strangers::kAnswered)) << "answered";
  absl::SleepFor(absl::Hours(1));  // Its parent ends it.
  return 0;
}

class TcpFloodTest : public testing::TestWithParam<const char*> {};

TEST_P(TcpFloodTest, RanksJoinInTime) {
  SetMostDescriptors(kMostDescriptors);
  const bool begins_tls = GetParam() == absl::string_view("tls");
  std::optional<TlsEnvironment> environment;
  if (begins_tls) environment.emplace().Set(tls::Mode::kSecret);
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
    const Strangers flood(port[0], begins_tls ? SecretOf(*store, 0) : GetParam(),
                          begins_tls ? kTlsCallers : strangers);
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
    EXPECT_TRUE(!begins_tls || flood.AwaitAnswer());
    // Two listeners, three threads more, and two ends of two connections.
    EXPECT_LE(most, descriptors + (begins_tls ? kOfTlsCallers : kOfStrangers) + 24);
    std::printf("joined in %s, %d descriptors and threads more, %d KiB\n",
                absl::FormatDuration(taken).c_str(), static_cast<int>(most - descriptors),
                static_cast<int>((MostMemory() - memory) >> 10));
  }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(MostMemory() - memory, kMostMemory);
#endif
  EXPECT_TRUE(ListeningPorts() == before);
}

INSTANTIATE_TEST_SUITE_P(Strangers, TcpFloodTest, testing::Values("silent", "slow", "tls"),
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
