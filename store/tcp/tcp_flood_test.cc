// A tcp store's server with few descriptors serves who knows the job's secret, or has a certificate
// of the job, while very many strangers hold connections to it.
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/testing/flood.h"
#include "core/testing/tls_environment.h"
#include "core/tls/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/tcp/handshake.h"
#include "store/tcp/tcp_acceptor.h"
#include "store/tcp/tcp_testing.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {
namespace {

constexpr char kSecret[] = "open sesame, if you please";
constexpr int kMostDescriptors = 1024;
constexpr int64_t kMostMemory = 16 << 20;
constexpr int kClients = 8;

int strangers = 2000;

// Begins TLS, as anybody may where a job has certificates and no secret, and stops.
class HalfOfTls final : public Flood::Talk {
 public:
  std::string Begin() override {
    return ClientHandshake("", tls::Mode::kCertificates).Hello() + "\x16\x03\x01\x02";
  }
  std::string Answer(absl::string_view) override { return ""; }
};

struct Kind {
  const char* name;
  std::string slow;  // See Flood.
  bool begins_tls;   // In place of that: at most kTlsStrangers.
};

// So many TLS handshakes are processor time for the strangers' server as well.
constexpr int kTlsStrangers = 300;

class TCPFloodTest : public testing::TestWithParam<Kind> {};

TEST_P(TCPFloodTest, ClientsAreServedInTime) {
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_cur, static_cast<rlim_t>(strangers) + 200);
  const bool begins_tls = GetParam().begins_tls;
  std::optional<TlsEnvironment> environment;
  if (begins_tls) environment.emplace().Set(tls::Mode::kCertificates);
  const std::string secret = begins_tls ? "" : kSecret;
  const int count = begins_tls ? std::min(strangers, kTlsStrangers) : strangers;
  ServerProcess server(secret, kMostDescriptors);
  auto early = Create(Client(server.port(), secret));
  ASSERT_NE(early, nullptr);
  ASSERT_TRUE(early->Set("key", "value").ok());
  const int descriptors = server.NumDescriptors();
  const int64_t memory = server.MostMemory();
  const auto flood = begins_tls
                         ? std::make_unique<Flood>(server.port(), count,
                                                   [] { return std::make_unique<HalfOfTls>(); })
                         : std::make_unique<Flood>(server.port(), count, GetParam().slow);
  EXPECT_TRUE(flood->AwaitAll(kTimeout));
  // One that is connected, and others that come: each makes calls for a while.
  int most = 0;
  absl::Duration longest_join, longest_call;
  std::vector<std::thread> clients;
  absl::Mutex mutex;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const absl::Time begin = absl::Now();
      auto client = Create(Client(server.port(), secret));
      ASSERT_NE(client, nullptr);
      const absl::Duration joined = absl::Now() - begin;
      absl::Duration longest;
      for (int j = 0; j < 100; ++j) {
        const absl::Time call = absl::Now();
        EXPECT_TRUE(client->Add(absl::StrCat("sum ", i), 1).ok());
        EXPECT_EQ(*client->Get("key", kTimeout), "value");
        longest = std::max(longest, absl::Now() - call);
      }
      absl::MutexLock lock(&mutex);
      longest_join = std::max(longest_join, joined);
      longest_call = std::max(longest_call, longest);
    });
  }
  for (int j = 0; j < 100; ++j) {
    EXPECT_EQ(*early->Get("key", kTimeout), "value");
    most = std::max(most, server.NumDescriptors());
  }
  for (std::thread& client : clients) client.join();
  std::printf(
      "%d strangers connected %d times; a client joined in %s at most, two calls took %s; "
      "%d descriptors and %d KiB more\n",
      count, static_cast<int>(flood->made()), absl::FormatDuration(longest_join).c_str(),
      absl::FormatDuration(longest_call).c_str(), most - descriptors,
      static_cast<int>((server.MostMemory() - memory) >> 10));
  EXPECT_LT(longest_join, absl::Seconds(20));
  EXPECT_LT(longest_call, absl::Seconds(5));
  // A client's connection with TLS is a socket and both ends of a pair.
  const int greeted = begins_tls ? static_cast<int>(TCPAcceptor::kMaxGreetedWithoutSecret) : 0;
  const int each = begins_tls ? 3 : 1;
  EXPECT_LE(most, descriptors + each * kClients + greeted +
                      static_cast<int>(TCPAcceptor::kMaxStrangers) + 8);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(server.MostMemory() - memory, kMostMemory);
#endif
}

INSTANTIATE_TEST_SUITE_P(
    Strangers, TCPFloodTest,
    testing::Values(Kind{"silent", "", false}, Kind{"tls", "", true},
                    // The beginning of what a client says, and then anything.
                    Kind{"slow", absl::StrCat(kHandshakeMagic, std::string(100, 'x')), false}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace syncline::tcp_store

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view count = argv[i];
    if (absl::ConsumePrefix(&count, "--strangers=") &&
        !absl::SimpleAtoi(count, &syncline::tcp_store::strangers)) {
      return 1;
    }
  }
  return syncline::tcp_store::RunTestsOrServe(argc, argv);
}
