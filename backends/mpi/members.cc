#include "backends/mpi/members.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "backends/common/call_comparison.h"
#include "syncline/backend.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

absl::StatusOr<Member> ParseMember(const backends::PeerTable& peers, int rank,
                                   absl::string_view payload) {
  const std::vector<absl::string_view> words = absl::StrSplit(payload, absl::MaxSplits(' ', 5));
  Member member;
  // MPI may end the process if it is given a rank that its world does not have.
  if (words.size() == 6 && absl::SimpleAtoi(words[2], &member.world_rank) &&
      absl::SimpleAtoi(words[3], &member.world_size) && absl::SimpleAtoi(words[4], &member.nonce) &&
      member.world_rank >= 0 && member.world_rank < member.world_size) {
    member.checks = words[0] == "1";
    member.hosts_store = words[1] == "1";
    member.family = std::string(words[5]);
    return member;
  }
  return WithRanks(BackendError(absl::StrCat(peers.Describe(rank), " describes its MPI in words ",
                                             "that are not understood: do all ranks run the same ",
                                             "version of Syncline?")),
                   {rank});
}

}  // namespace

std::string Member::Serialize() const {
  return absl::StrCat(checks ? 1 : 0, " ", hosts_store ? 1 : 0, " ", world_rank, " ", world_size,
                      " ", nonce, " ", family);
}

absl::StatusOr<Members> ReadMembers(const backends::PeerTable& peers,
                                    absl::Span<const std::string> payloads) {
  SYNCLINE_DCHECK(static_cast<int>(payloads.size()) == peers.size());
  Members members;
  std::vector<int>& world_ranks = members.world_ranks;
  std::vector<MismatchCheck> checks;
  Member first;
  for (int rank = 0; rank < peers.size(); ++rank) {
    SYNCLINE_ASSIGN_OR_RETURN(const Member member, ParseMember(peers, rank, payloads[rank]));
    if (rank == 0) first = member;
    if (member.hosts_store) members.hosting_rank = rank;
    checks.push_back(member.checks ? MismatchCheck::kOn : MismatchCheck::kOff);
    const auto same = std::find(world_ranks.begin(), world_ranks.end(), member.world_rank);
    const int twin = static_cast<int>(same - world_ranks.begin());
    if (member.family != first.family) {
      return WithRanks(
          ArgumentError(absl::StrCat(peers.Describe(0), " uses ", first.family, ", and ",
                                     peers.Describe(rank), " ", member.family,
                                     ": ranks of backend mpi need one MPI")),
          {0, rank});
    }
    if (same != world_ranks.end() || member.world_size != first.world_size) {
      const int other = same != world_ranks.end() ? twin : 0;
      return WithRanks(
          ArgumentError(absl::StrCat(
              peers.Describe(other), " and ", peers.Describe(rank),
              " are not processes of one MPI job, as ranks of backend mpi must be (MPI calls the ",
              "second rank ", member.world_rank, " of ", member.world_size,
              "): start all of them by one mpirun, mpiexec or srun, of the MPI that they load")),
          {other, rank});
    }
    world_ranks.push_back(member.world_rank);
  }
  SYNCLINE_RETURN_IF_ERROR(backends::CheckAllCompareOrNone(checks));
  members.world_size = first.world_size;
  members.nonce = first.nonce;
  return members;
}

}  // namespace syncline::mpi
