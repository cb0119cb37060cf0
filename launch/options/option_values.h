// Parses the values of options. `where` names the option in messages: "--tee", "PET_TEE". Errors
// are ArgumentError with what to write instead. Pure functions.
#ifndef SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_
#define SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/options/options.h"

namespace syncline::launch {

// A whole number in [low, high].
absl::StatusOr<int> ParseNumber(absl::string_view where, absl::string_view text, int low, int high);

// Seconds, with decimals if need be; finite, 0 or more.
absl::StatusOr<absl::Duration> ParseSeconds(absl::string_view where, absl::string_view text);

// "4096", "64K", "64M", "2G": powers of 1024, with a B behind them if one likes.
absl::StatusOr<int64_t> ParseBytes(absl::string_view where, absl::string_view text);

// A positive number, "auto" (GPUs if there are any, else CPUs), "cpu" or "gpu".
absl::StatusOr<int> ParseWorkers(absl::string_view where, absl::string_view text,
                                 const HostResources& host);

// "2" or "2:4".
absl::StatusOr<NodeRange> ParseNodes(absl::string_view where, absl::string_view text);

// "3", or a map from local ranks: "0:1,1:2" (then all other ranks have none).
// 0: none, 1: stdout, 2: stderr, 3: both.
absl::StatusOr<StreamMap> ParseStreams(absl::string_view where, absl::string_view text);

// "0,2": local ranks below `workers`.
absl::StatusOr<std::set<int>> ParseLocalRanks(absl::string_view where, absl::string_view text,
                                              int workers);

// "SIGTERM,INT". Those that cannot be handled, or that the launcher needs itself, are refused.
absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view where, absl::string_view text);

// The same, and "" or "none" for an empty list.
absl::StatusOr<std::vector<int>> ParseForwardedSignals(absl::string_view where,
                                                       absl::string_view text);

// The elements of `signals` that are not in `others`.
std::vector<int> SignalsWithout(const std::vector<int>& signals, const std::vector<int>& others);

struct Endpoint {
  std::string host;
  int port = -1;  // -1: none was given.
};
// "host", "host:80", "::1", "[::1]:80".
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view where, absl::string_view text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_OPTION_VALUES_H_
