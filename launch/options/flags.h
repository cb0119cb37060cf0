// The table of the launcher's options: names, values and help texts. Constant data; thread-safe.
#ifndef SYNCLINE_LAUNCH_OPTIONS_FLAGS_H_
#define SYNCLINE_LAUNCH_OPTIONS_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncline::launch {

// A section of --help.
enum class FlagGroup {
  kProgram,
  kNodes,
  kRendezvous,
  kSecurity,
  kFailure,
  kOutput,
  kMonitoring,
  kOther,
};

struct Flag {
  absl::string_view name;  // "nproc-per-node"; underscores mean the same.
  char letter = '\0';      // 'r' for -r; none if 0.
  FlagGroup group = FlagGroup::kOther;
  absl::string_view metavar;   // Of its value; empty: a switch, on or off.
  absl::string_view help;      // Without a full stop.
  absl::string_view choices;   // "a|b": the only allowed values; empty: any text.
  absl::string_view variable;  // Sets a default beside SYNCLINE_<NAME> and PET_<NAME>.
  bool may_be_empty = false;   // Its value, which is a list. Not that of a variable.

  bool takes_value() const { return !metavar.empty(); }
};

// All options, group by group.
absl::Span<const Flag> AllFlags();

// The option called `name` exactly ("nproc-per-node"). There must be one.
const Flag& FlagNamed(absl::string_view name);

// The option that `word` ("--nproc_per_node", "--nproc", "-r"; without a value) means: a name, or
// an unambiguous prefix of one. ArgumentError with the nearest match if there is none.
absl::StatusOr<const Flag*> FindFlag(absl::string_view word);

// The one of `candidates` that `word` is most likely meant for; empty if none is near.
std::string NearestMatch(absl::string_view word, absl::Span<const std::string> candidates);

// " Did you mean 'x'?", or " It is one of a, b, c." if nothing is near.
std::string Suggestion(absl::string_view word, absl::Span<const std::string> candidates);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_FLAGS_H_
