// FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo): hashes that are equal in all processes and versions,
// unlike absl::Hash.
#ifndef SYNCLINE_CORE_BASE_HASH_H_
#define SYNCLINE_CORE_BASE_HASH_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncline::base {

// Pure functions, for any thread. They find differences and accidents; they do not withstand
// someone who looks for two inputs of one hash: core/base/hmac.h does.

inline constexpr uint64_t kFnv1aOffset64 = 0xcbf29ce484222325;
inline constexpr uint64_t kFnv1aPrime64 = 0x100000001b3;

constexpr uint64_t Fnv1a64(absl::string_view bytes) {
  uint64_t hash = kFnv1aOffset64;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * kFnv1aPrime64;
  return hash;
}

constexpr uint32_t Fnv1a32(absl::string_view bytes) {
  uint32_t hash = 2166136261u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

// FNV-1a a word at a time, for numbers: eight times as fast. After each word the upper half of the
// hash is folded into the lower one, as a product's lower bits depend on the lower bits of its
// factors alone.
//
//   WordHash hash;
//   for (int64_t count : counts) hash.Add(static_cast<uint64_t>(count));
//   return hash.value();
class WordHash {
 public:
  constexpr WordHash() = default;

  constexpr void Add(uint64_t word) {
    hash_ = (hash_ ^ word) * kFnv1aPrime64;
    hash_ ^= hash_ >> 32;
  }
  constexpr uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = kFnv1aOffset64;
};

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_HASH_H_
