// Backends tcp and gloo with TLS: that nothing of the data is on the network, and what ranks say
// whose settings do not fit.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/tcp/tcp_connections.h"
#include "core/base/unique_fd.h"
#include "core/testing/tls_environment.h"
#include "core/tls/settings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/process_group.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/support/backend_config.h"
#include "tests/support/hosts.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using tls::Mode;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr char kMark[] = "what nobody on the way may read, ";

// The interface of this network namespace, which only this program uses.
void SwitchOnLoopback() {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = {};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  if (ioctl(socket.get(), SIOCSIFFLAGS, &request) != 0) std::perror("lo");
}

// All that crosses loopback while one of these is alive.
class Sniffer {
 public:
  Sniffer() : socket_(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL))) {
    EXPECT_TRUE(socket_.valid()) << std::strerror(errno);
    const int bytes = 64 << 20;
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes));
    thread_ = std::thread([this] {
      std::vector<char> packet(1 << 17);
      while (!ends_) {
        pollfd entry = {socket_.get(), POLLIN, 0};
        if (poll(&entry, 1, 20) <= 0) continue;
        const ssize_t size = recv(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT);
        if (size > 0) seen_.append(packet.data(), static_cast<size_t>(size));
      }
    });
  }
  ~Sniffer() { Stop(); }

  std::string Stop() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  const base::UniqueFd socket_;
  std::atomic<bool> ends_ = false;
  std::string seen_;
  std::thread thread_;
};

absl::StatusOr<std::shared_ptr<ProcessGroup>> Join(const std::string& backend,
                                                   const std::shared_ptr<Store>& store, int rank,
                                                   int size) {
  ProcessGroup::Options options;
  options.rank = rank;
  options.size = size;
  options.backend = backend;
  options.store = store;
  options.timeout = kTimeout;
  return ProcessGroup::Create(options);
}

// Reads the settings of the environment before it waits for the others, which backend tcp by its
// name does not.
absl::Status Connect(const std::string& backend, const std::shared_ptr<Store>& store, int rank,
                     int size) {
  BackendConfig config = OnLoopback(store, rank, size, kTimeout);
  return backend == "tcp" ? tcp::TcpConnections::Connect(config).status()
                          : BackendRegistry::Make(backend, config).status();
}

// A short and a long collective, and a short and a long message, all of marks.
void ExchangeMarks(const std::string& backend) {
  const auto store = std::make_shared<HashStore>();
  for (const absl::Status& status : RunRanks(2, [&](int rank) -> absl::Status {
         SYNCLINE_ASSIGN_OR_RETURN(const auto group, Join(backend, store, rank, 2));
         std::string text;
         while (text.size() < 300'000) text += kMark;
         for (const size_t size : {size_t{64}, text.size()}) {
           const std::vector<uint8_t> marks(text.begin(), text.begin() + size);
           std::vector<uint8_t> mine = rank == 0 ? marks : std::vector<uint8_t>(size);
           SYNCLINE_RETURN_IF_ERROR(group->Broadcast(Tensor::Of(mine), 0));
           EXPECT_EQ(mine, marks);
           if (rank == 0) {
             SYNCLINE_RETURN_IF_ERROR(group->Send(Tensor::Of(mine), 1));
             continue;
           }
           std::vector<uint8_t> received(size);
           SYNCLINE_RETURN_IF_ERROR(group->Recv(Tensor::Of(received), 0).status());
           EXPECT_EQ(received, marks);
         }
         return absl::OkStatus();
       })) {
    EXPECT_TRUE(status.ok()) << status;
  }
}

class EncryptionTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, EncryptionTest, testing::Values("gloo", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EncryptionTest, NothingOfTheDataIsOnTheNetwork) {
  const TlsEnvironment environment;
  for (const Mode mode : {Mode::kSecret, Mode::kCertificates, Mode::kOff}) {
    environment.Set(mode);
    Sniffer sniffer;
    ExchangeMarks(GetParam());
    // Without TLS they are there, so this finds them.
    EXPECT_EQ(absl::StrContains(sniffer.Stop(), kMark), mode == Mode::kOff) << tls::ModeName(mode);
  }
}

// Ranks join one after the other, since settings are the process's: each begins with its own, and
// waits for the others on its thread.
class Joining {
 public:
  Joining(std::string backend, int size)
      : backend_(std::move(backend)), size_(size), statuses_(size) {}
  ~Joining() { Await(); }

  // With the settings that the environment has now.
  void Start(int rank) {
    const size_t entries = CountEntries();
    const auto has_ended = std::make_shared<std::atomic<bool>>(false);
    threads_.emplace_back([this, rank, has_ended] {
      statuses_[rank] = Connect(backend_, store_, rank, size_);
      *has_ended = true;
    });
    // It has read them before it puts its entry to the store.
    for (const Deadline deadline(absl::Minutes(1));
         CountEntries() == entries && !*has_ended && !deadline.Expired();) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  std::vector<absl::Status> Await() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return statuses_;
  }

 private:
  size_t CountEntries() const {
    const std::vector<std::string> keys = store_->Keys("").value();
    return std::count_if(keys.begin(), keys.end(),
                         [](const std::string& key) { return absl::StrContains(key, "member/"); });
  }

  const std::string backend_;
  const int size_;
  const std::shared_ptr<HashStore> store_ = std::make_shared<HashStore>();
  std::vector<absl::Status> statuses_;
  std::vector<std::thread> threads_;
};

TEST_P(EncryptionTest, AllRanksEncryptOrNone) {
  const TlsEnvironment environment;
  Joining joining(GetParam(), 3);
  environment.Set(Mode::kSecret);
  joining.Start(0);
  joining.Start(1);
  TlsEnvironment::Unset();
  joining.Start(2);
  for (const absl::Status& status : joining.Await()) {
    EXPECT_EQ(KindOf(status), ErrorKind::kMismatch) << status;
    EXPECT_THAT(status.message(), HasSubstr("it is secret for rank 0"));
    EXPECT_THAT(status.message(), HasSubstr("and off for rank 2"));
    EXPECT_EQ(RanksOf(status), (std::vector<int>{0, 2}));
  }
}

TEST_P(EncryptionTest, ARankWithAnotherSecretIsNamedByBothSides) {
  const TlsEnvironment environment, other;
  std::ofstream(other.secret_file()) << "another secret of another job";
  Joining joining(GetParam(), 2);
  environment.Set(Mode::kSecret);
  joining.Start(0);
  other.Set(Mode::kSecret);
  joining.Start(1);
  const std::vector<absl::Status> statuses = joining.Await();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kNetwork) << statuses[rank];
    EXPECT_THAT(statuses[rank].message(), HasSubstr(absl::StrCat("rank ", 1 - rank)));
    EXPECT_EQ(RanksOf(statuses[rank]), std::vector<int>{1 - rank});
    EXPECT_THAT(statuses[rank].message(), HasSubstr("do not have the same job secret"));
  }
}

// Whichever of the others it connects to first.
TEST_P(EncryptionTest, OneOfThreeWithAnotherSecretIsNamedByAllAtOnce) {
  for (int wrong = 0; wrong < 3; ++wrong) {
    const TlsEnvironment environment, other;
    std::ofstream(other.secret_file()) << "another secret of another job";
    Joining joining(GetParam(), 3);
    const absl::Time start = absl::Now();
    for (int rank = 0; rank < 3; ++rank) {
      (rank == wrong ? other : environment).Set(Mode::kSecret);
      joining.Start(rank);
    }
    const std::vector<absl::Status> statuses = joining.Await();
    EXPECT_LT(absl::Now() - start, kTimeout / 2);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kNetwork) << statuses[rank];
      if (rank == wrong) continue;
      // Who has not talked to that rank itself hears of two that do not accept each other.
      EXPECT_THAT(RanksOf(statuses[rank]), Contains(wrong)) << rank << statuses[rank];
      EXPECT_THAT(RanksOf(statuses[rank]), Not(Contains(rank))) << statuses[rank];
      EXPECT_THAT(statuses[rank].message(), HasSubstr("do not have the same job secret"));
    }
  }
}

TEST_P(EncryptionTest, ARankWhoseCertificateIsNotAcceptedIsNamed) {
  const TlsEnvironment environment, other;
  Joining joining(GetParam(), 2);
  environment.Set(Mode::kCertificates);
  joining.Start(0);
  other.Set(Mode::kCertificates);
  setenv("SYNCLINE_TLS_CA", (environment.folder() + "/ca.pem").c_str(), 1);
  joining.Start(1);
  const std::vector<absl::Status> statuses = joining.Await();
  EXPECT_THAT(statuses[0].message(), HasSubstr("rank 1"));
  EXPECT_THAT(statuses[0].message(), HasSubstr("no authority of SYNCLINE_TLS_CA has signed it"));
  EXPECT_THAT(statuses[1].message(), HasSubstr("rank 0"));
  EXPECT_THAT(statuses[1].message(), HasSubstr("does not accept the certificate in '"));
}

// Read while it was valid, and shown later: rank 1 waits for rank 0.
TEST_P(EncryptionTest, ARankWhoseCertificateHasExpiredIsNamedByBothSides) {
  const absl::Time start = absl::Now();
  const absl::Duration validity = absl::Seconds(10);  // Enough to read it on a busy machine.
  const TlsEnvironment environment;
  const TlsEnvironment expiring({{"localhost", "127.0.0.1"},
                                 -absl::Hours(1),
                                 validity,
                                 /*authority_outlives=*/absl::Hours(1)});
  environment.Trust(expiring);
  expiring.Trust(environment);
  Joining joining(GetParam(), 2);
  expiring.Set(Mode::kCertificates);
  joining.Start(1);
  absl::SleepFor(start + validity + absl::Seconds(2) - absl::Now());
  environment.Set(Mode::kCertificates);
  joining.Start(0);
  const std::vector<absl::Status> statuses = joining.Await();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(KindOf(statuses[rank]), ErrorKind::kNetwork) << statuses[rank];
    EXPECT_EQ(RanksOf(statuses[rank]), std::vector<int>{1 - rank});
    EXPECT_THAT(statuses[rank].message(), HasSubstr("expired"));
  }
  EXPECT_THAT(statuses[0].message(), HasSubstr("'CN = syncline job' "));  // Not its authority's.
  EXPECT_THAT(statuses[0].message(), HasSubstr("is not accepted: certificate has expired"));
  EXPECT_THAT(statuses[1].message(), HasSubstr("does not accept the certificate in '"));
}

TEST_P(EncryptionTest, ASettingThatIsWrongIsToldToAllRanks) {
  const TlsEnvironment environment;
  Joining joining(GetParam(), 2);
  environment.Set(Mode::kCertificates);
  joining.Start(0);
  setenv("SYNCLINE_TLS_KEY", "/nowhere/key.pem", 1);
  joining.Start(1);
  for (const absl::Status& status : joining.Await()) {
    EXPECT_THAT(status.message(), HasSubstr("'/nowhere/key.pem', which SYNCLINE_TLS_KEY names"));
  }
}

TEST_P(EncryptionTest, SeveralRanksWork) {
  const TlsEnvironment environment;
  for (const Mode mode : {Mode::kSecret, Mode::kCertificates}) {
    environment.Set(mode);
    const auto store = std::make_shared<HashStore>();
    for (const absl::Status& status : RunRanks(5, [&](int rank) -> absl::Status {
           SYNCLINE_ASSIGN_OR_RETURN(const auto group, Join(GetParam(), store, rank, 5));
           for (int round = 0; round < 20; ++round) {
             std::vector<int64_t> sums(round * 1000 + 1, rank + round);
             SYNCLINE_RETURN_IF_ERROR(group->AllReduce(Tensor::Of(sums)));
             EXPECT_EQ(sums, std::vector<int64_t>(sums.size(), 10 + 5 * round));
           }
           return absl::OkStatus();
         })) {
      EXPECT_TRUE(status.ok()) << tls::ModeName(mode) << ": " << status;
    }
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  // A network that nobody else uses, in which this process may listen to all.
  if (!syncline::EnterNewNetwork() && getuid() != 0) {
    std::puts("skipped: this user may not make network namespaces");
    return 0;
  }
  syncline::SwitchOnLoopback();
  return RUN_ALL_TESTS();
}
