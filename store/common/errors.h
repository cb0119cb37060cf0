// Checks and errors that all stores word alike.
#ifndef SYNCLINE_STORE_COMMON_ERRORS_H_
#define SYNCLINE_STORE_COMMON_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace syncline::store {

// ArgumentError if a key is empty.
absl::Status CheckKey(absl::string_view key);
absl::Status CheckKeys(absl::Span<const std::string> keys);

// As CheckKeys; also if the lengths differ.
absl::Status CheckPairs(absl::Span<const std::string> keys, absl::Span<const std::string> values);

// For messages: "key 'a'", "keys 'a', 'b'", "keys 'a', …, 'h' and 92 more". Bytes that cannot be
// printed are escaped, and long keys are cut.
std::string DescribeKeys(absl::Span<const std::string> keys);
std::string DescribeKey(absl::string_view key);

// "store `store`: keys 'a', 'b' not set after 30s; …"
absl::Status NotSetError(absl::string_view store, absl::Span<const std::string> missing,
                         absl::Duration timeout);

// The same error, its message preceded by "store `store`: ". OK stays OK.
absl::Status AnnotateStore(const absl::Status& status, absl::string_view store);

template <typename T>
absl::StatusOr<T> AnnotateStore(absl::StatusOr<T> result, absl::string_view store) {
  if (!result.ok()) return AnnotateStore(result.status(), store);
  return result;
}

}  // namespace syncline::store

#endif  // SYNCLINE_STORE_COMMON_ERRORS_H_
