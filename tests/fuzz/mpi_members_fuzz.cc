// What ranks of backend mpi tell each other in the store when they join.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "backends/mpi/members.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/error_origin.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

mpi::Member MemberOf(int rank) {
  mpi::Member member;
  member.hosts_store = rank == 0;
  member.world_rank = rank;
  member.world_size = kRanks;
  member.nonce = 4711;
  member.family = "Open MPI";
  return member;
}

std::string TextOf(const std::vector<mpi::Member>& members) {
  std::string text;
  for (const mpi::Member& member : members) text += Text(member.Serialize());
  return text;
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  std::vector<std::string> payloads;
  for (int rank = 0; rank < kRanks; ++rank) payloads.emplace_back(reader.Text());
  const auto members = mpi::ReadMembers(Peers(), payloads);
  for (const int rank : RanksOf(members.status())) {
    Require(rank >= 0 && rank < kRanks, "ranks are the group's");
  }
  if (!members.ok()) return;
  std::vector<int> world_ranks = members->world_ranks;
  Require(world_ranks.size() == kRanks, "each rank has one of MPI's");
  std::sort(world_ranks.begin(), world_ranks.end());
  Require(world_ranks[0] >= 0 && world_ranks.back() < members->world_size, "MPI has these ranks");
  for (int rank = 1; rank < kRanks; ++rank) {
    Require(world_ranks[rank - 1] < world_ranks[rank], "no two ranks are one process");
  }
  Require(members->hosting_rank >= -1 && members->hosting_rank < kRanks, "ranks are the group's");
  // Ranks that say what has been understood are understood in the same way.
  payloads.clear();
  for (int rank = 0; rank < kRanks; ++rank) {
    mpi::Member member;
    member.hosts_store = rank == members->hosting_rank;
    member.world_rank = members->world_ranks[rank];
    member.world_size = members->world_size;
    member.nonce = members->nonce;
    payloads.push_back(member.Serialize());
  }
  const auto again = mpi::ReadMembers(Peers(), payloads);
  Require(again.ok() && again->world_ranks == members->world_ranks &&
              again->nonce == members->nonce && again->hosting_rank == members->hosting_rank,
          "what is written can be read");
}

std::vector<std::string> Seeds() {
  std::vector<mpi::Member> same;
  for (int rank = 0; rank < kRanks; ++rank) same.push_back(MemberOf(rank));
  std::vector<std::string> seeds = {TextOf(same)};
  const auto with = [&](auto change) {
    std::vector<mpi::Member> changed = same;
    change(changed[2]);
    seeds.push_back(TextOf(changed));
  };
  with([](mpi::Member& member) { member.family = "MPICH"; });
  with([](mpi::Member& member) { member.world_rank = 0; });
  with([](mpi::Member& member) { member.world_size = 9; });
  with([](mpi::Member& member) { member.checks = false; });
  // Ranks that MPI does not have were once passed on to it.
  with([](mpi::Member& member) { member.world_rank = -1; });
  with([](mpi::Member& member) { member.world_rank = 1000; });
  return seeds;
}

}  // namespace syncline::fuzz
