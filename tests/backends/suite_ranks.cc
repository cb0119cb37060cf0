#include "tests/backends/suite_ranks.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "syncline/hash_store.h"
#include "syncline/prefix_store.h"

namespace syncline {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(2);

// This process, where ranks are processes.
struct Processes {
  std::shared_ptr<Store> store;  // Null: they are threads.
  int rank = 0;
  int size = 0;
  int stores_made = 0;
};

Processes& Self() {
  static Processes* const self = new Processes;
  return *self;
}

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "rank %d: the ranks of the suite do not meet: %s\n", Self().rank,
               status.ToString().c_str());
  std::abort();
}

void Require(const absl::Status& status) {
  if (!status.ok()) Die(status);
}

}  // namespace

void SuiteRanks::UseProcesses(std::shared_ptr<Store> store, int rank, int size) {
  Self() = {std::move(store), rank, size};
}

std::shared_ptr<Store> SuiteRanks::NewStore() {
  Processes& self = Self();
  if (self.store == nullptr) return std::make_shared<HashStore>();
  return std::make_shared<PrefixStore>(absl::StrCat("suite/", ++self.stores_made), self.store);
}

std::vector<absl::Status> SuiteRanks::Run(int count,
                                          const std::function<absl::Status(int rank)>& body) {
  if (Self().store == nullptr) return RunRanks(count, body);
  std::vector<absl::Status> statuses;
  SuiteCountdown all_have_ended(Self().size);
  if (Self().rank < count) {
    // On a thread, so that a rank that does not return is named.
    std::vector<absl::Status> own = RunRanks(1, [&](int) { return body(Self().rank); }, kLimit);
    statuses.push_back(own[0]);
  }
  all_have_ended.StepAndWait();
  return statuses;
}

SuiteCountdown::SuiteCountdown(int steps) : local_(steps), steps_(steps) {
  if (Self().store != nullptr) store_ = SuiteRanks::NewStore();
}

void SuiteCountdown::Step() {
  if (store_ == nullptr) return local_.Step();
  const auto made = store_->Add("steps", 1);
  Require(made.status());
  if (*made == steps_) Require(store_->Set("open", "1"));
}

void SuiteCountdown::Wait() {
  if (store_ == nullptr) return local_.Wait();
  if (steps_ > 0) Require(store_->Wait({"open"}, kLimit));
}

}  // namespace syncline
