// Derives the round policy and its timeouts from the launcher's options.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_OPTIONS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_OPTIONS_H_

#include "absl/time/time.h"
#include "launch/options/options.h"
#include "launch/rendezvous/round_policy.h"

namespace syncline::launch {

// Both functions are pure. All failure-detection timeouts follow from --rdzv-conf's
// keep_alive_interval.
RoundPolicyOptions RoundPolicyFor(const LaunchOptions& options);

// The timeout of a call to a store that a node hosts. After it the store counts as lost, as a node
// does that has been silent for as long.
absl::Duration CallTimeout(const LaunchOptions& options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_OPTIONS_H_
