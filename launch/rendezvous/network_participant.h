// A participant in a rendezvous over the network; participant.h is its surface.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/deadline.h"
#include "launch/rendezvous/meeting_place.h"
#include "launch/rendezvous/news_queue.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"

namespace syncline {

// Two threads: one takes the steps, the other waits for the next announcement, so that a step never
// waits for it. Between them and the launcher's thread: `commands_`, `awaited_` and the queue.
class NetworkParticipant final : public Participant {
 public:
  NetworkParticipant(const LaunchOptions& options, NodeIdentity identity, std::string secret,
                     const Clock& clock);
  ~NetworkParticipant() override { Stop(); }

  int fd() const override { return queue_.fd(); }
  std::vector<ParticipantNews> Take() override { return queue_.Take(); }
  const NodeIdentity& identity() const override { return identity_; }

  void Wait(std::optional<FailureNote> failure, int master_port) override {
    Command([failure = std::move(failure), master_port](Rendezvous& rendezvous) {
      rendezvous.OfferPort(master_port);
      rendezvous.Wait(failure);
    });
  }
  void Run(const Round& round) override {
    Command([round](Rendezvous& rendezvous) { rendezvous.Run(round); });
  }
  void Fail(FailureNote failure) override {
    Command([failure = std::move(failure)](Rendezvous& rendezvous) { rendezvous.Fail(failure); });
  }
  void Finish() override {
    Command([](Rendezvous& rendezvous) { rendezvous.Finish(); });
  }
  void SetStatus(std::string json) override {
    {
      absl::MutexLock lock(&mutex_);
      tells_status_ = true;
    }
    Command([json = std::move(json)](Rendezvous& rendezvous) { rendezvous.SetStatus(json); });
  }
  void Depart(std::optional<std::string> reason, absl::Duration patience) override;

 private:
  using Action = std::function<void(Rendezvous&)>;

  void Command(Action action);
  void Stop();

  // Of the thread that takes the steps.
  void Work();
  void Obey();
  absl::Status Report(std::vector<Announcement> news);
  void AwaitWork();
  void Remark();
  absl::Status Recover(const absl::Status& loss);
  absl::Status MoveToSurvivor(const Deadline& deadline);
  absl::Status RetryStore(const Deadline& deadline);
  void Enter(MeetingPlace place, NodeRecord record);
  absl::Status FollowMove();
  void LeavePlace();
  void ProbeFormerPlaces();
  void SayGoodbye();
  void Say(std::string text) { queue_.Put({ParticipantNews::Kind::kRemark, {}, std::move(text)}); }
  // Also while the launcher departs: nobody waits for the rendezvous any more.
  bool cancelled() {
    absl::MutexLock lock(&mutex_);
    return stop_ || departing_;
  }
  bool CancelsConnecting();
  bool LauncherHangs();
  void CloseAlone();

  void Listen();  // The other thread.

  const LaunchOptions options_;
  const NodeIdentity identity_;
  const Clock& clock_;
  MeetingPlaceOptions meeting_;
  Rendezvous::Options timing_;
  NewsQueue queue_;

  // Of the thread that takes the steps.
  MeetingPlace place_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::optional<Round> last_round_;  // The last one that was announced, member or not.
  int over_ = 0;                     // The last round that was reported as over.
  bool has_round_ = false;
  bool has_reported_ = false;
  bool is_closed_ = false;
  bool re_hosts_ = false;                // This node holds the store now, but not at the endpoint.
  std::deque<std::string> former_;       // Places that were left, the latest first.
  std::optional<std::string> moved_to_;  // Where the job is said to go on.
  absl::Time give_up_ = absl::InfiniteFuture();  // Reaching it.
  absl::Time next_probe_ = absl::InfinitePast();
  size_t probes_ = 0;
  absl::Time next_remark_;

  absl::Mutex mutex_;
  std::deque<Action> commands_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_command_ ABSL_GUARDED_BY(mutex_);
  bool tells_status_ ABSL_GUARDED_BY(mutex_) = false;  // About once a second.
  struct Awaited {
    std::shared_ptr<Store> store;
    std::string key;
  };
  Awaited awaited_ ABSL_GUARDED_BY(mutex_);        // Store is null: nothing.
  bool has_news_ ABSL_GUARDED_BY(mutex_) = false;  // Of the awaited key.
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool departing_ ABSL_GUARDED_BY(mutex_) = false;
  bool departed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> leave_reason_ ABSL_GUARDED_BY(mutex_);

  std::thread worker_;
  std::thread listener_;
};

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_
