#include "backends/common/giving_up.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "core/base/thread.h"
#include "core/tls/session.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

std::string KeyOf(int rank) { return absl::StrCat("gave up/", rank); }

// "3 5  cannot connect to ...": the ranks that are to blame, and why. Where the two sides of a
// connection do not accept each other, it may be either.
std::string Serialize(const absl::Status& failure, int self) {
  std::vector<int> ranks = RanksOf(failure);
  if (tls::IsRefusal(failure)) ranks.push_back(self);
  return absl::StrCat(absl::StrJoin(ranks, " "), "  ", failure.message());
}

// What rank `from` has published, as an error of this rank. Nothing where that blames this one too,
// which knows better then.
std::optional<absl::Status> Quote(const PeerTable& peers, int from, const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits("  ", 1));
  std::vector<int> ranks;
  for (const absl::string_view word : absl::StrSplit(parts.first, ' ', absl::SkipEmpty())) {
    int rank = 0;
    if (absl::SimpleAtoi(word, &rank) && rank >= 0 && rank < peers.size()) ranks.push_back(rank);
  }
  if (std::count(ranks.begin(), ranks.end(), peers.rank()) > 0) return std::nullopt;
  if (ranks.empty()) ranks = {from};
  return WithRanks(
      NetworkError(absl::StrCat(peers.Describe(from), " has given up joining: ", parts.second)),
      std::move(ranks));
}

// A thread of its own shares it with the caller, so that the caller can leave the thread behind if
// the store hangs.
struct Exchange {
  std::shared_ptr<Store> store;
  PeerTable peers;
  absl::Status failure;
  absl::Status result;
  absl::Notification done;
};

void Run(Exchange& exchange) {
  Store& store = *exchange.store;
  // Where one side does not accept what the other proves, no third rank is the cause.
  const bool may_be_consequence = !tls::IsRefusal(exchange.failure);
  for (const int rank : may_be_consequence ? RanksOf(exchange.failure) : std::vector<int>()) {
    const std::string key = KeyOf(rank);
    if (rank == exchange.peers.rank() || !store.Check({key}).value_or(false)) continue;
    const absl::StatusOr<std::string> text = store.Get(key, kGivingUpBound);
    if (!text.ok()) continue;
    if (const auto quoted = Quote(exchange.peers, rank, *text); quoted.has_value()) {
      exchange.result = *quoted;
      break;
    }
  }
  const int self = exchange.peers.rank();
  store.Set(KeyOf(self), Serialize(exchange.result, self)).IgnoreError();
}

}  // namespace

absl::Status GiveUpJoining(std::shared_ptr<Store> store, const PeerTable& peers,
                           const absl::Status& failure) {
  const std::shared_ptr<Exchange> exchange(
      new Exchange{std::move(store), peers, failure, failure, {}});
  absl::StatusOr<std::thread> thread = base::StartThread("giving up joining", [exchange] {
    Run(*exchange);
    exchange->done.Notify();
  });
  if (!thread.ok()) return failure;
  if (!exchange->done.WaitForNotificationWithTimeout(kGivingUpBound)) {
    thread->detach();
    return failure;
  }
  thread->join();
  // An error of another kind, such as an interrupt, is this rank's own.
  const ErrorKind kind = KindOf(failure);
  return kind == ErrorKind::kNetwork || kind == ErrorKind::kTimeout ? exchange->result : failure;
}

}  // namespace syncline::backends
