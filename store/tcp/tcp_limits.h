// Limits that both ends of a tcp store's connection keep.
#ifndef SYNCLINE_STORE_TCP_TCP_LIMITS_H_
#define SYNCLINE_STORE_TCP_TCP_LIMITS_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace syncline::tcp_store {

inline constexpr size_t kMaxMessageBytes = size_t{64} << 20;

// "the request has 70000000 bytes, …".
inline std::string TooLargeMessage(absl::string_view what, size_t size) {
  return absl::StrCat(what, " has ", size, " bytes, more than the ", kMaxMessageBytes,
                      " that a tcp store carries at a time; move large data with a collective, or ",
                      "split it");
}

}  // namespace syncline::tcp_store

#endif  // SYNCLINE_STORE_TCP_TCP_LIMITS_H_
