#include "launch/rendezvous/network_participant.h"

#include <algorithm>

#include "core/base/deadline.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "core/base/thread.h"
#include "launch/rendezvous/meeting_place.h"
#include "launch/rendezvous/policy_options.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

// Of a launcher that says how it is once a second.
constexpr absl::Duration kLauncherPatience = absl::Seconds(15);
constexpr absl::Duration kStayInterval = absl::Milliseconds(5);

}  // namespace

NetworkParticipant::NetworkParticipant(const LaunchOptions& options, NodeIdentity identity,
                                       std::unique_ptr<RendezvousNetwork> network,
                                       const Clock& clock)
    : identity_(std::move(identity)),
      clock_(clock),
      network_(std::move(network)),
      session_(
          options, identity_, *network_, clock_,
          [this](ParticipantNews news) { queue_.Put(std::move(news)); },
          [this] { return is_cancelled(); }) {
  const absl::Status started = StartThreads();
  if (started.ok()) return;
  queue_.Put({Kind::kFailed, {}, std::string(started.message())});
  absl::MutexLock lock(&mutex_);
  departed_ = true;
}

absl::Status NetworkParticipant::StartThreads() {
  SYNCLINE_ASSIGN_OR_RETURN(listener_, StartThread("the rendezvous", [this] { Listen(); }));
  SYNCLINE_ASSIGN_OR_RETURN(worker_, StartThread("the rendezvous", [this] { Work(); }));
  return absl::OkStatus();
}

void NetworkParticipant::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (worker_.joinable()) worker_.join();
  if (listener_.joinable()) listener_.join();
}

absl::Status NetworkParticipant::CheckStop() {
  return is_stopped() ? InterruptedError("the launcher ends") : absl::OkStatus();
}

void NetworkParticipant::Command(Action action) {
  absl::MutexLock lock(&mutex_);
  last_command_ = clock_.Now();
  commands_.push_back(std::move(action));
}

void NetworkParticipant::Depart(std::optional<std::string> reason, absl::Duration patience) {
  {
    absl::MutexLock lock(&mutex_);
    departing_ = true;
    leave_reason_ = std::move(reason);
    Deadline(patience).Await(mutex_, absl::Condition(&departed_));
  }
  Stop();
}

void NetworkParticipant::Work() {
  const auto check = [this] { return CheckStop(); };
  const InterruptScope scope(check);
  const absl::Status status = TakeSteps();
  if (!status.ok() && !is_stopped()) {
    queue_.Put({Kind::kFailed, {}, std::string(status.message())});
  }
  absl::MutexLock lock(&mutex_);
  awaited_ = {};
  departed_ = true;
}

absl::Status NetworkParticipant::TakeSteps() {
  SYNCLINE_RETURN_IF_ERROR(session_.Open());
  for (;;) {
    Obey();
    if (!LauncherHangs()) {
      SYNCLINE_RETURN_IF_ERROR(session_.Step());
      if (session_.has_ended()) return absl::OkStatus();
      bool is_departing = false;
      {
        absl::MutexLock lock(&mutex_);
        is_departing = departing_ && commands_.empty();
      }
      if (is_departing) {
        TakeLeave();
        return absl::OkStatus();
      }
    }
    if (is_stopped()) return absl::OkStatus();
    AwaitWork();
  }
}

void NetworkParticipant::Obey() {
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

// Then this node gives no sign of life: the others are not to wait for it.
bool NetworkParticipant::LauncherHangs() {
  absl::MutexLock lock(&mutex_);
  return tells_status_ && !departing_ && !stop_ && commands_.empty() &&
         clock_.Now() - last_command_ > kLauncherPatience;
}

void NetworkParticipant::AwaitWork() {
  RendezvousSession::Awaited awaited = session_.awaited();
  const absl::Duration wait = session_.next() - clock_.Now();
  absl::MutexLock lock(&mutex_);
  if (awaited_.store != awaited.store || awaited_.key != awaited.key) {
    awaited_ = std::move(awaited);
    has_news_ = false;
  }
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || has_news_ || departing_ || !commands_.empty();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&has_work),
                          std::clamp(wait, absl::Milliseconds(1), absl::Seconds(1)));
  has_news_ = false;
}

void NetworkParticipant::Listen() {
  const auto check = [this] { return CheckStop(); };
  const InterruptScope scope(check);
  for (;;) {
    RendezvousSession::Awaited awaited;
    {
      absl::MutexLock lock(&mutex_);
      const auto is_needed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || departed_ || (awaited_.store != nullptr && !has_news_);
      };
      if (!mutex_.AwaitWithTimeout(absl::Condition(&is_needed), absl::Seconds(1))) continue;
      if (stop_ || departed_) return;
      awaited = awaited_;
    }
    // A lost store: the next step finds that out. Short enough for a stop to be noticed.
    const absl::Status came = awaited.store->Wait({awaited.key}, absl::Milliseconds(500));
    if (!came.ok() && KindOf(came) == ErrorKind::kTimeout) continue;
    absl::MutexLock lock(&mutex_);
    if (awaited_.store == awaited.store && awaited_.key == awaited.key) {
      has_news_ = true;
      awaited_.store = nullptr;  // Until the step that takes the news says what comes next.
    }
  }
}

void NetworkParticipant::TakeLeave() {
  std::optional<std::string> reason;
  {
    absl::MutexLock lock(&mutex_);
    reason = leave_reason_;
  }
  if (reason.has_value()) return session_.Leave(*reason);
  session_.SayGoodbye();
  while (session_.MustStay()) {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), kStayInterval)) return;
  }
}

std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock) {
  MeetingPlaceOptions meeting;
  meeting.rendezvous = options.rendezvous;
  meeting.secret = std::move(secret);
  meeting.call_timeout = CallTimeout(options);
  return std::make_unique<NetworkParticipant>(options, std::move(identity),
                                              MakeRendezvousNetwork(std::move(meeting)), clock);
}

}  // namespace syncline
