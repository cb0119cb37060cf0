// What the ranks of a reducer must have in common, compared before it is used.
#ifndef SYNCLINE_DDP_AGREEMENT_H_
#define SYNCLINE_DDP_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/group/process_group.h"

namespace syncline {

// "parameter 'bias' (index 3)" is "float32[10] on cpu".
struct Trait {
  std::string what;
  std::string value;
};

// Collective. OK if all ranks bring the same values. Else a MismatchError on all ranks that names
// the first trait that differs, and who has which value. A rank that is not able to go on brings an
// `own` error in place of traits: it gets this back, and the others a MismatchError that quotes it.
absl::Status AgreeOn(ProcessGroup& group, const std::vector<Trait>& traits,
                     const absl::Status& own = absl::OkStatus());

// "rank 3", "ranks 0, 2, 5": at most ten, "and 20 more".
std::string ListRanks(const std::vector<int64_t>& ranks);

// "a, b, c": at most ten, "and 20 more".
std::string ListSome(const std::vector<std::string>& items);

// "parameter 3", or "'bias' (index 3)" where there are names.
std::string ParameterName(const std::vector<std::string>& names, int64_t index);

}  // namespace syncline

#endif  // SYNCLINE_DDP_AGREEMENT_H_
