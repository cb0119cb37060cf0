// --config.
#ifndef SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_
#define SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// Adds what the TOML file `path` sets. Its keys are the names of options, with dashes or
// underscores; a list means its elements with commas between them, and rdzv-conf may be a table.
// Errors name the line; an unknown key is one, with the nearest match.
absl::Status AddConfigFile(const std::string& path, Settings* settings);

// The same for the file's text; `path` is for messages.
absl::Status AddConfigText(absl::string_view text, absl::string_view path, Settings* settings);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_
