#include "backends/common/stall_report.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rank_ranges.h"
#include "core/base/stall_file.h"
#include "core/base/status.h"
#include "core/base/thread.h"

namespace syncline {
namespace {

constexpr absl::string_view kPrefix = "stall/";

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

// What the ranks wait in, of those that have told.
absl::StatusOr<std::map<int, std::string>> ReadAll(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store.Keys(kPrefix));
  std::map<int, std::string> waits;
  for (const std::string& key : keys) {
    int rank = 0;
    if (!absl::SimpleAtoi(key.substr(kPrefix.size()), &rank)) continue;
    const auto value = store.Get(key, absl::ZeroDuration());
    if (value.ok()) waits[rank] = *value;  // It may have gone on meanwhile.
  }
  return waits;
}

std::string Doing(const Roster& roster, int rank, const std::map<int, std::string>& waits,
                  const std::string& last_seen) {
  switch (roster.Probe(rank)) {
    case Liveness::kStopped:
      return "its process is stopped";
    case Liveness::kDead:
      return "its process has ended";
    default:
      break;
  }
  const auto it = waits.find(rank);
  if (it != waits.end()) return absl::StrCat("it waits in ", it->second);
  return absl::StrCat("it waits in no operation of this group",
                      last_seen.empty() ? "" : absl::StrCat(", it was last seen in ", last_seen));
}

void ReportMissing(Store& store, const Roster& roster, const StallReporter::Wait& wait,
                   absl::Duration waited, int64_t notice) {
  Stall stall;
  stall.rank = roster.rank();
  stall.operation = wait.operation;
  stall.waited = waited;
  const auto waits = ReadAll(store);
  if (!waits.ok()) {
    stall.text = absl::StrCat(roster.Describe(roster.rank()), " has waited for ",
                              absl::FormatDuration(waited), " in ", wait.operation,
                              "; who is missing is not known: ", waits.status().message());
    return ReportStall(notice, stall, /*speaks=*/true);
  }
  const auto waits_here = [&](int rank) {
    const auto it = waits->find(rank);
    return wait.is_collective && it != waits->end() && it->second == wait.name;
  };
  bool speaks = true;  // No lower rank waits.
  std::map<std::string, std::vector<int>> missing;
  for (int rank : wait.awaited) {
    if (!waits_here(rank)) {
      stall.missing.push_back(rank);
      missing[Doing(roster, rank, *waits, wait.last_seen)].push_back(rank);
    } else if (rank < roster.rank()) {
      speaks = false;
    }
  }
  std::sort(stall.missing.begin(), stall.missing.end());
  stall.text = StallText(roster, wait.operation, waited, missing);
  ReportStall(notice, stall, speaks);
}

// A store that does not answer must not hold up the operation, which may go on at any time.
void InBackground(std::function<void()> task) {
  auto thread = StartThread("warnings of stalls", std::move(task));
  if (thread.ok()) thread->detach();  // Else the next warning tries again.
}

}  // namespace

std::string StallText(const Roster& roster, absl::string_view operation, absl::Duration waited,
                      const std::map<std::string, std::vector<int>>& missing) {
  const std::string who =
      missing.empty()
          ? "all ranks have come: is the network between the hosts slow, or cut?"
          : absl::StrCat(
                "missing: ", absl::StrJoin(missing, "; ", [&](std::string* out, const auto& entry) {
                  const auto& [doing, ranks] = entry;
                  absl::StrAppend(out,
                                  ranks.size() == 1 ? roster.Describe(ranks[0]) : NameRanks(ranks),
                                  ": ", doing);
                }));
  return absl::StrCat(roster.Describe(roster.rank()), " has waited for ",
                      absl::FormatDuration(waited), " in ", operation, "; ", who);
}

StallReporter::StallReporter(std::shared_ptr<Store> store, Roster roster)
    : store_(std::move(store)), roster_(std::make_shared<const Roster>(std::move(roster))) {}

void StallReporter::Tell(const std::string& name) const {
  InBackground([store = store_, key = KeyOf(roster_->rank()), name] {
    store->Set(key, name).IgnoreError();
  });
}

void StallReporter::Forget() const {
  InBackground([store = store_, key = KeyOf(roster_->rank())] {
    store->Delete(key).status().IgnoreError();
  });
}

void StallReporter::Report(Wait wait, absl::Duration waited, int64_t notice) const {
  InBackground([store = store_, roster = roster_, wait = std::move(wait), waited, notice] {
    ReportMissing(*store, *roster, wait, waited, notice);
  });
}

}  // namespace syncline
