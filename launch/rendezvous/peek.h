// Reads keys that may be absent.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_PEEK_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_PEEK_H_

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/store/store.h"

namespace syncline {

// The values of `keys`; nothing if one of them is absent.
inline absl::StatusOr<std::optional<std::vector<std::string>>> Peek(
    Store& store, const std::vector<std::string>& keys) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool are_set, store.Check(keys));
  if (!are_set) return std::nullopt;
  // Long enough for a store that is slow; a key that goes in this moment costs as much.
  auto values = store.MultiGet(keys, std::min(store.timeout(), absl::Milliseconds(1000)));
  if (values.ok()) return *std::move(values);
  if (KindOf(values.status()) == ErrorKind::kTimeout) return std::nullopt;
  return values.status();
}

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_PEEK_H_
