// One node's part in a rendezvous over a store.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/store/store.h"
#include "launch/clock.h"
#include "launch/rendezvous/policy.h"
#include "launch/rendezvous/records.h"

namespace syncline {

// How the nodes of a job agree on rounds. In the store, below a prefix of the job's own:
//
//   node/<id>     the node's record              written by that node only
//   beat/<id>     a counter, its sign of life    written by that node only
//   status/<id>   what `syncline-run status` shows, written by that node only
//   leader        the id of the node that decides
//   notice/<n>    announcement n = 1, 2, ...     written once, by the leader
//   ticket, bell  counters: nodes so far; changes of records so far
//
// Nothing is ever decided but by an announcement, and compare-and-set lets one announcement n
// exist: whoever believes to lead, all nodes see the same history. A leader that falls silent is
// replaced by whichever node notices first. The store only keeps what it is told; nothing expires
// in it.
//
// A state machine driven by Step(), which never waits for other nodes. Not thread-safe.
class Rendezvous {
 public:
  struct Options {
    PolicyOptions policy;
    absl::Duration keep_alive_interval = absl::Milliseconds(500);
    // Of the leader, for changes; while a round forms, and while one runs.
    absl::Duration forming_poll = absl::Milliseconds(10);
    absl::Duration running_poll = absl::Milliseconds(50);
    // Asked by the leader before it announces a round, which leaves these members of the last one
    // out: the job may go on elsewhere. Null: always.
    std::function<bool(const std::vector<NodeIdentity>& left_out)> may_announce_round;
  };

  // `clock` must outlive it. A node that took part elsewhere before brings its record along: its
  // last round counts on. Until told otherwise it waits for a round.
  Rendezvous(std::shared_ptr<Store> store, NodeRecord self, const Options& options,
             const Clock& clock);

  // What the others are to know; the next Step says it.
  void Wait(std::optional<FailureNote> failure);  // For the next round.
  void Run(const Round& round);                   // It is a member.
  void Fail(FailureNote failure);                 // The others are still being stopped.
  void Finish();                                  // Its workers have succeeded.
  void Leave(std::string reason);
  void OfferPort(int master_port);   // For MASTER_PORT of the next round.
  void SetStatus(std::string json);  // For people; not said more often than once per interval.

  // Says what is to be said, leads if it falls to this node, and returns the announcements that it
  // had not seen, in order. An error of the store leaves everything to be tried again.
  absl::StatusOr<std::vector<Announcement>> Step();

  // When Step has something to do, at the latest; it may be called earlier at any time.
  absl::Time next() const { return next_; }
  // The key of the next announcement: when it is set, Step has news.
  std::string AwaitedKey() const;

  // After the job is closed: takes this node's record away. The last one to go takes the rest,
  // until `cancelled`.
  absl::Status SayGoodbye(const std::function<bool()>& cancelled = [] { return false; });
  // Whether all nodes that live have said goodbye.
  absl::StatusOr<bool> IsDeserted();

  const NodeRecord& record() const { return self_; }
  bool leads() const { return leads_; }
  // Why no round has begun, as far as this node knows.
  std::string Describe() const;

 private:
  absl::Status Register();
  absl::Status Speak(absl::Time now);
  void Forgive(absl::Time now);
  absl::Status ReadAnnouncements(absl::Time now);
  absl::Status FollowLeader(absl::Time now);
  // After a leader that has been silent; empty: there was none.
  void TakeLead(const std::string& silent_leader, absl::Time now);
  absl::Status HandOver();
  absl::Status Lead(absl::Time now);
  // Whether what it knows of the nodes is complete.
  absl::StatusOr<bool> Scan(absl::Time now);
  absl::StatusOr<bool> ScanRecords(absl::Time now);
  absl::Status ScanBeats(absl::Time now);
  bool MayAnnounce(const Announcement& decision) const;
  absl::Status Announce(const Announcement& announcement);
  absl::Status Forget(const std::string& id);
  void Schedule(absl::Time now);
  void Change(NodeRecord::State state);

  const std::shared_ptr<Store> store_;
  const Options options_;
  const Clock& clock_;
  NodeRecord self_;
  Policy policy_;
  bool registered_ = false;
  bool changed_ = true;  // self_ is to be written.
  std::string status_, written_status_;
  int64_t announced_ = 0;                        // Announcements seen.
  std::vector<Announcement> news_;               // Those of them that Step has not returned.
  absl::Time last_step_ = absl::InfinitePast();  // That had no error.
  int64_t beats_ = 0;
  absl::Time next_beat_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();

  std::string leader_;
  std::string leader_beat_;
  absl::Time leader_heard_;

  bool leads_ = false;
  std::string predecessor_;
  NodeViews nodes_;  // From here on: of the leader.
  std::map<std::string, std::string> beats_seen_;
  int64_t bell_ = -1;
  absl::Time next_beat_scan_ = absl::InfinitePast();
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_H_
