#include "core/monitored_barrier.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr absl::string_view kAllCame = "ok";

// The ranks whose arrival the store does not know; at least one.
absl::StatusOr<std::string> Missing(Store& store, const std::vector<std::string>& keys) {
  std::vector<size_t> missing;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool came, store.Check({keys[rank]}));
    if (!came) missing.push_back(rank);
  }
  if (missing.empty()) return std::string(kAllCame);  // The last came just now.
  return absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", absl::StrJoin(missing, ", "));
}

}  // namespace

absl::Status MonitoredBarrier(Store& store, int rank, int size, uint64_t number,
                              const Deadline& deadline) {
  const std::string prefix = absl::StrCat("monitored_barrier/", number, "/");
  std::vector<std::string> keys;
  for (int r = 0; r < size; ++r) keys.push_back(absl::StrCat(prefix, r));
  SYNCLINE_RETURN_IF_ERROR(store.Set(keys[rank], "here"));
  const absl::Status waited = store.Wait(keys, deadline.Remaining());
  if (!waited.ok() && KindOf(waited) != ErrorKind::kTimeout) return waited;
  std::string verdict(kAllCame);
  if (!waited.ok()) {
    SYNCLINE_ASSIGN_OR_RETURN(verdict, Missing(store, keys));
  }
  // The first to conclude concludes for all.
  SYNCLINE_ASSIGN_OR_RETURN(Store::CompareSetResult agreed,
                            store.CompareSet(absl::StrCat(prefix, "verdict"), "", verdict));
  if (agreed.value != kAllCame) {
    return TimeoutError(absl::StrCat(agreed.value, " of ", size, " had not arrived after ",
                                     absl::FormatDuration(deadline.timeout())));
  }
  // The last to leave tidies up.
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t left, store.Add(absl::StrCat(prefix, "left"), 1));
  if (left < size) return absl::OkStatus();
  keys.push_back(absl::StrCat(prefix, "verdict"));
  keys.push_back(absl::StrCat(prefix, "left"));
  for (const std::string& key : keys) SYNCLINE_RETURN_IF_ERROR(store.Delete(key).status());
  return absl::OkStatus();
}

}  // namespace syncline
