// The values that the nodes of a job write to the rendezvous' store, and their JSON form.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::launch {

// All of these are plain values without invariants of their own. docs/internals/rendezvous_keys.md
// says under which key each stands, and who writes it.

// Why a node's workers failed: what the leader needs for its decision, and text for the operator.
struct FailureNote {
  int remoteness = 0;  // 0: a cause; 1: an exit code alone; 2: a consequence of another failure.
  double time = 0;     // When it happened, by the wall clock, in seconds since 1970.
  int exit_code = 1;   // What all launchers exit with if this is the root cause.
  enum class Retry { kMay, kNever } retry = Retry::kMay;  // kNever: no restart can help.
  std::string summary;                                    // One line.
  std::string report;                                     // Several lines.

  bool operator<(const FailureNote& other) const;  // Whether this is likelier the root cause.
};

// What does not change about a node while it is in the job.
struct NodeIdentity {
  std::string id;       // Unique among all nodes of the job, past ones included.
  std::string host;     // The name of the host, for messages.
  int pid = 0;          // The launcher's.
  std::string address;  // Where the other nodes reach this one.
  std::string store;    // host:port of the store that it serves; empty: none.
  int master_port = 0;  // MASTER_PORT if this node gets rank 0.
  std::string role = "default";
  int workers = 1;
  int wanted_rank = -1;  // The only rank among the nodes that it may get; -1: any.

  std::string ToString() const;  // "node 10.0.0.2 (host b, pid 81)"
};

// The state of one node. Only that node writes it.
struct NodeRecord {
  NodeIdentity identity;
  int64_t join_order = 0;  // 1 for the first node of the store, and so on.

  enum class State {
    kWaiting,  // Has no workers and waits for the next round.
    kRunning,  // Runs workers of `round`.
    kFailed,   // A worker of `round` has failed; the node stops the others.
    kDone,     // All workers of this node in `round` have succeeded.
    kLeft,     // Leaves the job for `reason`.
  } state = State::kWaiting;
  int round = 0;                       // The last one that the node was a member of; 0: none.
  int restarts = 0;                    // That round's.
  int rank = -1;                       // The node's in that round.
  std::optional<FailureNote> failure;  // The node's in that round.
  std::string reason;                  // kLeft.
};

// One run of all workers (torchrun's rendezvous round).
struct Round {
  int number = 0;                     // 1, 2, ...; workers and messages count from 0.
  int restarts = 0;                   // How many rounds so far followed a failure.
  std::vector<NodeIdentity> members;  // By rank.
  std::string reason;                 // Why the last round ended; empty in the first round.

  // The rank of the node; -1 if it is no member.
  int RankOf(absl::string_view id) const;
  int world_size() const;
  // The rank of the first worker of member `rank`, among all workers or among those of its role.
  int FirstWorker(int rank) const;
  int FirstWorkerOfRole(int rank) const;
  int WorkersOfRole(absl::string_view role) const;
};

// A decision of the leader: one entry of the log that all nodes read from its first entry,
// number 1, on. An entry never changes.
struct Announcement {
  enum class Kind {
    kRound,   // A round begins.
    kOver,    // The round ends: its members stop their workers and wait for the next one.
    kClosed,  // The job has ended. No announcement follows.
    kMoved,   // The rendezvous goes on in another store. No announcement follows here.
  } kind = Kind::kRound;
  Round round;         // kRound.
  int over = 0;        // kOver: the number of the round.
  std::string reason;  // kOver, kClosed.
  enum class Cause {
    kFailure,     // A worker failed.
    kMembership,  // A node joined, left or is lost.
    kStoreLost,   // The store was lost, and the cause with it; records may show a failure.
  } cause = Cause::kMembership;        // kOver.
  int exit_code = 0;                   // kClosed.
  std::optional<FailureNote> failure;  // kClosed: the root cause, or the last round's if `reason`
                                       // is that no other could begin.
  std::string address;                 // kMoved: host:port.
};

// Where the rendezvous runs, as the store of one node or of the endpoint says; see job_location.h.
struct JobLocation {
  enum class State {
    kHere,       // In `instance` of this store.
    kElsewhere,  // In `instance` of the store at `address`.
    kSearching,  // The node has lost the store; `last` is the last round that it read there.
  } state = State::kHere;
  std::string instance;
  std::string address;  // kElsewhere.
  Round last;           // kSearching.
};

// To and from JSON. Text that is not UTF-8 is replaced. Parsing returns StoreError for malformed
// text, and for a record of another version of the format. Thread-safe.
std::string Serialize(const NodeRecord& record);
std::string Serialize(const Announcement& announcement);
std::string Serialize(const JobLocation& location);
absl::StatusOr<NodeRecord> ParseNodeRecord(absl::string_view text);
absl::StatusOr<Announcement> ParseAnnouncement(absl::string_view text);
absl::StatusOr<JobLocation> ParseLocation(absl::string_view text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_
