#include "core/base/stall.h"

#include <chrono>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/env.h"
#include "syncline/log.h"

namespace syncline::base {
namespace {

constexpr absl::string_view kVariable = "SYNCLINE_STALL_WARNING";
constexpr absl::Duration kDefault = absl::Seconds(10);

int64_t Now() {  // Nanoseconds.
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

absl::Duration ReadWarningAfter() {
  const auto text = GetEnv(kVariable);
  if (!text.has_value() || text->empty()) return kDefault;
  double seconds = 0;
  if (!absl::SimpleAtod(*text, &seconds) || !(seconds >= 0)) {
    Log(LogLevel::kWarning,
        absl::StrCat(kVariable, " must be a number of seconds, 0 for none, not '", *text,
                     "': ", absl::FormatDuration(kDefault), " is used"));
    return kDefault;
  }
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

}  // namespace

absl::Duration StallWarningAfter() {
  static const absl::Duration after = ReadWarningAfter();
  return after;
}

bool StallTimer::IsDue() {
  if (began_ == 0) {
    began_ = Now();
    next_ = StallWarningAfter();
  }
  if (absl::Nanoseconds(Now() - began_) < next_) return false;
  next_ *= 2;
  return true;
}

absl::Duration StallTimer::waited() const {
  return absl::Trunc(absl::Nanoseconds(Now() - began_), absl::Milliseconds(1));
}

void StallWatch::Look() {
  if (current_ != nullptr) current_->LookAt(Now());
}

void StallWatch::LookAt(int64_t now) {
  if (StallWarningAfter() == absl::InfiniteDuration()) return;
  const int64_t first = absl::ToInt64Nanoseconds(StallWarningAfter());
  if (began_ == 0) {
    began_ = now;
    next_ = now + first / 4;
  }
  if (now < next_) return;
  const bool is_due = has_told_;
  next_ = has_told_ ? began_ + 2 * (next_ - began_) : began_ + first;
  has_told_ = true;
  on_stall_(absl::Trunc(absl::Nanoseconds(now - began_), absl::Milliseconds(1)), is_due);
}

}  // namespace syncline::base
