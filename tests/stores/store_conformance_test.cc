// The stores that must pass the suite. To add one, add a case.
#include "tests/stores/store_conformance.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "store/etcd/etcd_testing.h"
#include "syncline/prefix_store.h"
#include "syncline/tcp_store.h"

namespace syncline {
namespace {

using etcd_store::EtcdServer;

using Clients = std::vector<std::shared_ptr<Store>>;

std::shared_ptr<Store> Make(const std::string& name, const StoreConfig& config) {
  absl::StatusOr<std::shared_ptr<Store>> store = StoreRegistry::Make(name, config);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    std::abort();
  }
  return *std::move(store);
}

Clients OpenHash(int n) { return Clients(n, Make("hash", {})); }

Clients OpenFile(int n) {
  static std::atomic<int> count{0};
  StoreConfig config;
  config.path = absl::StrCat(testing::TempDir(), "/store-", getpid(), "-", count++);
  Clients clients;
  for (int i = 0; i < n; ++i) clients.push_back(Make("file", config));
  return clients;
}

Clients OpenTCP(int n) {
  StoreConfig config;
  config.role = StoreConfig::Role::kServer;
  Clients clients = {Make("tcp", config)};
  config.role = StoreConfig::Role::kClient;
  config.port = dynamic_cast<TCPStore&>(*clients[0]).port();
  for (int i = 1; i < n; ++i) clients.push_back(Make("tcp", config));
  return clients;
}

Clients OpenEtcd(int n) {
  static const EtcdServer server;
  static std::atomic<int> count{0};
  StoreConfig config;
  config.etcd.endpoints = server.endpoint();
  config.etcd.prefix = absl::StrCat("/store ", count++);
  Clients clients;
  for (int i = 0; i < n; ++i) clients.push_back(Make("etcd", config));
  return clients;
}

StoreCase Prefixed(const StoreCase& inner) {
  return {absl::StrCat("prefix_", inner.name), inner.registered_as, inner.extension,
          [open = inner.open](int n) {
            Clients clients;
            for (const std::shared_ptr<Store>& store : open(n)) {
              clients.push_back(std::make_shared<PrefixStore>("group 7", store));
            }
            return clients;
          }};
}

std::vector<StoreCase> Cases() {
  std::vector<StoreCase> cases = {
      {"hash", "hash", StoreCase::Extension::kQueues, &OpenHash},
      {"file", "file", StoreCase::Extension::kClones, &OpenFile},
      {"tcp", "tcp", StoreCase::Extension::kQueues, &OpenTCP},
      {"etcd", "etcd", StoreCase::Extension::kNone, &OpenEtcd},
  };
  for (size_t i = 0, n = cases.size(); i < n; ++i) cases.push_back(Prefixed(cases[i]));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, StoreConformance, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

TEST(StoreRegistryTest, EveryRegisteredStoreIsACaseOfTheSuite) {
  std::set<std::string> covered;
  for (const StoreCase& store : Cases()) covered.insert(store.registered_as);
  for (const std::string& name : StoreRegistry::Names()) EXPECT_EQ(covered.count(name), 1) << name;
  EXPECT_EQ(covered.size(), StoreRegistry::Names().size());
}

TEST(StoreRegistryTest, AnUnknownNameListsTheKnownOnes) {
  absl::Status status = StoreRegistry::Make("zookeeper", StoreConfig()).status();
  EXPECT_EQ(status.message(), "'zookeeper' is not known; choose one of: etcd, file, hash, tcp");
}

}  // namespace
}  // namespace syncline
