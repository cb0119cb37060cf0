#include "syncline/subgroups.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/liveness.h"
#include "core/group/child_communicators.h"
#include "core/store/check_same.h"
#include "syncline/deadline.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline {
namespace {

// "[0,2]".
std::string Text(const std::vector<int>& ranks) {
  return absl::StrCat("[", absl::StrJoin(ranks, ","), "]");
}

std::string Text(const std::vector<std::vector<int>>& groups) {
  return absl::StrCat("[",
                      absl::StrJoin(groups, ",",
                                    [](std::string* out, const std::vector<int>& ranks) {
                                      out->append(Text(ranks));
                                    }),
                      "]");
}

// Adds `ranks` of `parent` to `seen`.
absl::Status CheckRanks(const ProcessGroup& parent, const std::vector<int>& ranks,
                        std::set<int>& seen) {
  for (int rank : ranks) {
    if (rank < 0 || rank >= parent.size()) {
      return ArgumentError(absl::StrCat("rank ", rank, " is not in group '", parent.name(), "' of ",
                                        parent.size(), ": ranks go from 0 to ", parent.size() - 1));
    }
    if (!seen.insert(rank).second) {
      return ArgumentError(absl::StrCat("rank ", rank, " is listed twice"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTimeout(ProcessGroup::Timeout timeout) {
  if (!timeout.has_value() || *timeout > absl::ZeroDuration()) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat("timeout must be positive, not ", absl::FormatDuration(*timeout)));
}

absl::Status CheckGroups(const ProcessGroup& parent, const std::vector<std::vector<int>>& groups) {
  std::set<int> seen;
  for (const std::vector<int>& ranks : groups) {
    if (ranks.empty()) return ArgumentError("a group needs at least one rank");
    SYNCLINE_RETURN_IF_ERROR(CheckRanks(parent, ranks, seen));
  }
  return absl::OkStatus();
}

std::vector<int> Ranks(const ProcessGroup& parent, const std::set<int>& without) {
  std::vector<int> ranks;
  for (int rank = 0; rank < parent.size(); ++rank) {
    if (without.count(rank) == 0) ranks.push_back(rank);
  }
  return ranks;
}

SplitPlace PlaceOf(int rank, const std::vector<std::vector<int>>& groups) {
  for (size_t color = 0; color < groups.size(); ++color) {
    for (size_t key = 0; key < groups[color].size(); ++key) {
      if (groups[color][key] == rank) return {static_cast<int>(color), static_cast<int>(key)};
    }
  }
  return {};
}

// A group of `ranks` of the parent, this one at `place`, that is called `suffix` in it.
absl::StatusOr<std::shared_ptr<ProcessGroup>> MakeChild(
    const ProcessGroup& parent, absl::string_view suffix, const std::vector<int>& ranks,
    size_t place, absl::Duration timeout, const Deadline& deadline,
    std::shared_ptr<ChildCommunicator> communicator = nullptr) {
  ProcessGroup::Options options = parent.options();
  options.communicator = std::move(communicator);
  options.name = absl::StrCat(parent.name(), "/", suffix);
  options.store = std::make_shared<PrefixStore>(absl::StrCat("child/", suffix), options.store);
  options.rank = static_cast<int>(place);
  options.size = static_cast<int>(ranks.size());
  options.ranks.clear();
  options.peers.clear();
  for (int rank : ranks) {
    options.ranks.push_back(parent.ranks()[rank]);
    if (!parent.options().peers.empty()) options.peers.push_back(parent.options().peers[rank]);
  }
  options.timeout = timeout;
  options.connect_timeout = deadline.Remaining();
  return ProcessGroup::Create(options);
}

// Meets the others that make a `kind` of group; returns what it is called. Each rank counts its
// attempts in the store, and skips those that were given up before it came: so a rank that was late
// can meet the others when they try again.
absl::StatusOr<std::string> Meet(const ProcessGroup& parent, absl::string_view kind,
                                 absl::string_view text, const std::vector<int>& ranks,
                                 const Deadline& deadline) {
  const std::shared_ptr<Store>& store = parent.options().store;
  const store::CheckSameOptions check = {
      absl::StrCat(kind, " of group '", parent.name(), "'"), std::string(text), parent.rank(),
      ranks, base::CheckRanksAlive(parent.options().peers, parent.rank(), ranks)};
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const int64_t attempt,
                              store->Add(absl::StrCat(kind, "/attempts/", parent.rank()), 1));
    PrefixStore meeting(absl::StrCat(kind, "/", attempt), store);
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_expired, store::HasCheckExpired(meeting));
    if (has_expired) continue;
    SYNCLINE_RETURN_IF_ERROR(store::CheckSameOnAllRanks(meeting, check, deadline));
    return absl::StrCat(kind, attempt);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> Split(ProcessGroup& parent,
                                                    const std::vector<std::vector<int>>& groups,
                                                    ProcessGroup::Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  SYNCLINE_RETURN_IF_ERROR(CheckGroups(parent, groups));
  absl::Status usable = parent.status();
  if (!usable.ok()) {
    return Annotate(usable, absl::StrCat("split was refused because group '", parent.name(),
                                         "' can no longer be used"));
  }
  const Deadline deadline(timeout.value_or(parent.timeout()));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string name,
                            Meet(parent, "split", Text(groups), Ranks(parent, {}), deadline));
  const SplitPlace place = PlaceOf(parent.rank(), groups);
  std::shared_ptr<ChildCommunicator> communicator;
  if (group::ChildCommunicators::CanMake(parent)) {
    SYNCLINE_ASSIGN_OR_RETURN(communicator,
                              group::ChildCommunicators::Make(parent, place, deadline));
  }
  if (place.color == SplitPlace::kNoColor) return std::shared_ptr<ProcessGroup>();
  const std::vector<int>& ranks = groups[static_cast<size_t>(place.color)];
  return MakeChild(parent, name + Text(ranks), ranks, static_cast<size_t>(place.key),
                   deadline.timeout(), deadline, std::move(communicator));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> Shrink(ProcessGroup& parent,
                                                     const std::vector<int>& excluded,
                                                     ProcessGroup::Timeout timeout) {
  SYNCLINE_RETURN_IF_ERROR(parent.CheckProcess());
  SYNCLINE_RETURN_IF_ERROR(CheckTimeout(timeout));
  std::set<int> gone;
  SYNCLINE_RETURN_IF_ERROR(CheckRanks(parent, excluded, gone));
  if (gone.count(parent.rank()) != 0) {
    return ArgumentError(absl::StrCat("rank ", parent.rank(), " excludes itself from group '",
                                      parent.name(), "': only those that remain call shrink"));
  }
  const Deadline deadline(timeout.value_or(parent.timeout()));
  const std::vector<int> remaining = Ranks(parent, gone);
  const std::string text =
      absl::StrCat("without ", Text(std::vector<int>(gone.begin(), gone.end())));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string name,
                            Meet(parent, "shrink", text, remaining, deadline));
  if (parent.status().ok()) parent.Abort("the group was shrunk");
  size_t place = 0;
  while (remaining[place] != parent.rank()) ++place;
  return MakeChild(parent, name + Text(remaining), remaining, place, parent.timeout(), deadline);
}

}  // namespace syncline
