// One node of a rendezvous that may move from store to store: failover, and merging after
// partitions.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_SESSION_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_SESSION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/options/options.h"
#include "launch/rendezvous/job_location.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/rendezvous_network.h"

namespace syncline::launch {

// Runs a Rendezvous over the job's current store, replaces the store when it is lost, and merges
// the job into one history after a network partition has made two.
//
//   Open -> joined <-> searching;  joined -> left
//
// Failover (rendezvous_session_search.cc): a node that has lost the store queries the members of
// the last round in the order of their ranks. The lowest rank that can be reached queries all
// others too, and only if none of them knows another store does it open an instance in its own
// store.
//
// Merging (rendezvous_session_merge.cc): the node that hosts the current store queries the members
// that were lost, and the stores used before, twice a second. If the job goes on there as well,
// both sides decide by Outranks(), and exactly one moves. Before a leader announces a round, it
// queries the members that the round leaves out, the previous stores and the endpoint.
//
// New nodes know only the endpoint, so a node on the endpoint's host serves it for as long as the
// job lasts, wherever the rendezvous runs.
//
// Starts no thread: the owner (NetworkParticipant, or a simulated node) calls Step() at next() or
// earlier. A step blocks for a bounded time. Not thread-safe.
class RendezvousSession {
 public:
  using OnEvent = std::function<void(RendezvousEvent)>;

  // `network` and `clock` must outlive this object. Calls `on_event` during Open() and Step(), on
  // their thread. Searches and Open() end soon after `cancelled` returns true.
  RendezvousSession(const LaunchOptions& options, NodeIdentity identity, RendezvousNetwork& network,
                    const Clock& clock, OnEvent on_event, std::function<bool()> cancelled);

  // Opens the store of the endpoint. Must be the first call, and called once. Errors: as
  // RendezvousNetwork::Open.
  absl::Status Open();

  // Runs what is due. An error is final: the rendezvous is lost, or the job had ended before this
  // node came (StoreError).
  absl::Status Step();
  absl::Time next() const;  // When Step must be called again.

  // For setting this node's state. Another object after each move to another store.
  Rendezvous& rendezvous() { return *rendezvous_; }

  // A key to watch: call Step() once it is set. The store is null if there is none.
  struct WatchedKey {
    std::shared_ptr<Store> store;
    std::string key;
  };
  WatchedKey watched_key() const;

  std::string Describe() const;  // For messages of failed tests.

  bool is_closed() const { return is_closed_; }
  // The job is closed and the node that hosted the store has exited: Step has no more to do.
  bool has_ended() const { return has_ended_; }

  // The last call of a node that leaves while the others go on.
  void Leave(const std::string& reason);
  // The last call after the job was closed. A node that hosts the store must then keep running
  // until MustKeepServing(), polled every few milliseconds, returns false: until all others have
  // read that the job is closed, for at most lost_after.
  void Deregister();
  bool MustKeepServing();

 private:
  // For the connection to a store, and for each call over it.
  struct Timeouts {
    absl::Duration connect;
    absl::Duration call;
  };
  // For a node that searches and has nothing else to do. A host that is down accepts no connections
  // and costs the timeout; the host of a process that has exited refuses them at once; a store that
  // accepted the connection and is slow gets all the time that the network allows.
  static constexpr Timeouts kSearchTimeouts = {absl::Seconds(1), absl::InfiniteDuration()};
  // For a node that must also send heartbeats and run commands.
  static constexpr Timeouts kQuickTimeouts = {absl::Milliseconds(300), absl::Milliseconds(300)};

  // The location in another node's store. `store` is null if it was not reached.
  struct Answer {
    std::shared_ptr<Store> store;
    bool is_refused = false;
    std::optional<JobLocation> location;
  };
  struct Search {
    absl::Status loss;  // The error that began the search.
    absl::Time began;
    bool was_done = false;  // This node's workers had succeeded before.
  };
  // kJoined: found. kWait: query the same node again later. kNext: query the next node.
  enum class SearchResult { kJoined, kWait, kNext };

  absl::StatusOr<RendezvousStore> OpenEndpoint(absl::Duration timeout,
                                               const std::function<bool()>& cancelled);
  absl::Status ReportAnnouncements(std::vector<Announcement> announcements);
  void ReportRoundOver(const std::string& reason);
  void Join(RendezvousStore target, NodeRecord record);
  void AnnounceMoveTo(const std::string& address);
  void LogWaiting();
  std::vector<Answer> Query(const std::vector<std::string>& addresses, const Timeouts& timeouts);
  Answer QueryOne(const std::string& address, const Timeouts& timeouts);
  bool TryServeEndpoint();
  void EnsureEndpointServed();
  Store* OwnStore();
  bool PublishLocation(const JobLocation& location);
  void RepublishLocation();
  bool IsCurrent(const std::string& address, const std::string& instance) const {
    return address == current_.address && instance == current_.instance;
  }
  bool hosts_store() const;
  int rank() const { return last_round_.has_value() ? last_round_->RankOf(identity_.id) : -1; }

  // rendezvous_session_search.cc
  void StartSearch(const absl::Status& loss);
  absl::Status SearchStep();
  absl::StatusOr<bool> ReconnectToStore();
  bool SearchMembers();
  bool QueryLowerRanks(int limit, bool* must_wait);
  SearchResult EvaluateAnswer(const NodeIdentity& member, const Answer& answer);
  bool BecomeHost();
  bool JoinAt(const std::string& address, const Answer& answer, int hops);
  bool JoinVia(const std::string& address, int hops);
  bool ReopenEndpoint();
  Announcement EndOfLastRound() const;
  void CloseAlone();
  absl::Status FollowMove();

  // rendezvous_session_merge.cc
  void CheckOtherStores();
  void TrackLeftOutMembers(const std::optional<Round>& before, const Round& now);
  void AddPreviousEndpoint(const std::string& address);
  bool MayAnnounceRound(const std::vector<NodeIdentity>& left_out);
  bool FollowRedirect(const JobLocation& location);
  // True: this node's history has ended here, or has changed and must be read again.
  bool Reconcile(const std::string& address, const Answer& answer);

  const LaunchOptions options_;
  const NodeIdentity identity_;
  RendezvousNetwork& network_;
  const Clock& clock_;
  const OnEvent on_event_;
  const std::function<bool()> cancelled_;
  Rendezvous::Options timing_;
  // At most this long after one node has noticed that the store is lost, all others have.
  const absl::Duration loss_detection_time_;

  RendezvousStore current_;
  // Kept when the rendezvous moves, so that new nodes are redirected.
  std::shared_ptr<void> endpoint_server_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<Store> own_store_;     // Null until it is needed.
  std::optional<JobLocation> location_;  // What own_store_ must hold.
  absl::Time next_publish_;
  bool hosts_in_own_store_ = false;  // current_ is own_store_.
  int instances_opened_ = 0;         // Makes names of instances unique.

  std::optional<Round> last_round_;  // The last in current_, whether this node is a member or not.
  Announcement last_over_;           // Its end, if that was announced.
  int reported_ = 0;                 // The last round that the launcher was asked to run.
  bool has_round_ = false;           // It was not reported yet that this round is over.
  bool has_reported_ = false;        // Any announcement was read.
  bool is_closed_ = false;
  bool has_ended_ = false;

  std::optional<Search> search_;
  absl::Time next_search_;
  std::optional<std::string> moved_to_;  // The address in the last kMoved, while not yet joined.
  absl::Time move_announced_at_;

  // Addresses of stores where a part of the job may still be, the latest first.
  std::deque<std::string> previous_endpoints_;
  absl::Time next_endpoint_check_ = absl::InfinitePast();
  absl::Time next_check_ = absl::InfinitePast();
  size_t next_checked_ = 0;  // Takes turns among more stores than are queried at once.
  absl::Time next_log_waiting_;
  absl::Time serve_until_ = absl::InfinitePast();
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_RENDEZVOUS_SESSION_H_
