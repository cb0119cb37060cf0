#include "store/common/contents.h"

#include <cstddef>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "store/common/errors.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::store {

void Contents::Apply(Change change) {
  switch (change.kind) {
    case Change::Kind::kSet:
      values_.insert_or_assign(std::move(change.key), std::move(change.value));
      return;
    case Change::Kind::kAppend:
      values_[std::move(change.key)] += change.value;
      return;
    case Change::Kind::kDelete:
      values_.erase(change.key);
      return;
  }
}

const std::string* Contents::Find(absl::string_view key) const {
  auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

std::vector<std::string> Contents::Missing(absl::Span<const std::string> keys) const {
  std::vector<std::string> missing;
  for (const std::string& key : keys) {
    if (Find(key) == nullptr) missing.push_back(key);
  }
  return missing;
}

std::vector<std::string> Contents::Values(absl::Span<const std::string> keys) const {
  SYNCLINE_DCHECK(Missing(keys).empty());
  std::vector<std::string> values;
  values.reserve(keys.size());
  for (const std::string& key : keys) values.push_back(*Find(key));
  return values;
}

std::vector<std::string> Contents::Keys(absl::string_view prefix) const {
  std::vector<std::string> keys;
  for (auto it = values_.lower_bound(prefix);
       it != values_.end() && absl::StartsWith(it->first, prefix); ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

absl::StatusOr<int64_t> Contents::Sum(absl::string_view key, int64_t amount) const {
  const std::string* value = Find(key);
  if (value == nullptr) return amount;
  constexpr size_t kBytesShown = 40;
  auto error = [&](absl::string_view why) {
    return StoreError(absl::StrCat("cannot add ", amount, " to ", DescribeKey(key),
                                   ", which holds '",
                                   absl::CHexEscape(value->substr(0, kBytesShown)),
                                   value->size() > kBytesShown ? "...'" : "'", ": ", why));
  };
  int64_t number = 0;
  if (!absl::SimpleAtoi(*value, &number)) return error("not a decimal 64-bit number");
  int64_t sum = 0;
  if (__builtin_add_overflow(number, amount, &sum)) return error("the sum exceeds 64 bits");
  return sum;
}

bool Contents::Holds(absl::string_view key, absl::string_view expected) const {
  const std::string* value = Find(key);
  if (expected.empty()) return value == nullptr;
  return value != nullptr && *value == expected;
}

}  // namespace syncline::store
