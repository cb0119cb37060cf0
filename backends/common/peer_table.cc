#include "backends/common/peer_table.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/common/giving_up.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// Changes with whatever ranks send each other: two that send other things may agree on all sizes,
// and go on with wrong elements.
constexpr absl::string_view kProtocol = "protocol 12";

std::string KeyOf(int rank) { return absl::StrCat("member/", rank); }

// How long to look for the ranks that did not come, for all together and for each.
constexpr absl::Duration kSearchTimeout = absl::Seconds(2);
constexpr absl::Duration kSearchTimeoutPerRank = absl::Milliseconds(50);

// The ranks without an entry. It waits for the entries instead of listing the keys, because only a
// wait has a bound of its own when the store hangs.
absl::StatusOr<std::vector<int>> FindAbsent(Store& store, int rank, int size) {
  const Deadline deadline(kSearchTimeout);
  // This rank's own entry is certain to exist. So if it does not come, the store does not answer.
  SYNCLINE_RETURN_IF_ERROR(store.Wait({KeyOf(rank)}, deadline.Remaining()));
  std::vector<int> absent;
  for (int r = 0; r < size; ++r) {
    const absl::Duration share = deadline.Remaining() / (size - r + 1);
    const absl::Status status = store.Wait({KeyOf(r)}, std::min(share, kSearchTimeoutPerRank));
    if (status.ok()) continue;
    if (KindOf(status) != ErrorKind::kTimeout || deadline.Expired()) return status;
    absent.push_back(r);
  }
  return absent;
}

absl::Status ExplainTimeout(Store& store, int rank, int size, const Deadline& deadline) {
  const std::string timeout = absl::FormatDuration(deadline.timeout());
  const absl::StatusOr<std::vector<int>> absent = FindAbsent(store, rank, size);
  if (!absent.ok()) {
    return Annotate(absent.status(),
                    absl::StrCat("not all of ", size, " ranks have joined the ", "group within ",
                                 timeout, ", and the store does not tell which"));
  }
  if (absent->empty()) {
    return TimeoutError(absl::StrCat("the last of ", size, " ranks came just after the ", timeout,
                                     " in which all had to join the group; allow more time"));
  }
  const absl::Status late = TimeoutError(
      absl::StrCat(base::NameRanks(*absent), " of ", size, " ", Have(*absent),
                   " not joined the group within ", timeout, " (store ", WithoutPrefixes(store),
                   "); check that all ranks were started, with equal sizes and the same store"));
  return WithRanks(late, *absent);
}

}  // namespace

absl::StatusOr<PeerTable> PeerTable::Join(Store& store, int rank, int size,
                                          const absl::StatusOr<std::string>& payload,
                                          const Deadline& deadline, const PeerCheck& check_peers,
                                          absl::string_view settings) {
  // A rank that cannot connect publishes that too: its peers would wait for it until the deadline.
  const absl::Status published = store.Set(KeyOf(rank), Serialize(Self(payload, settings)));
  SYNCLINE_RETURN_IF_ERROR(payload.status());
  if (IsInterrupted(published)) GivingUp::TellWithoutTable(store, rank, KeyOf(rank), published);
  SYNCLINE_RETURN_IF_ERROR(published);
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(KeyOf(r));
  // The wait is cut into slices so that the death of a peer ends it long before the deadline.
  const absl::Duration slice = check_peers ? base::kLivenessInterval : absl::InfiniteDuration();
  absl::StatusOr<std::vector<std::string>> values;
  while (!(values = store.MultiGet(keys, std::min(deadline.Remaining(), slice))).ok()) {
    if (deadline.Expired()) return ExplainTimeout(store, rank, size, deadline);
    if (IsInterrupted(values.status())) {
      GivingUp::TellWithoutTable(store, rank, KeyOf(rank), values.status());
    }
    if (!check_peers || KindOf(values.status()) != ErrorKind::kTimeout) return values.status();
    SYNCLINE_RETURN_IF_ERROR(check_peers());
  }
  std::vector<Member> members;
  for (const std::string& value : *values) {
    SYNCLINE_ASSIGN_OR_RETURN(Member member, Parse(value));
    members.push_back(std::move(member));
  }
  PeerTable peers(rank, std::move(members));
  for (int r = 0; r < size; ++r) {
    const std::string& failure = peers.members_[r].failure;
    if (failure.empty()) continue;
    return WithRanks(BackendError(absl::StrCat(peers.Describe(r), ": ", failure)), {r});
  }
  return peers;
}

std::string PeerTable::Describe(int rank) const {
  return absl::StrCat("rank ", NumberOf(rank), " (", members_[rank].peer.ToString(), ")");
}

std::vector<int> PeerTable::NumbersOf(std::vector<int> ranks) const {
  for (int& rank : ranks) rank = NumberOf(rank);
  return ranks;
}

base::Liveness PeerTable::LivenessOf(int rank) const {
  return base::LivenessOf(members_[rank_].peer, members_[rank].peer);
}

absl::Status PeerTable::CheckAlive() const {
  std::vector<int> dead;
  std::vector<std::string> names;
  for (int rank = 0; rank < size(); ++rank) {
    if (LivenessOf(rank) != base::Liveness::kDead) continue;
    dead.push_back(NumberOf(rank));
    names.push_back(Describe(rank));
  }
  return base::DeadRanksError(std::move(dead), names);
}

PeerTable::Member PeerTable::Self(const absl::StatusOr<std::string>& payload,
                                  absl::string_view settings) {
  Member self;
  self.settings = std::string(settings);
  const absl::StatusOr<Peer> peer = base::IdentifyThisProcess();
  self.peer = peer.ok() ? *peer : base::ThisPeer();
  const absl::Status failure = payload.ok() ? peer.status() : payload.status();
  if (failure.ok()) {
    self.payload = *payload;
  } else {
    self.failure = absl::StrReplaceAll(failure.message(), {{"\n", " "}});
  }
  return self;
}

std::string PeerTable::Serialize(const Member& member) {
  return absl::StrCat(member.peer.Serialize(), "\n", kProtocol, "\n", member.failure, "\n",
                      member.settings, "\n", member.payload);
}

absl::StatusOr<PeerTable::Member> PeerTable::Parse(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 4));
  Member member;
  if (lines.size() != 5) {
    return StoreError(absl::StrCat("the store's entry for a rank is not understood: do two jobs, ",
                                   "or two versions of Syncline, share a store?"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(member.peer, Peer::Parse(lines[0]));
  if (lines[1] != kProtocol) {
    return StoreError(absl::StrCat("the process on ", member.peer.ToString(), " speaks ", lines[1],
                                   " and this one ", kProtocol,
                                   ": install the same version of Syncline on all hosts"));
  }
  member.failure = lines[2];
  member.settings = lines[3];
  member.payload = lines[4];
  return member;
}

}  // namespace syncline::backends
