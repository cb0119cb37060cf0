#include "backends/common/stall_reporter.h"

#include <algorithm>
#include <functional>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "backends/common/call_description.h"
#include "core/base/rank_ranges.h"
#include "core/base/thread.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::string_view kPrefix = "stall/";

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

std::string Serialize(const StallReporter::Wait& wait) {
  if (wait.awaits_all) return wait.name;
  return absl::StrCat(wait.name, "\n", absl::StrJoin(wait.awaited, " "));
}

// Of another process: what is not understood is left out.
PublishedWait Parse(absl::string_view text, int size) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, absl::MaxSplits('\n', 1));
  PublishedWait wait{std::string(lines[0]), {}};
  if (lines.size() == 1) return wait;
  for (const absl::string_view word : absl::StrSplit(lines[1], ' ')) {
    int rank = 0;
    if (!absl::SimpleAtoi(word, &rank) || rank < 0 || rank >= size) continue;
    if (static_cast<int>(wait.awaited.size()) < size) wait.awaited.push_back(rank);
  }
  return wait;
}

// The name of an operation as another process has written it, fit for a line of the log.
std::string OneLine(absl::string_view name) {
  constexpr size_t kMostBytes = 256;
  std::string line(name.substr(0, kMostBytes));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return line;
}

// The ranks that hold up `waiting`, which waits for `awaited` in the operation `name`: these, or
// where they wait in it too, those for which they do, if they have told.
std::set<int> MissingFor(int waiting, std::vector<int> awaited, const std::string& name,
                         const PublishedWaits& waits) {
  std::set<int> seen = {waiting}, missing;
  while (!awaited.empty()) {
    const int rank = awaited.back();
    awaited.pop_back();
    if (!seen.insert(rank).second) continue;
    const auto it = waits.find(rank);
    if (it == waits.end() || it->second.name != name) {
      missing.insert(rank);
    } else {
      awaited.insert(awaited.end(), it->second.awaited.begin(), it->second.awaited.end());
    }
  }
  return missing;
}

std::string DescribeActivity(const PeerTable& peers, int rank, const PublishedWaits& waits,
                             const std::string& last_seen) {
  switch (peers.LivenessOf(rank)) {
    case base::Liveness::kStopped:
      return "its process is stopped";
    case base::Liveness::kDead:
      return "its process has ended";
    default:
      break;
  }
  const auto it = waits.find(rank);
  if (it != waits.end()) return absl::StrCat("it waits in ", OneLine(it->second.name));
  return absl::StrCat("it waits in no operation of this group",
                      last_seen.empty() ? "" : absl::StrCat(", it was last seen in ", last_seen));
}

void ReportMissing(Store& store, const PeerTable& peers, const StallReporter::Wait& wait,
                   absl::Duration waited, int64_t notice) {
  const auto waits = ReadWaits(store, peers.size());
  if (waits.ok()) {
    const StallFindings found = FindMissing(peers, wait, waited, *waits);
    return base::ReportStall(notice, found.stall, found.is_lowest);
  }
  base::Stall stall;
  stall.rank = peers.rank();
  stall.operation = wait.operation;
  stall.waited = waited;
  stall.text = absl::StrCat(peers.Describe(peers.rank()), " has waited for ",
                            absl::FormatDuration(waited), " in ", wait.operation,
                            "; who is missing is not known: ", waits.status().message());
  base::ReportStall(notice, stall, /*speaks=*/true);
}

// The operation may go on at any time, so a store that does not answer must not delay it.
void InBackground(std::function<void()> task) {
  auto thread = base::StartThread("warnings of stalls", std::move(task));
  if (thread.ok()) thread->detach();  // Else the next warning tries again.
}

}  // namespace

std::string StallText(const PeerTable& peers, absl::string_view operation, absl::Duration waited,
                      const std::map<std::string, std::vector<int>>& missing,
                      const std::vector<int>& come) {
  const auto name = [&](const std::vector<int>& ranks) {
    return ranks.size() == 1 ? peers.Describe(ranks[0]) : base::NameRanks(peers.NumbersOf(ranks));
  };
  const auto describe_missing = [&](std::string* out, const auto& entry) {
    const auto& [activity, ranks] = entry;
    absl::StrAppend(out, name(ranks), ": ", activity);
  };
  std::string who;
  if (!missing.empty()) {
    who = absl::StrCat("missing: ", absl::StrJoin(missing, "; ", describe_missing));
  } else {
    who = come.empty() ? "all ranks have"
                       : absl::StrCat(name(come), ", for which it waits, ", Have(come));
    absl::StrAppend(&who, " come: is the network between the hosts slow, or cut?");
  }
  return absl::StrCat(peers.Describe(peers.rank()), " has waited for ",
                      absl::FormatDuration(waited), " in ", operation, "; ", who);
}

absl::StatusOr<PublishedWaits> ReadWaits(Store& store, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store.Keys(kPrefix));
  PublishedWaits waits;
  for (const std::string& key : keys) {
    int rank = 0;
    if (!absl::SimpleAtoi(key.substr(kPrefix.size()), &rank) || rank < 0 || rank >= size) continue;
    const auto value = store.Get(key, absl::ZeroDuration());
    if (value.ok()) waits[rank] = Parse(*value, size);  // Else the rank went on meanwhile.
  }
  return waits;
}

StallFindings FindMissing(const PeerTable& peers, const StallReporter::Wait& wait,
                          absl::Duration waited, const PublishedWaits& waits) {
  // A message is not an operation of all: its name says nothing of the other side.
  const PublishedWaits none;
  const PublishedWaits& here = wait.is_collective ? waits : none;
  const std::set<int> missing_ranks = MissingFor(peers.rank(), wait.awaited, wait.name, here);
  StallFindings found;
  base::Stall& stall = found.stall;
  stall.rank = peers.rank();
  stall.operation = wait.operation;
  stall.waited = waited;
  std::map<std::string, std::vector<int>> missing;
  for (const int rank : missing_ranks) {
    stall.missing.push_back(rank);
    missing[DescribeActivity(peers, rank, waits, wait.last_seen)].push_back(rank);
  }
  for (const auto& [rank, other] : here) {
    if (rank >= peers.rank() || other.name != wait.name) continue;
    const std::set<int> known = MissingFor(rank, other.awaited, wait.name, here);
    const bool awaits_all = other.awaited.empty();
    if (awaits_all ||
        std::includes(known.begin(), known.end(), missing_ranks.begin(), missing_ranks.end())) {
      found.is_lowest = false;
    }
  }
  stall.text = StallText(peers, wait.operation, waited, missing,
                         wait.awaits_all ? std::vector<int>() : wait.awaited);
  return found;
}

StallReporter::StallReporter(std::shared_ptr<Store> store, PeerTable peers)
    : store_(std::move(store)), peers_(std::make_shared<const PeerTable>(std::move(peers))) {}

void StallReporter::PublishWait(const Wait& wait) const {
  InBackground([store = store_, key = KeyOf(peers_->rank()), value = Serialize(wait)] {
    store->Set(key, value).IgnoreError();
  });
}

void StallReporter::ClearWait() const {
  InBackground(
      [store = store_, key = KeyOf(peers_->rank())] { store->Delete(key).status().IgnoreError(); });
}

void StallReporter::Report(Wait wait, absl::Duration waited, int64_t notice) const {
  InBackground([store = store_, peers = peers_, wait = std::move(wait), waited, notice] {
    ReportMissing(*store, *peers, wait, waited, notice);
  });
}

}  // namespace syncline::backends
