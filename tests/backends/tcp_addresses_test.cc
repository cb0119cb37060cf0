// Backend tcp over IPv6, at ports of a range, and with certificates for its addresses.
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/testing/tls_environment.h"
#include "core/tls/certificates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "syncline/tensor.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr absl::Duration kTimeout = absl::Seconds(60);

CallContext Within(uint64_t sequence) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(kTimeout);
  return context;
}

// Joins ranks at `address`, and has them make a short and a long collective and pass a message on.
// `check` runs on each rank once it has joined.
std::vector<absl::Status> RunAt(
    const std::string& address, const std::function<void()>& check = [] {}) {
  const auto store = std::make_shared<HashStore>();
  return RunRanks(kRanks, [&](int rank) -> absl::Status {
    BackendConfig config;
    config.store = store;
    config.rank = rank;
    config.size = kRanks;
    config.local_address = address;
    config.deadline = Deadline(kTimeout);
    SYNCLINE_ASSIGN_OR_RETURN(const auto backend, BackendRegistry::Make("tcp", config));
    check();
    for (const size_t count : {size_t{1}, size_t{300'000}}) {
      std::vector<int32_t> values(count, rank + 1);
      SYNCLINE_RETURN_IF_ERROR(
          backend
              ->RunAndWait(Collective::AllReduce(Tensor::Of(values), ReduceOp::kSum), Within(count))
              .status());
      EXPECT_EQ(values, std::vector<int32_t>(count, 6));
      std::vector<int32_t> received(count);
      const int next = (rank + 1) % kRanks, last = (rank + kRanks - 1) % kRanks;
      values.assign(count, rank);
      const auto send = [&] {
        return backend->RunAndWait(Collective::Send(Tensor::Of(values), next), Within(count))
            .status();
      };
      const auto receive = [&] {
        return backend->RunAndWait(Collective::Recv(Tensor::Of(received), last), Within(count))
            .status();
      };
      SYNCLINE_RETURN_IF_ERROR(rank == 0 ? send() : receive());
      SYNCLINE_RETURN_IF_ERROR(rank == 0 ? receive() : send());
      EXPECT_EQ(received, std::vector<int32_t>(count, last));
    }
    return absl::OkStatus();
  });
}

void ExpectAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

TEST(TcpAddressesTest, RanksMeetOverIPv6) { ExpectAllOk(RunAt("::1")); }

TEST(TcpAddressesTest, CertificatesForAddressesNeedNoOtherName) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    const TlsEnvironment environment({{address}});
    environment.Set(tls::Mode::kCertificates);
    ExpectAllOk(RunAt(address));
  }
  const TlsEnvironment elsewhere({{"10.0.0.7"}});
  elsewhere.Set(tls::Mode::kCertificates);
  const std::vector<absl::Status> refused = RunAt("127.0.0.1");
  EXPECT_THAT(refused[kRanks - 1].message(), HasSubstr("it is not for '127.0.0.1'"));
  for (const absl::Status& status : refused) EXPECT_FALSE(status.ok());
}

TEST(TcpAddressesTest, ListenersAreAtPortsOfTheRange) {
  setenv("SYNCLINE_PORT_RANGE", "32000-32031", 1);
  for (int i = 0; i < 3; ++i) {
    ExpectAllOk(RunAt("127.0.0.1", [] {
      // Those of ranks that are still joining.
      for (const int port : ListeningPorts()) {
        EXPECT_GE(port, 32000);
        EXPECT_LE(port, 32031);
      }
    }));
  }
  setenv("SYNCLINE_PORT_RANGE", "32000", 1);
  for (const absl::Status& status : RunAt("127.0.0.1")) {
    EXPECT_THAT(status.message(), HasSubstr("SYNCLINE_PORT_RANGE must be two ports"));
  }
  unsetenv("SYNCLINE_PORT_RANGE");
}

}  // namespace
}  // namespace syncline
