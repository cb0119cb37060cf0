// The manual page syncline-run(1). A pure function.
#ifndef SYNCLINE_LAUNCH_OPTIONS_MAN_PAGE_H_
#define SYNCLINE_LAUNCH_OPTIONS_MAN_PAGE_H_

#include <string>

namespace syncline::launch {

// --print-manual: troff source with the macros of man(7).
std::string ManPage();

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_MAN_PAGE_H_
