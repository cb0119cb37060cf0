#include "store/common/errors.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "syncline/status.h"

namespace syncline::store {
namespace {

constexpr size_t kKeysShown = 8;
constexpr size_t kBytesShown = 100;

// The payload that marks a NotSetError: what its message says of its time.
constexpr absl::string_view kNotSetUrl = "syncline/not-set";

std::string NotSetAfter(absl::Duration timeout) {
  return absl::StrCat(" not set after ",
                      absl::FormatDuration(std::max(timeout, absl::ZeroDuration())));
}

// `message` and its part that NotSetAfter has made.
absl::Status MakeNotSet(absl::string_view message, const std::string& after) {
  absl::Status status = TimeoutError(message);
  status.SetPayload(kNotSetUrl, absl::Cord(after));
  return status;
}

std::string Quote(absl::string_view key) {
  absl::string_view rest = key.size() > kBytesShown ? "..." : "";
  return absl::StrCat("'", absl::CHexEscape(key.substr(0, kBytesShown)), rest, "'");
}

}  // namespace

absl::Status CheckKey(absl::string_view key) {
  if (!key.empty()) return absl::OkStatus();
  return ArgumentError("a key is empty; keys have at least one byte");
}

absl::Status CheckKeys(absl::Span<const std::string> keys) {
  for (const std::string& key : keys) SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  return absl::OkStatus();
}

absl::Status CheckPairs(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  if (keys.size() != values.size()) {
    return ArgumentError(absl::StrCat(keys.size(), " keys but ", values.size(),
                                      " values; pass one value for each key"));
  }
  return CheckKeys(keys);
}

std::string DescribeKey(absl::string_view key) { return absl::StrCat("key ", Quote(key)); }

std::string DescribeKeys(absl::Span<const std::string> keys) {
  if (keys.size() == 1) return DescribeKey(keys[0]);
  std::vector<std::string> shown;
  for (const std::string& key : keys.subspan(0, std::min(keys.size(), kKeysShown))) {
    shown.push_back(Quote(key));
  }
  std::string text = absl::StrCat("keys ", absl::StrJoin(shown, ", "));
  if (keys.size() > kKeysShown) absl::StrAppend(&text, " and ", keys.size() - kKeysShown, " more");
  return text;
}

absl::Status NotSetError(absl::string_view store, absl::Span<const std::string> missing,
                         absl::Duration timeout) {
  const std::string after = NotSetAfter(timeout);
  return MakeNotSet(absl::StrCat("store ", store, ": ", DescribeKeys(missing), after,
                                 "; see whether the process that sets ",
                                 missing.size() == 1 ? "it" : "them", " is still alive"),
                    after);
}

absl::Status AfterWait(const absl::Status& status, absl::Duration timeout) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kNotSetUrl);
  const std::string before(payload.value_or(absl::Cord()));
  std::string message(status.message());
  const size_t at = message.rfind(before);  // The last: a key may hold such words too.
  if (before.empty() || at == std::string::npos) {
    return Annotate(status, absl::StrCat("given up after ", absl::FormatDuration(timeout)));
  }
  const std::string after = NotSetAfter(timeout);
  message.replace(at, before.size(), after);
  return MakeNotSet(message, after);
}

absl::Status AnnotateStore(const absl::Status& status, absl::string_view store) {
  return status.ok() ? status : Annotate(status, absl::StrCat("store ", store));
}

}  // namespace syncline::store
