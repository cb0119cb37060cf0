// One node's part in the rendezvous of a job that may change its store.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_SESSION_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_SESSION_H_

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
#include "launch/rendezvous/network.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/position.h"
#include "launch/rendezvous/rendezvous.h"

namespace syncline {

// Takes a node's steps in the rendezvous, finds the store again when it is lost, and lets one
// history of the job remain where the network has made two.
//
//   Open -> joined <-> searching;  joined -> departing
//
// A node that has lost the store asks the members of the last round, in the order of their ranks,
// where the job is (session_search.cc). The first that can be reached asks all the others too, and
// only if nobody knows of another store does it open an instance in its own. The node whose store
// the job uses asks the members that were lost, and the former stores, twice a second, whether the
// job goes on there too; both sides decide by Outranks(), and exactly one moves. Before a round is
// announced, its leader asks those that it leaves out, the former stores and the endpoint
// (session_merge.cc). Newcomers know the endpoint only, so a node on its host serves it for as long
// as the job lasts, wherever this meets.
//
// Has no thread: a driver calls Step() at next() or earlier. Steps block for bounded times. Not
// thread-safe.
class RendezvousSession {
 public:
  using Tell = std::function<void(ParticipantNews)>;

  // `network` and `clock` must outlive it. `tell` takes the news for the launcher. Searches and
  // Open() end soon after `cancelled` has become true.
  RendezvousSession(const LaunchOptions& options, NodeIdentity identity, RendezvousNetwork& network,
                    const Clock& clock, Tell tell, std::function<bool()> cancelled);

  // Opens the store of the endpoint. To be called once, first; Step and the rest need it.
  absl::Status Open();

  // Does what is due. An error is final: the rendezvous is lost.
  absl::Status Step();
  absl::Time next() const;

  // What this node says of itself; see there.
  Rendezvous& rendezvous() { return *rendezvous_; }

  // A key whose setting is news. The store is null if there is none.
  struct Awaited {
    std::shared_ptr<Store> store;
    std::string key;
  };
  Awaited awaited() const;

  std::string Describe() const;  // For failed tests.

  bool is_closed() const { return is_closed_; }
  // The job is closed, and whoever held the store has gone: there is no more to do.
  bool has_ended() const { return has_ended_; }

  // The last call of a node that leaves: with a reason the others go on; without one, after the
  // job was closed, the node that holds the store stays until all have read that.
  void Leave(const std::string& reason);
  void SayGoodbye();
  bool MustStay();  // To be asked every few milliseconds.

 private:
  // How long to wait for the connection to a store, and for each answer over it.
  struct Patience {
    absl::Duration connect;
    absl::Duration call;
  };
  // Of a node that has nothing else to do. A host that is down takes no connections; that of a
  // process that has ended refuses them at once; one that is slow is waited for.
  static constexpr Patience kSearchPatience = {absl::Seconds(1), absl::InfiniteDuration()};
  // Of one that must give signs of life and answer commands meanwhile.
  static constexpr Patience kProbePatience = {absl::Milliseconds(300), absl::Milliseconds(300)};

  // What a node's store says. Null: it was not reached.
  struct Answer {
    std::shared_ptr<Store> store;
    bool is_gone = false;
    std::optional<Position> position;
  };
  struct Search {
    absl::Status loss;
    absl::Time began;
    bool was_done = false;  // This node's workers had succeeded.
  };
  enum class Verdict { kJoined, kWait, kNext };

  absl::StatusOr<MeetingPlace> OpenEndpoint(absl::Duration timeout,
                                            const std::function<bool()>& cancelled);
  absl::Status Report(std::vector<Announcement> news);
  void ReportOver(const std::string& reason);
  void Join(MeetingPlace place, NodeRecord record);
  void SendOn(const std::string& address);
  void Remark();
  std::vector<Answer> Ask(const std::vector<std::string>& addresses, const Patience& patience);
  Answer AskOne(const std::string& address, const Patience& patience);
  bool ServesEndpoint();
  void KeepEndpoint();
  Store* OwnStore();
  bool Publish(const Position& position);
  void PublishAgain();
  bool IsHere(const std::string& address, const std::string& instance) const {
    return address == place_.address && instance == place_.instance;
  }
  bool hosts() const;
  int rank() const { return last_round_.has_value() ? last_round_->RankOf(identity_.id) : -1; }

  // session_search.cc
  void Lose(const absl::Status& loss);
  absl::Status TakeSearchStep();
  absl::StatusOr<bool> ReturnToStore();
  bool SearchMembers();
  bool AskBefore(int limit, bool* must_wait);
  Verdict Consider(const NodeIdentity& member, const Answer& answer);
  bool BecomeHost();
  bool JoinAt(const std::string& address, const Answer& answer, int hops);
  bool JoinElsewhere(const std::string& address, int hops);
  bool ReopenEndpoint();
  Announcement EndOfLast() const;
  void CloseAlone();
  absl::Status FollowMove();

  // session_merge.cc
  void Probe();
  void RememberStrays(const std::optional<Round>& before, const Round& now);
  void Remember(const std::string& address);
  bool MayAnnounceRound(const std::vector<NodeIdentity>& left_out);
  bool FollowTo(const Position& position);
  // Returns whether this node's history has ended, or has to be looked at again.
  bool Reconcile(const std::string& address, const Answer& answer);

  const LaunchOptions options_;
  const NodeIdentity identity_;
  RendezvousNetwork& network_;
  const Clock& clock_;
  const Tell tell_;
  const std::function<bool()> cancelled_;
  Rendezvous::Options timing_;
  const absl::Duration notice_patience_;  // From one node's noticing a loss to another's.

  MeetingPlace place_;
  std::shared_ptr<void> endpoint_server_;  // Stays when the node moves: newcomers are sent on.
  std::unique_ptr<Rendezvous> rendezvous_;
  std::shared_ptr<Store> own_store_;  // Null until it is needed.
  std::optional<Position> position_;  // What it is to say there.
  absl::Time next_publication_;
  bool re_hosts_ = false;  // The job meets in this node's own store.
  int openings_ = 0;       // Of that.

  std::optional<Round> last_round_;  // That was announced where the node is, member or not.
  Announcement last_over_;           // Its end, if that has been announced.
  int reported_ = 0;                 // The last round that the launcher was told to run.
  bool has_round_ = false;           // It has not been told yet that this is over.
  bool has_reported_ = false;
  bool is_closed_ = false;
  bool has_ended_ = false;

  std::optional<Search> search_;
  absl::Time next_search_;
  std::optional<std::string> moved_to_;  // Where the job is said to go on.
  absl::Time moved_since_;

  std::deque<std::string> former_;  // Stores of which a part of the job may know, the latest first.
  absl::Time next_keeping_ = absl::InfinitePast();
  absl::Time next_probe_ = absl::InfinitePast();
  size_t probed_ = 0;
  absl::Time next_remark_;
  absl::Time stays_until_ = absl::InfinitePast();
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_SESSION_H_
