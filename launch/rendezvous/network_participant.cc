#include "launch/rendezvous/network_participant.h"

#include <algorithm>

#include "core/base/thread.h"
#include "launch/rendezvous/round_policy_options.h"
#include "launch/rendezvous/store_network.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Kind = RendezvousEvent::Kind;

// The launcher sends its status once a second; after this long without one it hangs.
constexpr absl::Duration kLauncherTimeout = absl::Seconds(15);
constexpr absl::Duration kServeInterval = absl::Milliseconds(5);

}  // namespace

NetworkParticipant::NetworkParticipant(const LaunchOptions& options, NodeIdentity identity,
                                       std::unique_ptr<RendezvousNetwork> network,
                                       const Clock& clock)
    : identity_(std::move(identity)),
      clock_(clock),
      network_(std::move(network)),
      session_(
          options, identity_, *network_, clock_,
          [this](RendezvousEvent event) { queue_.Put(std::move(event)); },
          [this] { return is_cancelled(); }) {
  const absl::Status started = StartThreads();
  if (started.ok()) return;
  queue_.Put({Kind::kFailed, {}, std::string(started.message())});
  absl::MutexLock lock(&mutex_);
  has_left_ = true;
}

absl::Status NetworkParticipant::StartThreads() {
  SYNCLINE_ASSIGN_OR_RETURN(watch_thread_,
                            base::StartThread("the rendezvous", [this] { WatchAnnouncements(); }));
  SYNCLINE_ASSIGN_OR_RETURN(step_thread_,
                            base::StartThread("the rendezvous", [this] { RunStepThread(); }));
  return absl::OkStatus();
}

void NetworkParticipant::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (step_thread_.joinable()) step_thread_.join();
  if (watch_thread_.joinable()) watch_thread_.join();
}

absl::Status NetworkParticipant::CheckStop() {
  return is_stopped() ? InterruptedError("the launcher ends") : absl::OkStatus();
}

void NetworkParticipant::Command(Action action) {
  absl::MutexLock lock(&mutex_);
  last_command_ = clock_.Now();
  commands_.push_back(std::move(action));
}

void NetworkParticipant::Leave(std::optional<std::string> reason, absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    leaving_ = true;
    leave_reason_ = std::move(reason);
    // The step thread first runs the commands that were queued before, then leaves.
    Deadline(timeout).Await(mutex_, absl::Condition(&has_left_));
  }
  Stop();
}

// The body of the step thread. Its error is the end of the rendezvous for this node.
void NetworkParticipant::RunStepThread() {
  const auto check = [this] { return CheckStop(); };
  const InterruptScope scope(check);
  const absl::Status status = RunSteps();
  if (!status.ok() && !is_stopped()) {
    queue_.Put({Kind::kFailed, {}, std::string(status.message())});
  }
  absl::MutexLock lock(&mutex_);
  watched_key_ = {};
  has_left_ = true;
}

absl::Status NetworkParticipant::RunSteps() {
  SYNCLINE_RETURN_IF_ERROR(session_.Open());
  for (;;) {
    RunCommands();
    if (!LauncherIsHung()) {
      SYNCLINE_RETURN_IF_ERROR(session_.Step());
      if (session_.has_ended()) return absl::OkStatus();
      bool is_leaving = false;
      {
        absl::MutexLock lock(&mutex_);
        is_leaving = leaving_ && commands_.empty();
      }
      if (is_leaving) {
        LeaveRendezvous();
        return absl::OkStatus();
      }
    }
    if (is_stopped()) return absl::OkStatus();
    WaitForWork();
  }
}

// On the step thread, in the order of the launcher's calls. The mutex is free while a command runs.
void NetworkParticipant::RunCommands() {
  for (;;) {
    Action action;
    {
      absl::MutexLock lock(&mutex_);
      if (commands_.empty()) return;
      action = std::move(commands_.front());
      commands_.pop_front();
    }
    action(session_.rendezvous());
  }
}

// Whether the launcher's thread has stopped sending commands. Then no step is taken and no
// heartbeat sent, so that the other nodes replace this one instead of waiting for it.
bool NetworkParticipant::LauncherIsHung() {
  absl::MutexLock lock(&mutex_);
  return sends_status_ && !leaving_ && !stop_ && commands_.empty() &&
         clock_.Now() - last_command_ > kLauncherTimeout;
}

// Waits until the session's next step is due or a command, an announcement or Leave needs one.
void NetworkParticipant::WaitForWork() {
  // Read before the lock, because the session belongs to this thread.
  RendezvousSession::WatchedKey watched_key = session_.watched_key();
  const absl::Duration wait = session_.next() - clock_.Now();
  absl::MutexLock lock(&mutex_);
  if (watched_key_.store != watched_key.store || watched_key_.key != watched_key.key) {
    watched_key_ = std::move(watched_key);
    key_changed_ = false;
  }
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || key_changed_ || leaving_ || !commands_.empty();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&has_work),
                          std::clamp(wait, absl::Milliseconds(1), absl::Seconds(1)));
  key_changed_ = false;
}

// The body of the watch thread.
void NetworkParticipant::WatchAnnouncements() {
  const auto check = [this] { return CheckStop(); };
  const InterruptScope scope(check);
  for (;;) {
    RendezvousSession::WatchedKey watched_key;
    {
      absl::MutexLock lock(&mutex_);
      const auto is_needed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || has_left_ || (watched_key_.store != nullptr && !key_changed_);
      };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&is_needed), absl::Seconds(1))) continue;
      if (stop_ || has_left_) return;
      watched_key = watched_key_;
    }
    // Short, because some stores cannot be interrupted: Stop() waits for this call. Any other error
    // than a timeout wakes the step thread as well: its next call finds out that the store is lost.
    const absl::Status came = watched_key.store->Wait({watched_key.key}, absl::Milliseconds(500));
    if (!came.ok() && KindOf(came) == ErrorKind::kTimeout) continue;
    // The step thread may have moved to another store, or read the announcement, meanwhile.
    absl::MutexLock lock(&mutex_);
    if (watched_key_.store == watched_key.store && watched_key_.key == watched_key.key) {
      key_changed_ = true;
      // No watch until the step thread has read the announcement and set the next key.
      watched_key_.store = nullptr;
    }
  }
}

void NetworkParticipant::LeaveRendezvous() {
  std::optional<std::string> reason;
  {
    absl::MutexLock lock(&mutex_);
    reason = leave_reason_;
  }
  if (reason.has_value()) return session_.Leave(*reason);
  // The job is closed. A node that hosts the store serves the others until they have read that.
  session_.Deregister();
  while (session_.MustKeepServing()) {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), kServeInterval)) return;
  }
}

std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock) {
  StoreNetworkOptions network;
  network.rendezvous = options.rendezvous;
  network.secret = std::move(secret);
  network.call_timeout = CallTimeout(options);
  return std::make_unique<NetworkParticipant>(options, std::move(identity),
                                              MakeStoreNetwork(std::move(network)), clock);
}

}  // namespace syncline::launch
