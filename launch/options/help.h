// The texts of --help, --version and --print-completion. Pure functions.
#ifndef SYNCLINE_LAUNCH_OPTIONS_HELP_H_
#define SYNCLINE_LAUNCH_OPTIONS_HELP_H_

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/options/flags.h"

namespace syncline::launch {

std::string Usage();    // One line, without a line break.
std::string Help();     // --help, at most 96 columns wide.
std::string Version();  // --version.

// The sections of --help, in its order, with their titles.
absl::Span<const std::pair<FlagGroup, absl::string_view>> FlagGroups();

// A script for "bash", "zsh", "tcsh" or "fish".
std::string Completion(absl::string_view shell);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_HELP_H_
