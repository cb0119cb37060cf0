// The leader's policy: which nodes form a round, and when it ends.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launch/rendezvous/records.h"

namespace syncline {

struct PolicyOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  absl::Duration lost_after = absl::Seconds(5);            // Silence of a node while a round runs.
  absl::Duration silent_after = absl::Milliseconds(1500);  // Silence while one forms.
  absl::Duration scale_up_delay = absl::Seconds(1);  // So that several that come count as one.
  // Between a failure and the next round: nothing the first time, then twice as long each time,
  // up to the maximum; nothing again once a round has lasted for backoff_reset.
  absl::Duration backoff = absl::Seconds(1);
  absl::Duration max_backoff = absl::Seconds(30);
  absl::Duration backoff_reset = absl::Minutes(1);
};

// A node as the leader knows it.
struct NodeView {
  NodeRecord record;
  absl::Time heard;  // Its last sign of life.
};
using NodeViews = std::map<std::string, NodeView>;  // By id.

// No input, no output and no clock of its own: the same calls give the same announcements. What it
// remembers can be regained: a new leader begins with the announcements so far, and hears all nodes
// for the first time. Not thread-safe.
//
//   forming -> running -> over -> running ... -> closed
//
// The first round forms as soon as there are max_nodes, or when min_nodes have come and none more
// for last_call_timeout. It is over when a worker has failed, a member is lost or leaves, or a node
// comes for which there is room. The next one forms when all members have stopped their workers;
// members keep their ranks. A round succeeds when all its workers do. The job is closed then; or
// when a worker has failed and no restart is left (a lost or leaving node costs none); or when
// there have been fewer than min_nodes for join_timeout.
class Policy {
 public:
  explicit Policy(const PolicyOptions& options);

  // An announcement, one's own included, has been made at `now`.
  void OnAnnouncement(const Announcement& announcement, absl::Time now);

  // What is to be announced, if anything is. To be called again after each announcement, and
  // whenever something has changed or next() has come.
  std::optional<Announcement> Decide(const NodeViews& nodes, absl::Time now);
  absl::Time next() const { return next_; }

  // Why there is no round yet: "2 of at least 3 nodes have come: node ..., node ...".
  std::string Describe(const NodeViews& nodes, absl::Time now) const;

  // The nodes whose records can go: lost, or gone, and no part of the job any more.
  std::vector<std::string> Departed(const NodeViews& nodes, absl::Time now) const;

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
  bool AwaitsMembers(const NodeViews& nodes, absl::Time now);
  bool LacksMember(const NodeViews& nodes) const;
  bool KeepsMembers(const Round& next) const;  // Of the last round.
  absl::Duration Backoff() const;
  void WakeAt(absl::Time time);  // If it is still to come.

  const PolicyOptions options_;
  Phase phase_ = Phase::kForming;
  std::optional<Round> last_;  // The last round, running or not.
  Announcement::Cause over_cause_ = Announcement::Cause::kMembership;
  std::string over_reason_;
  absl::Time round_began_ = absl::InfinitePast();
  absl::Time forming_since_ = absl::InfinitePast();
  int quick_failures_ = 0;
  std::set<std::string> seen_;  // The ids of all nodes there ever were.
  size_t known_candidates_ = 0;
  absl::Time last_arrival_ = absl::InfinitePast();
  absl::Time newcomer_since_ = absl::InfiniteFuture();
  absl::Time now_ = absl::InfinitePast();
  absl::Time next_ = absl::InfiniteFuture();
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_POLICY_H_
