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
constexpr absl::Duration kProbeInterval = absl::Seconds(1);
constexpr absl::Duration kProbePatience = absl::Milliseconds(300);
constexpr absl::Duration kListenFor = absl::Seconds(30);
// For a node whose host may be down: a process that is gone answers at once.
constexpr absl::Duration kReachPatience = absl::Milliseconds(700);
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
  void Report(std::vector<Announcement> news);
  void AwaitWork();
  void Remark();
  absl::Status Recover(const absl::Status& loss);
  absl::Status MoveToSurvivor(const Deadline& deadline);
  absl::Status RetryStore(const Deadline& deadline);
  void Enter(MeetingPlace place, NodeRecord record);
  void ProbeEndpoint();
  void SayGoodbye();
  void Say(std::string text) { queue_.Put({Kind::kRemark, {}, std::move(text)}); }
  bool stopped() {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }

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
  bool is_closed_ = false;
  bool re_hosts_ = false;  // This node holds the store now, but not at the endpoint.
  absl::Time next_probe_ = absl::InfinitePast();
  absl::Time next_remark_;

  absl::Mutex mutex_;
  std::deque<Action> commands_ ABSL_GUARDED_BY(mutex_);
  struct Awaited {
    std::shared_ptr<Store> store;
    std::string key;
  };
  Awaited awaited_ ABSL_GUARDED_BY(mutex_);      // Store is null: nothing.
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
  absl::StatusOr<MeetingPlace> place = OpenMeetingPlace(
      meeting_, Deadline(options_.rendezvous.read_timeout), [this] { return stopped(); });
  absl::Status status = place.status();
  if (status.ok()) {
    NodeRecord record;
    record.identity = identity_;
    record.rank = options_.node_rank;  // A wish, unless the identity demands it.
    Enter(*std::move(place), std::move(record));
  }
  while (status.ok() && !stopped()) {
    Obey();
    absl::StatusOr<std::vector<Announcement>> news = rendezvous_->Step();
    if (!news.ok()) {
      if (is_closed_) break;  // Whoever held the store has gone.
      status = Recover(news.status());
      continue;
    }
    Report(*std::move(news));
    bool departing = false;
    {
      absl::MutexLock lock(&mutex_);
      departing = departing_ && commands_.empty();
    }
    if (departing) {
      SayGoodbye();
      break;
    }
    if (re_hosts_ && !is_closed_) ProbeEndpoint();
    Remark();
    AwaitWork();
  }
  if (!status.ok()) queue_.Put({Kind::kFailed, {}, std::string(status.message())});
  absl::MutexLock lock(&mutex_);
  awaited_ = {};
  departed_ = true;
}

void NetworkParticipant::Enter(MeetingPlace place, NodeRecord record) {
  place_ = std::move(place);
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

void NetworkParticipant::Report(std::vector<Announcement> news) {
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
      case Announcement::Kind::kMoved: {
        auto place = ConnectTo(meeting_, announcement.address, options_.rendezvous.read_timeout);
        if (!place.ok()) {
          Say(absl::StrCat("the job goes on at ", announcement.address, ", which cannot be reached: ",
                           place.status().message()));
          continue;
        }
        // Its server, if this node has one here, stays for others to be told.
        place->server = std::move(place_.server);
        queue_.Put({Kind::kMoved, {}, announcement.address});
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
        NodeRecord record;
        record.identity = rendezvous_->record().identity;
        Enter(*std::move(place), std::move(record));
        return;
      }
    }
    queue_.Put({Kind::kAnnouncement, std::move(announcement), ""});
  }
}

void NetworkParticipant::AwaitWork() {
  absl::MutexLock lock(&mutex_);
  const std::string key = rendezvous_->AwaitedKey();
  if (awaited_.store != place_.store || awaited_.key != key) {
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
    if (news.ok()) {
      Report(*std::move(news));
      return absl::OkStatus();
    }
    if (IsHostedByNodes(options_.rendezvous)) {
      auto place = OpenMeetingPlace(
          meeting_, Deadline(std::min(absl::Seconds(1), deadline.Remaining())),
          [this] { return stopped(); });
      if (place.ok()) {
        NodeRecord record = rendezvous_->record();
        Enter(*std::move(place), std::move(record));
        return absl::OkStatus();
      }
    }
    if (deadline.Expired() || stopped()) return news.status();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stop_), kRetryInterval);
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
  absl::Status last = NetworkError("no node is left");
  do {
    for (const NodeIdentity& member : last_round_->members) {
      if (stopped()) return last;
      auto place = ConnectTo(meeting_, member.store, kReachPatience);
      last = place.status();
      if (!last.ok()) continue;
      re_hosts_ = member.id == identity_.id;
      last = re_hosts_ ? OpenAtNode(*place->store, *last_round_)
                       : AwaitOpening(*place->store, std::min(kOpeningPatience,
                                                              deadline.Remaining()));
      if (!last.ok()) continue;
      queue_.Put({Kind::kMoved, {}, member.store});
      NodeRecord record = rendezvous_->record();
      if (record.state == NodeRecord::State::kDone) record.state = NodeRecord::State::kRunning;
      Enter(*std::move(place), std::move(record));
      return absl::OkStatus();
    }
  } while (!deadline.Expired());
  return last;
}

// Whoever comes, or comes back, looks for the job at the endpoint: it is to be told where it is.
void NetworkParticipant::ProbeEndpoint() {
  if (clock_.Now() < next_probe_) return;
  next_probe_ = clock_.Now() + kProbeInterval;
  const bool is_v6 = options_.rendezvous.host.find(':') != std::string::npos;
  const std::string endpoint =
      absl::StrCat(is_v6 ? "[" : "", options_.rendezvous.host, is_v6 ? "]:" : ":",
                   options_.rendezvous.port);
  auto place = ConnectTo(meeting_, endpoint, kProbePatience);
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
  while (clock_.Now() < limit && !stopped()) {
    const auto deserted = rendezvous_->IsDeserted();
    if (!deserted.ok() || *deserted) return;
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stop_), absl::Milliseconds(5));
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
