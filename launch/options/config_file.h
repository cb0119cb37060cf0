// Reads the TOML file of --config.
#ifndef SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_
#define SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// Adds what the TOML file `path` sets. Its keys are the names of options, with dashes or
// underscores; a list means its elements with commas between them, and rdzv-conf may be a table.
// ArgumentError names the line; for an unknown key also the nearest match.
absl::Status AddConfigFile(const std::string& path, Settings* settings);

// The same for the text of a file; `path` is for messages.
absl::Status AddConfigText(absl::string_view text, absl::string_view path, Settings* settings);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_CONFIG_FILE_H_
