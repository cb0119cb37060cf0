#include "tests/backends/conformance_data.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/backend_registry.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "tests/support/backend_config.h"
#include "tests/support/values.h"

namespace syncline {

absl::StatusOr<std::unique_ptr<Member>> Member::Join(const std::string& backend,
                                                     std::shared_ptr<Store> store, int rank,
                                                     int size, MismatchCheck check,
                                                     MessageMatching matching) {
  SYNCLINE_ASSIGN_OR_RETURN(const BackendRegistry::Entry entry, BackendRegistry::Find(backend));
  BackendConfig config =
      OnLoopback(std::make_shared<PrefixStore>("backend", store), rank, size, kTimeout);
  config.mismatch_check = check;
  SYNCLINE_ASSIGN_OR_RETURN(auto made, entry.make(config));
  return std::unique_ptr<Member>(new Member(backend, entry.capabilities, std::move(made),
                                            std::move(store), rank, size, matching));
}

Member::Member(std::string backend_name, Capabilities capabilities,
               std::shared_ptr<Backend> backend, std::shared_ptr<Store> store, int rank, int size,
               MessageMatching matching)
    : backend_name_(std::move(backend_name)),
      capabilities_(std::move(capabilities)),
      backend_(std::move(backend)),
      store_(std::move(store)),
      rank_(rank),
      size_(size),
      matching_(matching) {}

absl::Status Member::Run(const Collective& operation) {
  return RunAndWait(*backend_, operation, Next()).status();
}

void Member::AddToDigest(const Tensor& tensor) { digest_ = 31 * digest_ + Fingerprint(tensor); }

absl::StatusOr<std::unique_ptr<Member>> Member::Group(const std::string& name,
                                                      const std::vector<int>& ranks) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  if (self == ranks.end()) return nullptr;
  return Join(backend_name_, std::make_shared<PrefixStore>(name, store_),
              static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()),
              MismatchCheck::kOn, matching_);
}

const std::vector<DataCase>& DataCases() {
  static const auto* const all = [] {
    auto* const cases = new std::vector<DataCase>(CollectiveCases());
    for (DataCase& p2p : P2pCases()) cases->push_back(std::move(p2p));
    return cases;
  }();
  return *all;
}

const DataCase& FindDataCase(absl::string_view name) {
  for (const DataCase& data_case : DataCases()) {
    if (data_case.name == name) return data_case;
  }
  std::fprintf(stderr, "no case '%s'\n", std::string(name).c_str());
  std::abort();
}

}  // namespace syncline
