// Makes text safe to show on a terminal. Pure functions.
#ifndef SYNCLINE_LAUNCH_MONITOR_TEXT_H_
#define SYNCLINE_LAUNCH_MONITOR_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::launch {

// `text`, which is to be UTF-8, cut to `columns` columns, "..." at its end if something was cut.
// Control characters and wrong bytes become '?', so that no text moves the cursor. A character
// beyond ASCII counts as two columns, which is never too few; none is cut in two.
std::string Printable(absl::string_view text, int columns);

// The columns of what Printable returned, counted likewise.
int Columns(absl::string_view printable);

// "0:07", "12:05", "3:00:00", "2d 3:00:00".
std::string FormatElapsed(absl::Duration elapsed);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_MONITOR_TEXT_H_
