#include "core/join/join_record.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using Role = StoreConfig::Role;

// How many processes a message lists with host and pid.
constexpr size_t kShown = 8;

}  // namespace

std::string JoinRecord::Serialize() const {
  return absl::StrCat(rank, role == Role::kServer ? " server " : " client ", backend, " ",
                      peer.Serialize());
}

absl::StatusOr<JoinRecord> JoinRecord::Parse(absl::string_view text) {
  const std::vector<absl::string_view> fields = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  JoinRecord record;
  if (fields.size() != 4 || !absl::SimpleAtoi(fields[0], &record.rank) || record.rank < -1) {
    return StoreError(absl::StrCat("'", text, "' does not describe a process: do two jobs, or two ",
                                   "versions of Syncline, share a store?"));
  }
  record.role = fields[1] == "server" ? Role::kServer : Role::kClient;
  record.backend = std::string(fields[2]);
  SYNCLINE_ASSIGN_OR_RETURN(record.peer, Peer::Parse(fields[3]));
  return record;
}

absl::StatusOr<std::vector<JoinRecord>> ParseRecords(const std::vector<std::string>& texts) {
  std::vector<JoinRecord> records;
  records.reserve(texts.size());
  for (const std::string& text : texts) {
    SYNCLINE_ASSIGN_OR_RETURN(JoinRecord record, JoinRecord::Parse(text));
    records.push_back(std::move(record));
  }
  return records;
}

absl::StatusOr<std::vector<int>> AssignRanks(const std::vector<JoinRecord>& records) {
  std::set<int> free_ranks;
  for (size_t i = 0; i < records.size(); ++i) free_ranks.insert(static_cast<int>(i));
  for (const JoinRecord& record : records) {
    if (record.rank < 0 || free_ranks.erase(record.rank) == 1) continue;
    return StoreError(absl::StrCat("the store holds a rank ", record.rank, " too many in a world ",
                                   "of ", records.size(), "; do two jobs share it?"));
  }
  std::vector<int> ranks(records.size());
  // The host of the store comes first: it outlives the others as rank 0 usually does.
  for (const Role role : {Role::kServer, Role::kClient}) {
    for (size_t i = 0; i < records.size(); ++i) {
      if (records[i].role != role) continue;
      ranks[i] = records[i].rank;
      if (ranks[i] < 0) ranks[i] = free_ranks.extract(free_ranks.begin()).value();
    }
  }
  return ranks;
}

absl::Status CheckSameBackend(const std::vector<JoinRecord>& records,
                              const std::vector<int>& ranks) {
  std::vector<const JoinRecord*> by_rank(records.size());
  for (size_t i = 0; i < records.size(); ++i) by_rank[ranks[i]] = &records[i];
  const JoinRecord& first = *by_rank[0];
  for (size_t rank = 1; rank < by_rank.size(); ++rank) {
    const JoinRecord& other = *by_rank[rank];
    if (other.backend == first.backend) continue;
    return WithRanks(MismatchError(absl::StrCat(
                         "rank 0 (", first.peer.ToString(), ") joins with backend ", first.backend,
                         ", and rank ", rank, " (", other.peer.ToString(), ") with backend ",
                         other.backend, ": all ranks of a world need the same")),
                     {0, static_cast<int>(rank)});
  }
  return absl::OkStatus();
}

std::string Describe(const std::vector<JoinRecord>& records) {
  const size_t shown = std::min(records.size(), kShown);
  std::string text =
      absl::StrJoin(records.begin(), records.begin() + shown, ", ",
                    [](std::string* out, const JoinRecord& record) {
                      absl::StrAppend(out, record.rank < 0 ? "any" : absl::StrCat(record.rank),
                                      " (", record.peer.ToString(), ")");
                    });
  if (shown < records.size()) {
    absl::StrAppend(&text, " and ", records.size() - shown, " more");
  }
  return text;
}

}  // namespace syncline::join
