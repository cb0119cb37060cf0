#include "backends/common/stall_reporter.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rank_ranges.h"
#include "core/base/thread.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::string_view kPrefix = "stall/";

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

// The name of an operation as another process has written it, fit for a line of the log.
std::string OneLine(absl::string_view name) {
  constexpr size_t kMostBytes = 256;
  std::string line(name.substr(0, kMostBytes));
  for (char& c : line) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return line;
}

std::string DescribeActivity(const PeerTable& peers, int rank,
                             const std::map<int, std::string>& waits,
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
  if (it != waits.end()) return absl::StrCat("it waits in ", OneLine(it->second));
  return absl::StrCat("it waits in no operation of this group",
                      last_seen.empty() ? "" : absl::StrCat(", it was last seen in ", last_seen));
}

void ReportMissing(Store& store, const PeerTable& peers, const StallReporter::Wait& wait,
                   absl::Duration waited, int64_t notice) {
  const auto waits = ReadWaits(store);
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
                      const std::map<std::string, std::vector<int>>& missing) {
  const std::string who =
      missing.empty()
          ? "all ranks have come: is the network between the hosts slow, or cut?"
          : absl::StrCat(
                "missing: ", absl::StrJoin(missing, "; ", [&](std::string* out, const auto& entry) {
                  const auto& [activity, ranks] = entry;
                  absl::StrAppend(out,
                                  ranks.size() == 1 ? peers.Describe(ranks[0])
                                                    : base::NameRanks(peers.NumbersOf(ranks)),
                                  ": ", activity);
                }));
  return absl::StrCat(peers.Describe(peers.rank()), " has waited for ",
                      absl::FormatDuration(waited), " in ", operation, "; ", who);
}

absl::StatusOr<std::map<int, std::string>> ReadWaits(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store.Keys(kPrefix));
  std::map<int, std::string> waits;
  for (const std::string& key : keys) {
    int rank = 0;
    if (!absl::SimpleAtoi(key.substr(kPrefix.size()), &rank)) continue;
    const auto value = store.Get(key, absl::ZeroDuration());
    if (value.ok()) waits[rank] = *value;  // Else the rank went on meanwhile.
  }
  return waits;
}

StallFindings FindMissing(const PeerTable& peers, const StallReporter::Wait& wait,
                          absl::Duration waited, const std::map<int, std::string>& waits) {
  const auto waits_here = [&](int rank) {
    const auto it = waits.find(rank);
    return wait.is_collective && it != waits.end() && it->second == wait.name;
  };
  StallFindings found;
  base::Stall& stall = found.stall;
  stall.rank = peers.rank();
  stall.operation = wait.operation;
  stall.waited = waited;
  std::map<std::string, std::vector<int>> missing;
  for (int rank : wait.awaited) {
    if (!waits_here(rank)) {
      stall.missing.push_back(rank);
      missing[DescribeActivity(peers, rank, waits, wait.last_seen)].push_back(rank);
    } else if (rank < peers.rank()) {
      found.is_lowest = false;
    }
  }
  std::sort(stall.missing.begin(), stall.missing.end());
  stall.text = StallText(peers, wait.operation, waited, missing);
  return found;
}

StallReporter::StallReporter(std::shared_ptr<Store> store, PeerTable peers)
    : store_(std::move(store)), peers_(std::make_shared<const PeerTable>(std::move(peers))) {}

void StallReporter::PublishWait(const std::string& name) const {
  InBackground(
      [store = store_, key = KeyOf(peers_->rank()), name] { store->Set(key, name).IgnoreError(); });
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
