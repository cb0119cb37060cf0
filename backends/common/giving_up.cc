#include "backends/common/giving_up.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/thread.h"
#include "core/tls/session.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr char kPrefix[] = "gave up/";
// Of the ranks that an error blames, so many are asked why.
constexpr size_t kMostAsked = 8;

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

bool Has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// "3 5  cannot connect to ...": the ranks that are to blame, and why. Where the two sides of a
// connection do not accept each other, it may be either.
std::string Serialize(const absl::Status& failure, int self) {
  std::vector<int> ranks = IsInterrupted(failure) ? std::vector<int>() : RanksOf(failure);
  if (tls::IsRefusal(failure)) ranks.push_back(self);
  return absl::StrCat(absl::StrJoin(ranks, " "), "  ", failure.message());
}

// What rank `from` has published, as an error of this rank.
absl::Status Quote(const PeerTable& peers, int from, const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits("  ", 1));
  std::vector<int> ranks;
  for (const absl::string_view word : absl::StrSplit(parts.first, ' ', absl::SkipEmpty())) {
    int rank = 0;
    if (absl::SimpleAtoi(word, &rank) && rank >= 0 && rank < peers.size()) ranks.push_back(rank);
  }
  // Of two that do not accept each other, each names the other.
  if (Has(ranks, from))
    ranks.erase(std::remove(ranks.begin(), ranks.end(), peers.rank()), ranks.end());
  if (ranks.empty()) ranks = {peers.NumberOf(from)};
  return WithRanks(
      NetworkError(absl::StrCat(peers.Describe(from), " has given up joining: ", parts.second)),
      std::move(ranks));
}

// What `rank` has published; OK if nothing.
absl::Status Ask(Store& store, const PeerTable& peers, int rank) {
  if (rank == peers.rank() || !store.Check({KeyOf(rank)}).value_or(false)) return absl::OkStatus();
  const absl::StatusOr<std::string> text = store.Get(KeyOf(rank), GivingUp::kBound);
  return text.ok() ? Quote(peers, rank, *text) : absl::OkStatus();
}

// What `ask` returns; OK if the store hangs.
absl::Status RunBounded(std::function<absl::Status()> ask, bool* hangs = nullptr) {
  const auto heard = std::make_shared<absl::Status>();
  const absl::Status answered = base::RunBounded("giving up joining", GivingUp::kBound,
                                                 [ask = std::move(ask), heard] { *heard = ask(); });
  if (hangs != nullptr) *hangs = !answered.ok();
  return answered.ok() ? *heard : absl::OkStatus();
}

}  // namespace

// Probes the store first: one that is silent would hold up the write for its full timeout.
void GivingUp::TellWithoutTable(Store& store, int rank, const std::string& own_key,
                                const absl::Status& failure) {
  const Uninterruptible telling;
  if (!store.Wait({own_key}, kBound).ok()) return;
  store.Set(KeyOf(rank), Serialize(failure, rank)).IgnoreError();
}

absl::Status GivingUp::Check() {
  const absl::Time now = absl::Now();
  if (now < next_check_) return absl::OkStatus();
  next_check_ = now + kInterval;
  const auto ask = [store = store_, peers = peers_]() -> absl::Status {
    const auto keys = store->Keys(kPrefix);
    if (!keys.ok()) return absl::OkStatus();
    for (const std::string& key : *keys) {
      int rank = 0;
      if (!absl::SimpleAtoi(key.substr(sizeof(kPrefix) - 1), &rank)) continue;
      if (rank >= 0 && rank < peers.size()) SYNCLINE_RETURN_IF_ERROR(Ask(*store, peers, rank));
    }
    return absl::OkStatus();
  };
  bool hangs = false;
  const absl::Status heard = RunBounded(ask, &hangs);
  if (hangs) next_check_ = absl::Now() + kIntervalOfSilentStore;
  has_heard_ = !heard.ok();
  return heard;
}

absl::Status GivingUp::Tell(const absl::Status& failure) const {
  const absl::Status quoted = RunBounded(
      [store = store_, peers = peers_, has_heard = has_heard_, failure]() -> absl::Status {
        const int self = peers.rank();
        if (!store->Set(KeyOf(self), Serialize(failure, self)).ok()) return absl::OkStatus();
        // Where one side does not accept what the other proves, no third rank is the cause.
        if (has_heard || tls::IsRefusal(failure)) return absl::OkStatus();
        std::vector<int> blamed = RanksOf(failure);
        blamed.resize(std::min(blamed.size(), kMostAsked));
        for (const int rank : blamed) {
          const absl::Status quote = Ask(*store, peers, rank);
          if (quote.ok()) continue;
          store->Set(KeyOf(self), Serialize(quote, self)).IgnoreError();
          return quote;
        }
        return absl::OkStatus();
      });
  // An error of another kind, such as an interrupt, is this rank's own.
  const ErrorKind kind = KindOf(failure);
  const bool may_be_consequence = kind == ErrorKind::kNetwork || kind == ErrorKind::kTimeout;
  return may_be_consequence && !quoted.ok() ? quoted : failure;
}

absl::StatusOr<std::shared_ptr<Backend>> MakeAfterMeeting(absl::string_view name,
                                                          const BackendConfig& config,
                                                          MakeInTable make) {
  const auto store = std::make_shared<PrefixStore>(std::string(name), config.store);
  const absl::StatusOr<PeerTable> peers =
      PeerTable::Join(*store, config.rank, config.size, "", config.deadline, config.check_peers);
  SYNCLINE_RETURN_IF_ERROR(peers.status());
  GivingUp giving_up(store, *peers);
  BackendConfig group = config;
  group.check_peers = [&]() -> absl::Status {
    SYNCLINE_RETURN_IF_ERROR(peers->CheckAlive());
    return giving_up.Check();
  };
  auto made = make(group, *peers);
  if (IsInterrupted(made.status())) return giving_up.Tell(made.status());
  return made;
}

}  // namespace syncline::backends
