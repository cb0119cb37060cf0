// Random bytes, and proofs that a message comes from a process that knows a secret. Pure functions,
// for any thread.
#ifndef SYNCLINE_CORE_BASE_HMAC_H_
#define SYNCLINE_CORE_BASE_HMAC_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace syncline::base {

// `count` bytes that nobody can guess.
std::string RandomBytes(size_t count);

// HMAC-SHA256 (RFC 2104), kHmacBytes long: proves that its maker knows `secret`.
inline constexpr size_t kHmacBytes = 32;
std::string HmacSha256(absl::string_view secret, absl::string_view message);

// Whether `a` and `b` are equal. Takes the same time wherever they differ, so that the time tells
// an attacker nothing.
bool SameBytes(absl::string_view a, absl::string_view b);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_HMAC_H_
