// A participant in a rendezvous over the network; participant.h is its surface.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_

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
#include "launch/rendezvous/network.h"
#include "launch/rendezvous/news_queue.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/session.h"

namespace syncline {

// Two threads: one takes the session's steps, the other waits for the next announcement, so that a
// step never waits for it. Between them and the launcher's thread: `commands_`, `awaited_` and the
// queue. Both end within a moment of Stop(), whatever they wait for.
class NetworkParticipant final : public Participant {
 public:
  NetworkParticipant(const LaunchOptions& options, NodeIdentity identity,
                     std::unique_ptr<RendezvousNetwork> network, const Clock& clock);
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

  absl::Status StartThreads();
  void Command(Action action);
  void Stop();
  bool is_stopped() {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }
  absl::Status CheckStop();  // Interrupts the calls of both threads.
  // Also while the launcher departs: nobody waits for the rendezvous any more.
  bool is_cancelled() {
    absl::MutexLock lock(&mutex_);
    return stop_ || departing_;
  }

  // Of the thread that takes the steps.
  void Work();
  absl::Status TakeSteps();
  void Obey();
  void AwaitWork();
  void TakeLeave();
  bool LauncherHangs();

  void Listen();  // The other thread.

  const NodeIdentity identity_;
  const Clock& clock_;
  NewsQueue queue_;
  const std::unique_ptr<RendezvousNetwork> network_;
  RendezvousSession session_;  // Of the thread that takes the steps.

  absl::Mutex mutex_;
  std::deque<Action> commands_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_command_ ABSL_GUARDED_BY(mutex_);
  bool tells_status_ ABSL_GUARDED_BY(mutex_) = false;  // About once a second.
  RendezvousSession::Awaited awaited_ ABSL_GUARDED_BY(mutex_);
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
