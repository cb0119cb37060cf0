// What the nodes of a job write to the rendezvous' store.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline {

// Why a node's workers failed, as far as the decision about the job goes, and for people.
struct FailureNote {
  int remoteness = 0;  // 0: it explains itself; 1: an exit code; 2: known to be a consequence.
  double time = 0;     // By the wall clock, in seconds since 1970.
  int exit_code = 1;   // For the launchers, if this is the job's cause.
  enum class Retry { kMay, kNever } retry = Retry::kMay;  // kNever: no restart can help.
  std::string summary;                                    // One line.
  std::string report;                                     // The whole story.

  bool operator<(const FailureNote& other) const;  // Is likelier the cause.
};

// What does not change about a node while it takes part.
struct NodeIdentity {
  std::string id;       // Unique.
  std::string host;     // Its name, for people.
  int pid = 0;          // Of its launcher.
  std::string address;  // Where the other nodes reach it.
  std::string store;    // host:port of the store that it serves; empty: none.
  int master_port = 0;  // For MASTER_PORT, should its first worker get rank 0.
  std::string role = "default";
  int workers = 1;
  int wanted_rank = -1;  // The rank that it must have among the nodes; -1: any.

  std::string ToString() const;  // "node 10.0.0.2 (host b, pid 81)"
};

// A node's own record; nobody else writes it.
struct NodeRecord {
  NodeIdentity identity;
  int64_t ticket = 0;  // In the order of coming.

  enum class State {
    kWaiting,  // For the next round.
    kRunning,  // In `round`.
    kFailed,   // A worker of `round` has failed; the others are being stopped.
    kDone,     // All its workers of `round` have succeeded.
    kLeft,     // It goes, without having failed.
  } state = State::kWaiting;
  int round = 0;                       // The last one it was in; 0: none.
  int restarts = 0;                    // As of that round.
  int rank = -1;                       // In that round.
  std::optional<FailureNote> failure;  // Of that round.
  std::string reason;                  // kLeft.
};

struct Round {
  int number = 0;                     // 1, 2, ...; workers and people count from 0.
  int restarts = 0;                   // How many of the rounds followed a failure.
  std::vector<NodeIdentity> members;  // By rank.
  std::string reason;                 // Of the restart; empty in the first round.

  // The rank of the node; -1 if it is no member.
  int RankOf(absl::string_view id) const;
  int world_size() const;
  // The rank of the first worker of member `rank`, among all workers or among those of its role.
  int FirstWorker(int rank) const;
  int FirstWorkerOfRole(int rank) const;
  int WorkersOfRole(absl::string_view role) const;
};

// What the leader announces. Announcements are numbered from 1, and all nodes read all of them.
struct Announcement {
  enum class Kind {
    kRound,   // A round begins.
    kOver,    // It is to end: its members stop their workers and wait for the next one.
    kClosed,  // The job is over.
    kMoved,   // The rendezvous goes on in another store.
  } kind = Kind::kRound;
  Round round;         // kRound.
  int over = 0;        // kOver: the number of the round.
  std::string reason;  // kOver, kClosed.
  enum class Cause {
    kFailure,
    kMembership,
    kStoreLost,  // With what it said of the end. The records show whether a worker had failed.
  } cause = Cause::kMembership;        // kOver.
  int exit_code = 0;                   // kClosed.
  std::optional<FailureNote> failure;  // kClosed: the root cause.
  std::string address;                 // kMoved: host:port.
};

// Where a node, or the endpoint, says that the job meets; see position.h.
struct Position {
  enum class State {
    kHere,       // In `instance` of this store.
    kElsewhere,  // In `instance` of the store at `address`, where this node takes part.
    kSearching,  // This node has lost the store, whose last round was `last`.
  } state = State::kHere;
  std::string instance;
  std::string address;
  Round last;
};

// To and from JSON. Reading fails on what is not of this version.
std::string Serialize(const NodeRecord& record);
std::string Serialize(const Announcement& announcement);
std::string Serialize(const Position& position);
absl::StatusOr<NodeRecord> ParseNodeRecord(absl::string_view text);
absl::StatusOr<Announcement> ParseAnnouncement(absl::string_view text);
absl::StatusOr<Position> ParsePosition(absl::string_view text);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RECORDS_H_
