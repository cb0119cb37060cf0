// Reads keys of a store that may be absent.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_TRY_GET_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_TRY_GET_H_

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline::launch {

// The values of `keys`, in order; nullopt if any of them is absent. Errors are those of the store,
// except that a key which disappears during the call makes the result nullopt. Thread-safe as
// `store` is.
inline absl::StatusOr<std::optional<std::vector<std::string>>> TryGet(
    Store& store, const std::vector<std::string>& keys) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool are_set, store.Check(keys));
  if (!are_set) return std::nullopt;
  // MultiGet waits for absent keys, so a key deleted since Check costs this timeout, which must
  // still be long enough for a slow store.
  auto values = store.MultiGet(keys, std::min(store.timeout(), absl::Milliseconds(1000)));
  if (values.ok()) return *std::move(values);
  if (KindOf(values.status()) == ErrorKind::kTimeout) return std::nullopt;
  return values.status();
}

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_TRY_GET_H_
