#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/status.h"
#include "launch/rendezvous/meeting_place.h"
#include "launch/rendezvous/news_queue.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

constexpr absl::Duration kRemarkInterval = absl::Seconds(10);
constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr absl::Duration kProbeInterval = absl::Milliseconds(500);
constexpr absl::Duration kProbePatience = absl::Milliseconds(300);
constexpr size_t kFormerPlaces = 8;  // As many are remembered.
constexpr absl::Duration kFollowPatience = absl::Seconds(3);
// Of a launcher that says how it is once a second.
constexpr absl::Duration kLauncherPatience = absl::Seconds(15);
// For a node whose host may be down: a process that is gone answers at once.
constexpr absl::Duration kReachPatience = absl::Seconds(1);
// From one node's noticing that the store is lost to another's.
constexpr absl::Duration kOpeningPatience = absl::Seconds(4);

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
  void Say(std::string text) { queue_.Put({Kind::kRemark, {}, std::move(text)}); }
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
absl::Status NetworkParticipant::FollowMove() {
  if (!moved_to_.has_value()) return absl::OkStatus();
  auto place = ConnectTo(meeting_, *moved_to_, kReachPatience);
  if (!place.ok()) {
    if (clock_.Now() < give_up_) return absl::OkStatus();
    return Annotate(place.status(), absl::StrCat("the job goes on at ", *moved_to_));
  }
  queue_.Put({Kind::kMoved, {}, *moved_to_});
  if (has_round_ && last_round_.has_value()) {
    Announcement over;
    over.kind = Announcement::Kind::kOver;
    over.over = over_ = last_round_->number;
    over.reason = "the job goes on elsewhere";
    queue_.Put({Kind::kAnnouncement, std::move(over), ""});
  }
  last_round_.reset();
  over_ = 0;
  has_round_ = false;
  LeavePlace();
  re_hosts_ = false;
  // Its workers may still have to be stopped: until it says so itself, it does not wait there.
  NodeRecord record = rendezvous_->record();
  record.failure.reset();
  if (record.state == NodeRecord::State::kDone) record.state = NodeRecord::State::kRunning;
  Enter(*std::move(place), std::move(record));
  return absl::OkStatus();
}

// What this node held is no meeting place any more, until it is opened again.
void NetworkParticipant::LeavePlace() {
  if (re_hosts_) CloseAtNode(*place_.store);
  former_.erase(std::remove(former_.begin(), former_.end(), place_.address), former_.end());
  former_.push_front(place_.address);
  if (former_.size() > kFormerPlaces) former_.pop_back();
}

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

absl::Status NetworkParticipant::Recover(const absl::Status& loss) {
  const Deadline deadline(options_.rendezvous.read_timeout);
  const bool can_move = IsHostedByNodes(options_.rendezvous) && last_round_.has_value();
  const absl::Status recovered = can_move ? MoveToSurvivor(deadline) : RetryStore(deadline);
  return Annotate(recovered, absl::StrCat("the rendezvous is lost (", loss.message(), ")"));
}

// Nobody can take the store's place: it comes back, or not.
absl::Status NetworkParticipant::RetryStore(const Deadline& deadline) {
  for (;;) {
    absl::StatusOr<std::vector<Announcement>> news = rendezvous_->Step();
    if (news.ok()) return Report(*std::move(news));
    if (IsHostedByNodes(options_.rendezvous)) {
      auto place =
          OpenMeetingPlace(meeting_, Deadline(std::min(absl::Seconds(1), deadline.Remaining())),
                           [this] { return cancelled(); });
      if (place.ok()) {
        NodeRecord record = rendezvous_->record();
        Enter(*std::move(place), std::move(record));
        return absl::OkStatus();
      }
    }
    if (deadline.Expired() || cancelled()) return news.status();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&departing_), kRetryInterval);
  }
}

// In the order of their ranks, all survivors try the same nodes: the first that lives holds the
// store from now on.
absl::Status NetworkParticipant::MoveToSurvivor(const Deadline& deadline) {
  if (has_round_ && over_ < last_round_->number) {
    Announcement over;
    over.kind = Announcement::Kind::kOver;
    over.over = over_ = last_round_->number;
    over.reason = absl::StrCat("the node that held the rendezvous at ", place_.address, " is lost");
    has_round_ = false;
    queue_.Put({Kind::kAnnouncement, std::move(over), ""});
  }
  NodeRecord record = rendezvous_->record();
  record.round = std::max(record.round, last_round_->number);
  const bool was_done = record.state == NodeRecord::State::kDone;
  if (was_done) record.state = NodeRecord::State::kRunning;
  // Perhaps only the connection is lost.
  if (auto same = ConnectTo(meeting_, place_.address, kReachPatience); same.ok()) {
    if (const auto is_it = IsPlaceOf(*same->store, *last_round_); is_it.ok() && *is_it) {
      same->server = std::move(place_.server);
      Enter(*std::move(same), std::move(record));
      return absl::OkStatus();
    }
  }
  absl::Status last = NetworkError("no node is left");
  do {
    for (const NodeIdentity& member : last_round_->members) {
      if (cancelled()) return last;
      auto place = ConnectTo(meeting_, member.store, kReachPatience);
      last = place.status();
      if (!last.ok()) continue;
      const bool is_own = member.id == identity_.id;
      if (is_own && was_done) {
        CloseAlone();
        return absl::OkStatus();
      }
      last = is_own ? OpenAtNode(*place->store, *last_round_)
                    : AwaitOpening(*place->store, std::min(kOpeningPatience, deadline.Remaining()));
      if (!last.ok()) continue;
      if (place->address != place_.address) LeavePlace();
      re_hosts_ = is_own;
      queue_.Put({Kind::kMoved, {}, member.store});
      Enter(*std::move(place), std::move(record));
      return absl::OkStatus();
    }
  } while (!deadline.Expired());
  return last;
}

// The job has ended, as far as this node can tell.
void NetworkParticipant::CloseAlone() {
  Announcement closed;
  closed.kind = Announcement::Kind::kClosed;
  closed.reason = "this node's workers have succeeded, and no other node is left";
  is_closed_ = true;
  queue_.Put({Kind::kAnnouncement, std::move(closed), ""});
}

// Whoever comes looks for the job at the endpoint; who was taken for lost, where it was then. They
// are to be told where it is. One place at a time, as it may take a while to find out nothing.
void NetworkParticipant::ProbeFormerPlaces() {
  if (clock_.Now() < next_probe_) return;
  next_probe_ = clock_.Now() + kProbeInterval;
  const bool is_endpoints_turn = ++probes_ % 2 == 0 || former_.empty();
  const std::string address = is_endpoints_turn ? EndpointAddress(options_.rendezvous)
                                                : former_[probes_ / 2 % former_.size()];
  if (address == place_.address) return;
  auto place = ConnectTo(meeting_, address, kProbePatience);
  if (!place.ok()) return;
  RedirectTo(*place->store, place_.address, last_round_->number).IgnoreError();
}

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

}  // namespace

std::unique_ptr<Participant> MakeNetworkParticipant(const LaunchOptions& options,
                                                    NodeIdentity identity, std::string secret,
                                                    const Clock& clock) {
  return std::make_unique<NetworkParticipant>(options, std::move(identity), std::move(secret),
                                              clock);
}

}  // namespace syncline
