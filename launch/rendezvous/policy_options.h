// The leader's policy for a job with given options.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_OPTIONS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_OPTIONS_H_

#include "absl/time/time.h"
#include "launch/options/options.h"
#include "launch/rendezvous/policy.h"

namespace syncline {

// All silences follow from the interval between signs of life.
PolicyOptions PolicyFor(const LaunchOptions& options);

// Of a call to a store that a node holds: then the store counts as lost, as a silent node would.
absl::Duration CallTimeout(const LaunchOptions& options);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_OPTIONS_H_
