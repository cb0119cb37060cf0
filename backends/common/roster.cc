#include "backends/common/roster.h"

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
#include "backends/common/call.h"
#include "core/prefix_store.h"
#include "core/status.h"

namespace syncline {
namespace {

std::string KeyOf(int rank) { return absl::StrCat("member/", rank); }

struct ProcessState {
  bool ending;  // It is being torn down, or waits as a zombie for its parent.
  bool stopped;
  int64_t started;
};

// PF_EXITING of the kernel. Set before a process's connections are closed, so that whoever sees
// them close also sees this; it becomes a zombie only later.
constexpr int64_t kExiting = 0x4;

// Nothing if there is no such process. proc(5), /proc/pid/stat: of the fields after the command,
// which may itself hold spaces and parentheses, the first is the state, the 7th the kernel's flags
// and the 20th the start time.
std::optional<ProcessState> ReadProcess(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  std::getline(file, text,
               '\0');  // Fails, where an iterator throws, if the process goes meanwhile.
  const size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(command_end + 1), ' ', absl::SkipEmpty());
  ProcessState process;
  int64_t flags;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[6], &flags) ||
      !absl::SimpleAtoi(fields[19], &process.started)) {
    return std::nullopt;
  }
  process.ending = fields[0] == "Z" || fields[0] == "X" || (flags & kExiting) != 0;
  process.stopped = fields[0] == "T" || fields[0] == "t";
  return process;
}

std::string PidNamespace() {
  char link[64] = {};
  return readlink("/proc/self/ns/pid", link, sizeof(link) - 1) > 0 ? link : "-";
}

// How often to look whether the ranks that have not come have died.
constexpr absl::Duration kLivenessInterval = absl::Seconds(1);

// How long to look for the ranks that have not come, in all and for each.
constexpr absl::Duration kSearch = absl::Seconds(2);
constexpr absl::Duration kSearchForOne = absl::Milliseconds(50);

// The ranks without an entry. Waits instead of asking, since the caller bounds only a wait.
absl::StatusOr<std::vector<int>> FindAbsent(Store& store, int rank, int size) {
  const Deadline deadline(kSearch);
  // The own entry is there for certain: it tells an absent rank from a store that does not answer.
  SYNCLINE_RETURN_IF_ERROR(store.Wait({KeyOf(rank)}, deadline.Remaining()));
  std::vector<int> absent;
  for (int r = 0; r < size; ++r) {
    const absl::Duration share = deadline.Remaining() / (size - r + 1);
    const absl::Status status = store.Wait({KeyOf(r)}, std::min(share, kSearchForOne));
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
  return TimeoutError(
      absl::StrCat(NameRanks(*absent), " of ", size, " ", Have(*absent),
                   " not joined the group within ", timeout, " (store ", WithoutPrefixes(store),
                   "); check that all ranks were started, with equal sizes and the same store"));
}

}  // namespace

absl::StatusOr<Roster> Roster::Join(Store& store, int rank, int size,
                                    const absl::StatusOr<std::string>& payload,
                                    const Deadline& deadline, const Roster* known) {
  const absl::Status published = store.Set(KeyOf(rank), Serialize(Self(payload)));
  SYNCLINE_RETURN_IF_ERROR(payload.status());
  SYNCLINE_RETURN_IF_ERROR(published);
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(KeyOf(r));
  const absl::Duration slice = known == nullptr ? absl::InfiniteDuration() : kLivenessInterval;
  absl::StatusOr<std::vector<std::string>> values;
  while (!(values = store.MultiGet(keys, std::min(deadline.Remaining(), slice))).ok()) {
    if (deadline.Expired()) return ExplainTimeout(store, rank, size, deadline);
    if (known == nullptr || KindOf(values.status()) != ErrorKind::kTimeout) return values.status();
    SYNCLINE_RETURN_IF_ERROR(known->CheckAlive());
  }
  std::vector<Member> members;
  for (const std::string& value : *values) {
    SYNCLINE_ASSIGN_OR_RETURN(Member member, Parse(value));
    members.push_back(std::move(member));
  }
  Roster roster(rank, std::move(members));
  for (int r = 0; r < size; ++r) {
    const std::string& failure = roster.members_[r].failure;
    if (!failure.empty()) return BackendError(absl::StrCat(roster.Describe(r), ": ", failure));
  }
  return roster;
}

std::string Roster::Describe(int rank) const {
  return absl::StrCat("rank ", rank, " (", members_[rank].peer.ToString(), ")");
}

Liveness Roster::Probe(int rank) const {
  const Member& self = members_[rank_];
  const Member& member = members_[rank];
  if (member.peer.identity != self.peer.identity || member.pid_namespace != self.pid_namespace) {
    return Liveness::kUnknown;
  }
  const std::optional<ProcessState> process = ReadProcess(member.peer.pid);
  if (!process.has_value() || process->started != member.started || process->ending) {
    return Liveness::kDead;
  }
  return process->stopped ? Liveness::kStopped : Liveness::kAlive;
}

absl::Status Roster::CheckAlive() const {
  std::vector<std::string> dead;
  for (int rank = 0; rank < size(); ++rank) {
    if (Probe(rank) == Liveness::kDead) dead.push_back(Describe(rank));
  }
  if (dead.empty()) return absl::OkStatus();
  return NetworkError(
      absl::StrCat(absl::StrJoin(dead, ", "), dead.size() == 1 ? " has" : " have", " died"));
}

Roster::Member Roster::Self(const absl::StatusOr<std::string>& payload) {
  Member self;
  self.peer = ThisPeer();
  self.pid_namespace = PidNamespace();
  const std::optional<ProcessState> process = ReadProcess(self.peer.pid);
  if (process.has_value()) self.started = process->started;
  if (payload.ok()) {
    self.payload = *payload;
  } else {
    self.failure = absl::StrReplaceAll(payload.status().message(), {{"\n", " "}});
  }
  return self;
}

std::string Roster::Serialize(const Member& member) {
  return absl::StrCat(member.peer.Serialize(), "\n", member.pid_namespace, "\n", member.started,
                      "\n", member.failure, "\n", member.payload);
}

absl::StatusOr<Roster::Member> Roster::Parse(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 4));
  Member member;
  if (lines.size() != 5 || !absl::SimpleAtoi(lines[2], &member.started)) {
    return StoreError(absl::StrCat("the store's entry for a rank is not understood: do two jobs, ",
                                   "or two versions of Syncline, share a store?"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(member.peer, Peer::Parse(lines[0]));
  member.pid_namespace = lines[1];
  member.failure = lines[3];
  member.payload = lines[4];
  return member;
}

}  // namespace syncline
