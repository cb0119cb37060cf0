#include "launch/rendezvous/network_participant.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

constexpr absl::Duration kRemarkInterval = absl::Seconds(10);
// Of a launcher that says how it is once a second.
constexpr absl::Duration kLauncherPatience = absl::Seconds(15);

}  // namespace

NetworkParticipant::NetworkParticipant(const LaunchOptions& options, NodeIdentity identity,
                                       std::string secret, const Clock& clock)
    : options_(options), identity_(std::move(identity)), clock_(clock) {
  timing_.policy = PolicyFor(options);
  timing_.keep_alive_interval = options.rendezvous.keep_alive_interval;
  meeting_.rendezvous = options.rendezvous;
  meeting_.secret = std::move(secret);
  meeting_.call_timeout = std::min(options.rendezvous.read_timeout, timing_.policy.lost_after);
  next_remark_ = clock_.Now() + kRemarkInterval;
  worker_ = std::thread([this] { Work(); });
  listener_ = std::thread([this] { Listen(); });
}

void NetworkParticipant::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (worker_.joinable()) worker_.join();
  if (listener_.joinable()) listener_.join();
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
    mutex_.AwaitWithTimeout(absl::Condition(&departed_), patience);
  }
  Stop();
}

void NetworkParticipant::Work() {
  // The node that hosts it may be the last to come.
  const absl::Duration patience =
      std::max(options_.rendezvous.read_timeout, options_.rendezvous.join_timeout);
  absl::StatusOr<MeetingPlace> place =
      OpenMeetingPlace(meeting_, Deadline(patience), [this] { return CancelsConnecting(); });
  absl::Status status = place.status();
  if (status.ok()) {
    NodeRecord record;
    record.identity = identity_;
    record.rank = options_.node_rank;  // A wish, unless the identity demands it.
    Enter(*std::move(place), std::move(record));
  }
  for (bool stop = false; status.ok() && !stop;) {
    Obey();
    if (LauncherHangs()) {
      AwaitWork();
      continue;
    }
    absl::StatusOr<std::vector<Announcement>> news = rendezvous_->Step();
    if (!news.ok()) {
      if (is_closed_) break;  // Whoever held the store has gone.
      status = Recover(news.status());
      continue;
    }
    status = Report(*std::move(news));
    if (status.ok()) status = FollowMove();
    if (!status.ok()) break;
    bool departing = false;
    {
      absl::MutexLock lock(&mutex_);
      departing = departing_ && commands_.empty();
      stop = stop_;
    }
    if (departing) {
      SayGoodbye();
      break;
    }
    if (re_hosts_ && !is_closed_) ProbeFormerPlaces();
    Remark();
    AwaitWork();
  }
  if (!status.ok()) queue_.Put({Kind::kFailed, {}, std::string(status.message())});
  absl::MutexLock lock(&mutex_);
  awaited_ = {};
  departed_ = true;
}

void NetworkParticipant::Enter(MeetingPlace place, NodeRecord record) {
  // The endpoint's server, if this node has it, stays: whoever comes is told there where to go.
  if (place.server == nullptr) place.server = std::move(place_.server);
  place_ = std::move(place);
  moved_to_.reset();
  record.ticket = 0;
  rendezvous_ = std::make_unique<Rendezvous>(place_.store, std::move(record), timing_, clock_);
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
    action(*rendezvous_);
  }
}

absl::Status NetworkParticipant::Report(std::vector<Announcement> news) {
  const bool is_first = !std::exchange(has_reported_, true);
  if (is_first && !news.empty() && news.back().kind == Announcement::Kind::kClosed) {
    return StoreError(absl::StrCat("the job '", options_.rendezvous.id, "' at ", place_.address,
                                   " has ended (", news.back().reason,
                                   "): give this one another --rdzv-id"));
  }
  for (Announcement& announcement : news) {
    switch (announcement.kind) {
      case Announcement::Kind::kRound: {
        // A store that has been re-hosted begins with what is known.
        if (last_round_.has_value() && announcement.round.number <= last_round_->number) continue;
        last_round_ = announcement.round;
        has_round_ = announcement.round.RankOf(identity_.id) >= 0;
        break;
      }
      case Announcement::Kind::kOver:
        if (announcement.over <= over_) continue;
        over_ = announcement.over;
        has_round_ = false;
        break;
      case Announcement::Kind::kClosed:
        is_closed_ = true;
        break;
      case Announcement::Kind::kMoved:
        moved_to_ = announcement.address;
        give_up_ = clock_.Now() + options_.rendezvous.read_timeout;
        continue;
    }
    queue_.Put({Kind::kAnnouncement, std::move(announcement), ""});
  }
  return absl::OkStatus();
}

// Tries what was announced last: that place may be lost by now, and another one be announced soon.
// What this node held is no meeting place any more, until it is opened again.
bool NetworkParticipant::CancelsConnecting() {
  if (clock_.Now() >= next_remark_) {
    next_remark_ = clock_.Now() + kRemarkInterval;
    Say("the rendezvous has not been reached yet");
  }
  return cancelled();
}

// Then this node gives no sign of life: the others are not to wait for it.
bool NetworkParticipant::LauncherHangs() {
  absl::MutexLock lock(&mutex_);
  return tells_status_ && !departing_ && !stop_ && commands_.empty() &&
         clock_.Now() - last_command_ > kLauncherPatience;
}

void NetworkParticipant::AwaitWork() {
  absl::MutexLock lock(&mutex_);
  const std::string key = rendezvous_->AwaitedKey();
  if (is_closed_) {
    awaited_ = {};  // That was the last one.
  } else if (awaited_.store != place_.store || awaited_.key != key) {
    awaited_ = {place_.store, key};
    has_news_ = false;
  }
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || has_news_ || departing_ || !commands_.empty();
  };
  const absl::Duration wait = rendezvous_->next() - clock_.Now();
  mutex_.AwaitWithTimeout(absl::Condition(&has_work),
                          std::clamp(wait, absl::Milliseconds(1), absl::Seconds(1)));
  has_news_ = false;
}

void NetworkParticipant::Listen() {
  for (;;) {
    Awaited awaited;
    {
      absl::MutexLock lock(&mutex_);
      const auto is_needed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || departed_ || (awaited_.store != nullptr && !has_news_);
      };
      mutex_.Await(absl::Condition(&is_needed));
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

void NetworkParticipant::Remark() {
  if (has_round_ || is_closed_) {
    next_remark_ = clock_.Now() + kRemarkInterval;
  } else if (clock_.Now() >= next_remark_) {
    next_remark_ = clock_.Now() + kRemarkInterval;
    Say(absl::StrCat("no round has begun yet: ", rendezvous_->Describe()));
  }
}

// Nobody can take the store's place: it comes back, or not.
// In the order of their ranks, all survivors try the same nodes: the first that lives holds the
// store from now on.
// The job has ended, as far as this node can tell.
// Whoever comes looks for the job at the endpoint; who was taken for lost, where it was then. They
// are to be told where it is. One place at a time, as it may take a while to find out nothing.
void NetworkParticipant::SayGoodbye() {
  std::optional<std::string> reason;
  {
    absl::MutexLock lock(&mutex_);
    reason = leave_reason_;
  }
  if (reason.has_value()) {
    rendezvous_->Leave(*reason);
    rendezvous_->Step().status().IgnoreError();
    return;
  }
  rendezvous_->SayGoodbye().IgnoreError();
  if (place_.server == nullptr && !re_hosts_) return;
  // The others must be able to read that the job is closed.
  const absl::Time limit = clock_.Now() + timing_.policy.lost_after;
  for (bool stop = false; clock_.Now() < limit && !stop;) {
    const auto deserted = rendezvous_->IsDeserted();
    if (!deserted.ok() || *deserted) return;
    absl::MutexLock lock(&mutex_);
    stop = mutex_.AwaitWithTimeout(absl::Condition(&stop_), absl::Milliseconds(5));
  }
}

std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock) {
  return std::make_unique<NetworkParticipant>(options, std::move(identity), std::move(secret),
                                              clock);
}

}  // namespace syncline
