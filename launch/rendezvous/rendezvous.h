// One node of a rendezvous over a store: membership, heartbeats, leader election, the log of
// rounds.
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
#include "launch/clock.h"
#include "launch/rendezvous/records.h"
#include "launch/rendezvous/round_policy.h"
#include "syncline/store.h"

namespace syncline::launch {

// How the nodes of a job agree on rounds. In the store, below the prefix of the job:
//
//   node/<id>     the node's record                      written by that node only
//   beat/<id>     the node's heartbeat, a counter        written by that node only
//   status/<id>   what `syncline-run status` shows       written by that node only
//   leader        the id of the leader                   compare-and-set, by any node
//   notice/<n>    announcement n = 1, 2, ...             written once, by the leader
//   ticket        how many nodes have registered         incremented by each node
//   bell          how often records have changed         incremented after each change
//
// Announcements are a log, as in Raft, but the store replaces the quorum: compare-and-set lets only
// one announcement n exist. Two nodes may both believe that they lead; all nodes still read one
// history. A leader without heartbeats is replaced by whichever node notices first. The store needs
// no expiry and no notifications. docs/internals/rendezvous_keys.md has the invariants, and what a
// crash at each point leaves.
//
// A state machine driven by Step(), which never waits for other nodes. Shares ownership of the
// store. Not thread-safe: RendezvousSession owns it, on one thread.
class Rendezvous {
 public:
  struct Options {
    RoundPolicyOptions policy;
    absl::Duration keep_alive_interval = absl::Milliseconds(500);
    // How often the leader polls for changed records: while a round forms, and while one runs.
    absl::Duration forming_poll = absl::Milliseconds(10);
    absl::Duration running_poll = absl::Milliseconds(50);
    // The leader calls it before it announces a round that leaves out these members of the last
    // one. False: not now, because the job may go on elsewhere. Null: always true.
    std::function<bool(const std::vector<NodeIdentity>& left_out)> may_announce_round;
  };

  // `clock` must outlive this object. A node that was in the job's rendezvous in another store
  // passes the record it had there, so that round numbers continue.
  Rendezvous(std::shared_ptr<Store> store, NodeRecord self, const Options& options,
             const Clock& clock);

  // Set this node's state. The next Step publishes it.
  void Wait(std::optional<FailureNote> failure);  // Has no workers; why those of the round failed.
  void Run(const Round& round);                   // Runs the workers of `round`.
  void Fail(FailureNote failure);                 // A worker failed; the others still run.
  void Finish();                                  // All its workers have succeeded.
  void Leave(std::string reason);                 // Leaves the job.
  void OfferPort(int master_port);                // MASTER_PORT if this node gets rank 0.
  void SetStatus(std::string json);               // Published with heartbeats only.

  // Publishes this node's state and heartbeat if they are due, leads if this node is the leader,
  // and returns the announcements that were not returned before, in order. Errors are the store's,
  // or StoreError for a value that cannot be parsed; then nothing is lost, and the next call
  // retries.
  absl::StatusOr<std::vector<Announcement>> Step();

  // When Step must be called again; it may be called earlier at any time.
  absl::Time next() const { return next_; }
  // The key of the next announcement. Step has something to return once it is set.
  std::string NextAnnouncementKey() const;

  // After the job is closed: removes this node's keys. The last node to do so removes all other
  // keys too, until `cancelled` returns true.
  absl::Status Deregister(const std::function<bool()>& cancelled = [] { return false; });
  // Whether no node is registered any more.
  absl::StatusOr<bool> AllNodesLeft();

  const NodeRecord& record() const { return self_; }
  bool is_leader() const { return is_leader_; }
  // Why no round has begun, as far as this node knows; for messages of failed tests.
  std::string Describe() const;
  // The same in a line for the operator. A node that does not lead asks the store, and returns its
  // errors.
  absl::StatusOr<std::string> DescribeWaiting() const;

 private:
  absl::Status Register();
  absl::Status PublishSelf(absl::Time now);
  void DiscountPause(absl::Time now);
  absl::Status ReadAnnouncements(absl::Time now);
  absl::Status CheckLeader(absl::Time now);
  // `silent_leader` is the leader that is replaced; empty: there was none.
  void BecomeLeader(const std::string& silent_leader, absl::Time now);
  absl::Status TransferLeadership();
  absl::Status RunAsLeader(absl::Time now);
  // Updates nodes_ from the store. False: they changed meanwhile, and nodes_ is not complete.
  absl::StatusOr<bool> Scan(absl::Time now);
  absl::StatusOr<bool> ScanRecords(absl::Time now);
  absl::Status ScanHeartbeats(absl::Time now);
  bool MayAnnounce(const Announcement& decision) const;
  absl::Status Announce(const Announcement& announcement);
  absl::Status RemoveNode(const std::string& id);
  void Schedule(absl::Time now);
  void Change(NodeRecord::State state);

  const std::shared_ptr<Store> store_;
  const Options options_;
  const Clock& clock_;
  NodeRecord self_;
  RoundPolicy policy_;
  bool registered_ = false;
  bool changed_ = true;  // self_ differs from the record in the store.
  std::string status_, written_status_;
  int64_t announced_ = 0;                        // How many announcements were read.
  std::vector<Announcement> unreturned_;         // Read, but not yet returned by Step.
  absl::Time last_step_ = absl::InfinitePast();  // The last one without an error.
  int64_t heartbeats_ = 0;
  absl::Time next_heartbeat_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();

  std::string leader_;
  std::string leader_heartbeat_;
  absl::Time leader_heard_;

  bool is_leader_ = false;
  std::string predecessor_;
  // From here on the leader's.
  NodeViews nodes_;
  std::map<std::string, std::string> seen_heartbeats_;
  int64_t change_count_ = -1;
  absl::Time next_heartbeat_scan_ = absl::InfinitePast();
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_H_
