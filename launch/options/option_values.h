// The values that options of the launcher take, each from its text.
#ifndef SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_
#define SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/options/options.h"

namespace syncline {

// A positive number, "auto" (GPUs if there are any, otherwise CPUs), "cpu" or "gpu".
absl::StatusOr<int> ParseWorkers(absl::string_view text, const HostResources& host);

// OK for "1" and "1:1": several hosts are not supported yet.
absl::Status CheckNodes(absl::string_view text);

// "3", or a map from local ranks: "0:1,1:2" (then all other ranks have none).
// 0: none, 1: stdout, 2: stderr, 3: both. `option` is for messages.
absl::StatusOr<StreamMap> ParseStreams(absl::string_view option, absl::string_view text);

// "0,2": local ranks below `workers`.
absl::StatusOr<std::set<int>> ParseLocalRanks(absl::string_view option, absl::string_view text,
                                              int workers);

// The port of "host:port" (0 if there is none); `host` must be this one.
absl::StatusOr<int> ParseLocalEndpoint(absl::string_view text);

// The one of `candidates` that `word` is most likely meant for; empty if none is near.
std::string NearestMatch(absl::string_view word, absl::Span<const std::string> candidates);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_
