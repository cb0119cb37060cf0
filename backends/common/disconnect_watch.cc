#include "backends/common/disconnect_watch.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// Keys: one for each rank whose connection has ended, and one that any of them sets.
constexpr absl::string_view kGonePrefix = "gone/";
constexpr absl::string_view kAnyGone = "any gone";

// How long the answer to "is it set?" may take; a store that is silent takes a second longer.
constexpr absl::Duration kPatience = absl::Milliseconds(1);
// A store that was silent is asked again after this time.
constexpr absl::Duration kPause = absl::Seconds(5);

}  // namespace

DisconnectWatch::DisconnectWatch(std::shared_ptr<Store> store, const PeerTable& peers,
                                 int hosting_rank)
    : store_(std::move(store)), peers_(peers), hosting_rank_(hosting_rank) {
  bool has_other_hosts = false;
  for (int rank = 0; rank < peers_.size(); ++rank) {
    has_other_hosts |= peers_.host_identity(rank) != peers_.host_identity(peers_.rank());
  }
  if (!has_other_hosts) return;
  // In this order: whoever sees the second finds the first.
  absl::Status status = store_->SetOnDisconnect(absl::StrCat(kGonePrefix, peers_.rank()), "");
  if (status.ok()) status = store_->SetOnDisconnect(kAnyGone, "");
  absl::MutexLock lock(&mutex_);
  is_watching_ = status.ok();
}

std::vector<int> DisconnectWatch::Ask() {
  std::vector<int> gone;
  const absl::Status is_set = store_->Wait({std::string(kAnyGone)}, kPatience);
  if (KindOf(is_set) == ErrorKind::kNetwork && hosting_rank_ >= 0) {
    is_watching_ = false;
    gone.push_back(hosting_rank_);
  }
  if (!is_set.ok()) return gone;
  const absl::StatusOr<std::vector<std::string>> keys = store_->Keys(kGonePrefix);
  if (!keys.ok()) return gone;
  for (const std::string& key : *keys) {
    int rank = -1;
    const bool is_number = absl::SimpleAtoi(key.substr(kGonePrefix.size()), &rank);
    // The keys of a store are not all ours.
    if (is_number && rank >= 0 && rank < peers_.size()) gone.push_back(rank);
  }
  return gone;
}

absl::Status DisconnectWatch::Check(absl::FunctionRef<bool(int)> matters) {
  absl::MutexLock lock(&mutex_);
  const absl::Time began = absl::Now();
  if (is_watching_ && began >= next_) {
    gone_ = Ask();
    const bool was_silent = absl::Now() - began > kInterval;
    next_ = absl::Now() + (was_silent ? kPause : kInterval);
  }
  std::vector<int> lost;
  std::vector<std::string> names;
  for (const int rank : gone_) {
    if (rank == peers_.rank() || !matters(rank)) continue;
    lost.push_back(rank);
    names.push_back(peers_.Describe(rank));
  }
  if (lost.empty()) return absl::OkStatus();
  const absl::string_view end = lost.size() == 1
                                    ? " has ended, or its host cannot be reached: its "
                                      "connection to the job's store is closed"
                                    : " have ended, or their hosts cannot be reached: "
                                      "their connections to the job's store are closed";
  return WithRanks(NetworkError(absl::StrCat(absl::StrJoin(names, ", "), end)), std::move(lost));
}

}  // namespace syncline::backends
