// What a store holds, and what its operations mean; the same for every implementation.
#ifndef SYNCLINE_STORE_COMMON_CONTENTS_H_
#define SYNCLINE_STORE_COMMON_CONTENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace syncline::store {

// One change of one key.
struct Change {
  enum class Kind : uint8_t { kSet = 1, kAppend = 2, kDelete = 3 };

  Kind kind = Kind::kSet;
  std::string key;
  std::string value;  // Empty for kDelete.
};

// Keys with their values. Not thread-safe.
class Contents {
 public:
  void Apply(Change change);

  // Null if `key` is absent.
  const std::string* Find(absl::string_view key) const;

  // Those of `keys` that are absent, in the same order.
  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;

  // Requires that all `keys` are set.
  std::vector<std::string> Values(absl::Span<const std::string> keys) const;

  // The keys that begin with `prefix`, sorted.
  std::vector<std::string> Keys(absl::string_view prefix) const;

  // What Store::Add sets `key` to; StoreError if its value is no number or the sum overflows.
  absl::StatusOr<int64_t> Sum(absl::string_view key, int64_t amount) const;

  // Whether Store::CompareSet may replace the value: `key` holds `expected`, or is absent if
  // `expected` is empty.
  bool Holds(absl::string_view key, absl::string_view expected) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace syncline::store

#endif  // SYNCLINE_STORE_COMMON_CONTENTS_H_
