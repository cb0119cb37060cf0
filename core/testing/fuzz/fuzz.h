// What a fuzz target is made of. See README.md here.
#ifndef SYNCLINE_CORE_TESTING_FUZZ_FUZZ_H_
#define SYNCLINE_CORE_TESTING_FUZZ_FUZZ_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncline::fuzz {

// Each target defines these two.

// Runs the code under test on `input`, whatever that is. Ends the process where a promise is broken
// that no sanitizer sees: see Require.
void RunOne(absl::string_view input);

// Inputs from which others are made: well-formed ones, made by the code that makes them for peers,
// and those that have found faults.
std::vector<std::string> Seeds();

// What must hold for every input.
inline void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "a promise is broken: %s\n", what);
  std::abort();
}

// Takes an input apart. Where nothing is left, numbers are 0 and texts are empty.
class Reader {
 public:
  explicit Reader(absl::string_view input) : rest_(input) {}

  bool is_empty() const { return rest_.empty(); }
  absl::string_view rest() const { return rest_; }

  uint8_t Byte() {
    const absl::string_view byte = Bytes(1);
    return byte.empty() ? 0 : static_cast<uint8_t>(byte[0]);
  }
  // Less than `end`, which is at most 256.
  int Below(int end) { return Byte() % end; }
  // Of two bytes.
  size_t Number() {
    const size_t low = Byte();
    return low + 256 * size_t{Byte()};
  }
  absl::string_view Bytes(size_t count) {
    const absl::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(bytes.size());
    return bytes;
  }
  // As many bytes as the two before them say.
  absl::string_view Text() { return Bytes(Number()); }

 private:
  absl::string_view rest_;
};

// The inverse of Reader::Text.
inline std::string Text(absl::string_view bytes) {
  const size_t size = std::min<size_t>(bytes.size(), 0xffff);
  std::string text = {static_cast<char>(size & 0xff), static_cast<char>(size >> 8)};
  text.append(bytes.data(), size);
  return text;
}

// Changes `message` as `reader` says: not at all, or some of its bytes. Whether it has.
inline bool Tamper(Reader& reader, std::string& message) {
  const std::string before = message;
  for (int changes = reader.Below(4); changes > 0 && !message.empty(); --changes) {
    const size_t at = reader.Number() % message.size();
    message[at] = static_cast<char>(message[at] ^ reader.Byte());
  }
  return message != before;
}

}  // namespace syncline::fuzz

#endif  // SYNCLINE_CORE_TESTING_FUZZ_FUZZ_H_
