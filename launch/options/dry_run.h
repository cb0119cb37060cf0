// Explains a launch for --dry-run.
#ifndef SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_
#define SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_

#include <string>

#include "launch/options/options.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// Text that describes what a launcher with `options` would do, the workers' environment in round 0
// as far as it is known in advance, and the source of each value. Passwords are hidden. Starts
// nothing.
std::string ExplainLaunch(const LaunchOptions& options, const Settings& settings,
                          const base::EnvironmentLookup& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_
