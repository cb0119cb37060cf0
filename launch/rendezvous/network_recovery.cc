// How a node finds the job again when the store is lost, or has moved.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "launch/rendezvous/network_participant.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr absl::Duration kProbeInterval = absl::Milliseconds(500);
constexpr absl::Duration kProbePatience = absl::Milliseconds(300);
constexpr size_t kFormerPlaces = 8;  // As many are remembered.
// For a node whose host may be down: a process that is gone answers at once.
constexpr absl::Duration kReachPatience = absl::Seconds(1);
// From one node's noticing that the store is lost to another's.
constexpr absl::Duration kOpeningPatience = absl::Seconds(4);

}  // namespace

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
  // The history there is not shorter (RedirectTo): what is known of it is not to be begun again.
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

void NetworkParticipant::LeavePlace() {
  if (re_hosts_) CloseAtNode(*place_.store);
  former_.erase(std::remove(former_.begin(), former_.end(), place_.address), former_.end());
  former_.push_front(place_.address);
  if (former_.size() > kFormerPlaces) former_.pop_back();
}

absl::Status NetworkParticipant::Recover(const absl::Status& loss) {
  const Deadline deadline(options_.rendezvous.read_timeout);
  const bool can_move = IsHostedByNodes(options_.rendezvous) && last_round_.has_value();
  const absl::Status recovered = can_move ? MoveToSurvivor(deadline) : RetryStore(deadline);
  return Annotate(recovered, absl::StrCat("the rendezvous is lost (", loss.message(), ")"));
}

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

void NetworkParticipant::CloseAlone() {
  Announcement closed;
  closed.kind = Announcement::Kind::kClosed;
  closed.reason = "this node's workers have succeeded, and no other node is left";
  is_closed_ = true;
  queue_.Put({Kind::kAnnouncement, std::move(closed), ""});
}

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

}  // namespace syncline
