// How many connections carry the large messages between two ranks.
#ifndef SYNCLINE_BACKENDS_TCP_STREAM_COUNT_H_
#define SYNCLINE_BACKENDS_TCP_STREAM_COUNT_H_

#include <optional>

#include "absl/status/statusor.h"

namespace syncline::tcp {

inline constexpr int kMaxStreams = 16;

// From SYNCLINE_TCP_STREAMS, 1 to kMaxStreams; nothing if it is unset: then as many as the rank
// with the most addresses has, so that each interface has one. ArgumentError for anything else.
absl::StatusOr<std::optional<int>> StreamsFromEnvironment();

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_STREAM_COUNT_H_
