#include "syncline/extended_store.h"

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline {
namespace {

absl::Status NoQueues(const Store& store) {
  return UnsupportedError(
      absl::StrCat("store ", store.ToString(), " has no queues; those of kind tcp and hash have"));
}

}  // namespace

absl::StatusOr<ExtendedStore*> ExtendedStore::Of(Store& store) {
  auto* const extended = dynamic_cast<ExtendedStore*>(&store);
  if (extended != nullptr) return extended;
  return UnsupportedError(absl::StrCat("store ", store.ToString(),
                                       " has no queues and cannot be cloned, nor can its timeout ",
                                       "be changed"));
}

absl::Status ExtendedStore::QueuePush(absl::string_view, absl::string_view) {
  return NoQueues(*this);
}

absl::StatusOr<std::string> ExtendedStore::QueuePop(absl::string_view, absl::Duration) {
  return NoQueues(*this);
}

absl::StatusOr<std::optional<std::string>> ExtendedStore::QueueTryPop(absl::string_view) {
  return NoQueues(*this);
}

absl::StatusOr<int64_t> ExtendedStore::QueueLength(absl::string_view) { return NoQueues(*this); }

}  // namespace syncline
