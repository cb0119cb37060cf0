// --dry-run.
#ifndef SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_
#define SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_

#include <string>

#include "launch/options/options.h"
#include "launch/options/settings.h"

namespace syncline::launch {

// In plain words: what a launcher with `options` would do, with the workers' environment in round 0
// as far as it is known before, and where each value comes from. Passwords are not shown.
std::string ExplainLaunch(const LaunchOptions& options, const Settings& settings,
                          const EnvironmentLookup& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_DRY_RUN_H_
