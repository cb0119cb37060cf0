// The Participant of a job with several nodes: a RendezvousSession on a thread of its own.
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
#include "launch/rendezvous/event_queue.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/rendezvous_network.h"
#include "launch/rendezvous/rendezvous_session.h"

namespace syncline::launch {

// Owns two threads. The step thread alone uses the session. The watch thread blocks in the store
// until the next announcement is set and then wakes the step thread, so that announcements arrive
// at once without polling and a step never waits for one. The launcher's thread talks to them
// through commands_ (to the step thread) and queue_ (from it). Both threads end within a second of
// Stop(), whatever they wait for, because CheckStop() interrupts their calls. Public methods are
// for the launcher's thread; errors of either thread are events of kind kFailed.
class NetworkParticipant final : public Participant {
 public:
  NetworkParticipant(const LaunchOptions& options, NodeIdentity identity,
                     std::unique_ptr<RendezvousNetwork> network, const Clock& clock);
  ~NetworkParticipant() override { Stop(); }

  int fd() const override { return queue_.fd(); }
  std::vector<RendezvousEvent> Take() override { return queue_.Take(); }
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
      sends_status_ = true;
    }
    Command([json = std::move(json)](Rendezvous& rendezvous) { rendezvous.SetStatus(json); });
  }
  void Leave(std::optional<std::string> reason, absl::Duration timeout) override;

 private:
  using Action = std::function<void(Rendezvous&)>;

  absl::Status StartThreads();
  void Command(Action action);
  void Stop();
  bool is_stopped() {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }
  absl::Status CheckStop();  // InterruptedError after Stop(); ends the calls of both threads.
  // True while the launcher leaves, too: it does not wait for a search then.
  bool is_cancelled() {
    absl::MutexLock lock(&mutex_);
    return stop_ || leaving_;
  }

  // For the step thread.
  void RunStepThread();
  absl::Status RunSteps();
  void RunCommands();
  void WaitForWork();
  void LeaveRendezvous();
  bool LauncherIsHung();

  // The watch thread.
  void WatchAnnouncements();

  const NodeIdentity identity_;
  const Clock& clock_;
  EventQueue queue_;
  const std::unique_ptr<RendezvousNetwork> network_;
  RendezvousSession session_;  // Used by the step thread only.

  absl::Mutex mutex_;  // Never held during a call of the session or a store.
  std::deque<Action> commands_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_command_ ABSL_GUARDED_BY(mutex_);
  bool sends_status_ ABSL_GUARDED_BY(mutex_) = false;  // The launcher sends about one a second.
  RendezvousSession::WatchedKey watched_key_ ABSL_GUARDED_BY(mutex_);
  bool key_changed_ ABSL_GUARDED_BY(mutex_) = false;  // watched_key_ was set.
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool leaving_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> leave_reason_ ABSL_GUARDED_BY(mutex_);

  std::thread step_thread_;
  std::thread watch_thread_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_NETWORK_PARTICIPANT_H_
