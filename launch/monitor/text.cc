#include "launch/monitor/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace syncline::launch {
namespace {

constexpr absl::string_view kCut = "...";

unsigned char Byte(absl::string_view text, size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// The length of the character that `text` begins with, 0 if that is not UTF-8 or a control
// character. Does not detect overlong forms and surrogates: terminals show them as wrong.
size_t CharacterLength(absl::string_view text) {
  const unsigned char first = Byte(text, 0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf5   ? 0
                        : first >= 0xf0 ? 4
                        : first >= 0xe0 ? 3
                        : first >= 0xc2 ? 2
                                        : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((Byte(text, i) & 0xc0) != 0x80) return 0;
  }
  const bool is_c1_control = first == 0xc2 && Byte(text, 1) < 0xa0;
  return is_c1_control ? 0 : length;
}

int Width(size_t character_length) { return character_length > 1 ? 2 : 1; }

}  // namespace

std::string Printable(absl::string_view text, int columns) {
  std::string result;
  size_t room_for_cut = 0;  // How much of the result leaves room for "...".
  int used = 0;
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    used += Width(length);
    if (used > columns) {
      result.resize(room_for_cut);
      absl::StrAppend(&result, kCut.substr(0, std::max(0, columns)));
      return result;
    }
    absl::StrAppend(&result, length == 0 ? "?" : text.substr(0, length));
    if (used + static_cast<int>(kCut.size()) <= columns) room_for_cut = result.size();
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

int Columns(absl::string_view printable) {
  int columns = 0;
  while (!printable.empty()) {
    const size_t length = std::max<size_t>(CharacterLength(printable), 1);
    columns += Width(length);
    printable.remove_prefix(length);
  }
  return columns;
}

std::string FormatElapsed(absl::Duration elapsed) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(elapsed));
  const int64_t minutes = seconds / 60;
  if (minutes < 60) return absl::StrFormat("%d:%02d", minutes, seconds % 60);
  const int64_t hours = minutes / 60;
  const std::string clock = absl::StrFormat("%d:%02d:%02d", hours % 24, minutes % 60, seconds % 60);
  return hours < 24 ? clock : absl::StrFormat("%dd %s", hours / 24, clock);
}

}  // namespace syncline::launch
