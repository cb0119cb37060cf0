// Decides which nodes form a round, when it ends, and when the job does.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/rendezvous/records.h"

namespace syncline::launch {

struct RoundPolicyOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  // A member without a heartbeat for this long is lost: its round ends.
  absl::Duration lost_after = absl::Seconds(5);
  // While a round forms, a node without a heartbeat for this long is not waited for.
  absl::Duration silent_after = absl::Milliseconds(1500);
  // From the first new node to the end of the round, so that several nodes cost one restart.
  absl::Duration scale_up_delay = absl::Seconds(1);
  // The wait between a failure and the next round: none the first time, then doubling from
  // `backoff` to the maximum; none again once a round has lasted for backoff_reset.
  absl::Duration backoff = absl::Seconds(1);
  absl::Duration max_backoff = absl::Seconds(30);
  absl::Duration backoff_reset = absl::Minutes(1);
};

// What the leader knows of a node.
struct NodeView {
  NodeRecord record;
  absl::Time heard;  // When its last heartbeat was seen, by the leader's clock.
};
using NodeViews = std::map<std::string, NodeView>;  // By id.

// A deterministic state machine without input, output or clock: the same calls give the same
// announcements. Every node has one and feeds it all announcements, but only the leader calls
// Decide. Its state follows from announcements and node records alone, so a new leader needs
// nothing from the old one. Owned by Rendezvous. Not thread-safe.
//
//   forming -> running -> forming -> running ... -> closed
//
// The first round begins as soon as max_nodes have joined, or when min_nodes have joined and no
// other for last_call_timeout. A round ends when a worker fails, a member is lost or leaves, or a
// node joins for which there is room. The next one begins when all members have stopped their
// workers; members keep their ranks. The job is closed when all workers of a round succeed; when a
// worker fails and no restart is left (a lost or leaving node costs none); or when there have been
// fewer than min_nodes for join_timeout, with the failure of the last round if there was one.
class RoundPolicy {
 public:
  explicit RoundPolicy(const RoundPolicyOptions& options);

  // Applies an announcement, this node's own included, that was read at `now`.
  void OnAnnouncement(const Announcement& announcement, absl::Time now);

  // The announcement that is due, if any. Call it again after each announcement, after each change
  // of `nodes`, and at next().
  std::optional<Announcement> Decide(const NodeViews& nodes, absl::Time now);
  absl::Time next() const { return next_; }

  // Why no round begins: "2 of at least 3 node(s) have come: node ..., node ...; lost or left since
  // round 0: node ...".
  std::string Describe(const NodeViews& nodes, absl::Time now) const;
  // A line for the operator of a node that is in no round: which round was the last, who is
  // missing, and how long the job waits. The leader's.
  std::string DescribeWaiting(const NodeViews& nodes, absl::Time now) const;
  // As far as any other node knows: from the ids of all nodes that are registered.
  std::string DescribeWaiting(const std::set<std::string>& registered, absl::Time now) const;

  // The nodes that are lost or have left and are in no running round: their records can be removed.
  std::vector<std::string> RemovableNodes(const NodeViews& nodes, absl::Time now) const;

  bool closed() const { return phase_ == Phase::kClosed; }
  const std::optional<Round>& last_round() const { return last_; }

 private:
  enum class Phase { kForming, kRunning, kClosed };

  std::optional<Announcement> DecideRunning(const NodeViews& nodes, absl::Time now);
  std::optional<Announcement> DecideForming(const NodeViews& nodes, absl::Time now);
  std::optional<Announcement> FindFailure(const NodeViews& nodes) const;
  std::optional<Announcement> AfterFailure(const NodeViews& nodes) const;
  Announcement Form(const std::vector<const NodeRecord*>& candidates, const NodeViews& nodes) const;
  std::vector<const NodeRecord*> Candidates(const NodeViews& nodes, absl::Time now) const;
  std::string MissingMember(const NodeViews& nodes, absl::Time now, absl::Duration silence) const;
  std::string DescribeWaiting(absl::string_view who, int count, absl::Time now) const;
  std::string DescribeGone(const std::set<std::string>& present) const;
  bool AwaitsMembers(const NodeViews& nodes, absl::Time now);
  bool LacksMember(const NodeViews& nodes) const;
  bool KeepsMembers(const Round& next) const;  // All of the last round.
  absl::Duration Backoff() const;
  void WakeAt(absl::Time time);  // Makes next() at most `time`, if that is in the future.

  const RoundPolicyOptions options_;
  Phase phase_ = Phase::kForming;
  std::optional<Round> last_;  // The last round, running or not.
  Announcement::Cause over_cause_ = Announcement::Cause::kMembership;
  std::string over_reason_;
  absl::Time round_began_ = absl::InfinitePast();
  absl::Time forming_since_ = absl::InfinitePast();
  int quick_failures_ = 0;
  std::set<std::string> seen_;  // The ids of all nodes that Decide was ever given.
  size_t known_candidates_ = 0;
  absl::Time last_arrival_ = absl::InfinitePast();
  absl::Time newcomer_since_ = absl::InfiniteFuture();
  absl::Time now_ = absl::InfinitePast();
  absl::Time next_ = absl::InfiniteFuture();
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_ROUND_POLICY_H_
