#include "launch/rendezvous/round_policy_options.h"

#include <algorithm>

namespace syncline::launch {
namespace {

// A node is not called silent for less, however short heartbeat_timeout is: a sign of life comes
// an interval after the one before, and the leader sees it up to half an interval later.
constexpr int kMissingSigns = 3;

}  // namespace

RoundPolicyOptions RoundPolicyFor(const LaunchOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  RoundPolicyOptions policy;
  policy.min_nodes = options.nodes.min;
  policy.max_nodes = options.nodes.max;
  policy.max_restarts = options.max_restarts;
  policy.join_timeout = rendezvous.join_timeout;
  policy.last_call_timeout = rendezvous.last_call_timeout;
  policy.scale_up_delay = rendezvous.scale_up_delay;
  policy.backoff = rendezvous.restart_backoff;
  policy.max_backoff = std::max(policy.max_backoff, policy.backoff);
  policy.lost_after = rendezvous.keep_alive_interval * rendezvous.keep_alive_max_attempt;
  policy.silent_after = std::min(
      std::max(rendezvous.heartbeat_timeout, kMissingSigns * rendezvous.keep_alive_interval),
      policy.lost_after);
  return policy;
}

absl::Duration CallTimeout(const LaunchOptions& options) {
  return std::min(options.rendezvous.read_timeout, RoundPolicyFor(options).lost_after);
}

}  // namespace syncline::launch
