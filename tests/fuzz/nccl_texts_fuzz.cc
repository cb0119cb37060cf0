// What ranks of backend nccl tell each other in the store beside their calls: what each has when
// they join, and why the group has failed.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/nccl/failure_text.h"
#include "backends/nccl/group_support.h"
#include "backends/nccl/introduction.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

using nccl::GroupSupport;
using nccl::Introduction;
using nccl::ParseFailure;
using nccl::RankSupport;
using nccl::ReportedFailure;

void RequireOneRank(const absl::Status& lacking) {
  const std::vector<int> ranks = RanksOf(lacking);
  Require(ranks.size() == 1 && ranks[0] >= 0 && ranks[0] < kRanks,
          "the rank that lacks it is named");
}

void ReadIntroductions(Reader& reader) {
  std::vector<RankSupport> supports;
  bool has_all = true;
  for (int rank = 0; rank < kRanks; ++rank) {
    const absl::string_view payload = reader.Text();
    const Introduction introduction = Introduction::Parse(payload);
    Require(absl::StrContains(payload, '\n') || !introduction.support.no_kernels.empty(),
            "a rank has no kernels unless it says so");
    const std::string text = introduction.Serialize();
    Require(Introduction::Parse(text).Serialize() == text, "what is written can be read");
    supports.push_back(introduction.support);
    has_all &= introduction.support.no_kernels.empty();
  }
  const GroupSupport support(supports, Peers());
  Require(support.has_kernels() == has_all, "a group has what all its ranks have");
  if (!support.has_kernels()) RequireOneRank(support.NoKernelsError("scan"));
  if (!support.has_float8()) RequireOneRank(support.NoFloat8Error("float8_e4m3"));
}

void ReadFailure(absl::string_view text) {
  const ReportedFailure failure = ParseFailure(text, kRanks);
  Require(!failure.cause.ok(), "a failure is an error");
  Require(failure.reporter >= -1 && failure.reporter < kRanks, "ranks are the group's");
  for (const int rank : RanksOf(failure.cause)) {
    Require(rank >= 0 && rank < kRanks, "ranks are the group's");
  }
  const std::string again = nccl::SerializeFailure(failure);
  Require(nccl::SerializeFailure(ParseFailure(again, kRanks)) == again,
          "what is written can be read");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  if (reader.Below(2) == 0) return ReadIntroductions(reader);
  return ReadFailure(reader.rest());
}

std::vector<std::string> Seeds() {
  const std::string zero(1, '\0');
  Introduction introduction;
  introduction.compares = introduction.is_eager = true;
  introduction.endpoint = "syncline-0123 secret";
  introduction.support.nccl_version = 22403;
  introduction.support.compute_capability = 90;
  const std::string first = Text(introduction.Serialize());
  introduction.endpoint.clear();
  const std::string other = Text(introduction.Serialize());
  introduction.support.nccl_version = 21800;
  introduction.support.no_kernels = "the driver is too old\nfor our kernels";
  const std::string older = Text(introduction.Serialize());
  const absl::Status cause =
      WithOperation(WithRanks(TimeoutError("all_reduce #3: rank 2 has not\narrived"), {2}),
                    {"all_reduce", 3, -1, -1});
  std::vector<std::string> seeds = {
      absl::StrCat(zero, first, other, other, other),
      absl::StrCat(zero, first, other, older, other),
      absl::StrCat("\1", nccl::SerializeFailure({1, cause})),
      absl::StrCat("\1", nccl::SerializeFailure({-1, NetworkError("rank 3 has died")})),
  };
  // Ranks that the group does not have.
  for (const char* text : {"2\n7\n0-1000000;0\nlost", "2\n-7\n9;0\nlost", "99\n1\n\nlost"}) {
    seeds.push_back(absl::StrCat("\1", text));
  }
  // Text that is not understood was once that of a rank that has kernels.
  seeds.push_back(absl::StrCat(zero, first, other, Text("compares"), other));
  return seeds;
}

}  // namespace syncline::fuzz
