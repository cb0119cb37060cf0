#include "launch/rendezvous/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "launch/rendezvous/policy_options.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

constexpr absl::Duration kRemarkInterval = absl::Seconds(10);
constexpr absl::Duration kPublicationInterval = absl::Seconds(1);
constexpr absl::Duration kKeepingInterval = absl::Seconds(1);
// For a process under load to get to its next call.
constexpr absl::Duration kSlack = absl::Seconds(1);

// Whether the network made a call fail, and not an answer.
bool IsTransient(const absl::Status& status) { return KindOf(status) == ErrorKind::kTimeout; }

}  // namespace

RendezvousSession::RendezvousSession(const LaunchOptions& options, NodeIdentity identity,
                                     RendezvousNetwork& network, const Clock& clock, Tell tell,
                                     std::function<bool()> cancelled)
    : options_(options),
      identity_(std::move(identity)),
      network_(network),
      clock_(clock),
      tell_(std::move(tell)),
      cancelled_(std::move(cancelled)),
      // A node notices at its next sign of life, after a call has timed out.
      notice_patience_(options.rendezvous.keep_alive_interval + CallTimeout(options) + kSlack),
      next_remark_(clock.Now() + kRemarkInterval) {
  timing_.policy = PolicyFor(options);
  timing_.keep_alive_interval = options.rendezvous.keep_alive_interval;
  if (!network_.is_hosted_by_nodes()) return;
  timing_.may_announce_round = [this](const std::vector<NodeIdentity>& left_out) {
    return MayAnnounceRound(left_out);
  };
}

absl::Status RendezvousSession::Open() {
  // The node that hosts the store may be the last to come.
  const absl::Duration patience =
      std::max(options_.rendezvous.read_timeout, options_.rendezvous.join_timeout);
  const auto cancelled = [this] {
    if (clock_.Now() >= next_remark_) {
      next_remark_ = clock_.Now() + kRemarkInterval;
      tell_({Kind::kRemark, {}, "the rendezvous has not been reached yet"});
    }
    return cancelled_();
  };
  const absl::Time limit = clock_.Now() + patience;
  absl::StatusOr<MeetingPlace> place = OpenEndpoint(patience, cancelled);
  // Who has welcomed a connection, and is slow, may answer the next one.
  while (!place.ok() && IsTransient(place.status()) && clock_.Now() < limit && !cancelled()) {
    place = OpenEndpoint(limit - clock_.Now(), cancelled);
  }
  SYNCLINE_RETURN_IF_ERROR(place.status());
  NodeRecord record;
  record.identity = identity_;
  record.rank = options_.node_rank;  // A wish, unless the identity demands it.
  Join(*std::move(place), std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<MeetingPlace> RendezvousSession::OpenEndpoint(
    absl::Duration timeout, const std::function<bool()>& cancelled) {
  SYNCLINE_ASSIGN_OR_RETURN(MeetingPlace place, network_.Open(timeout, cancelled));
  if (!network_.is_hosted_by_nodes()) return place;
  auto instance = OpenInstance(*place.store, absl::StrCat(identity_.id, "-", ++openings_));
  if (!instance.ok()) {
    return KindOf(instance.status()) == ErrorKind::kNetwork
               ? TimeoutError(instance.status().message())
               : instance.status();
  }
  place.instance = *std::move(instance);
  place.store = InstanceStore(std::move(place.store), place.instance);
  return place;
}

absl::Status RendezvousSession::Step() {
  if (search_.has_value()) return TakeSearchStep();
  absl::StatusOr<std::vector<Announcement>> news = rendezvous_->Step();
  if (!news.ok()) {
    has_ended_ = is_closed_;
    if (!has_ended_) Lose(news.status());
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(Report(*std::move(news)));
  SYNCLINE_RETURN_IF_ERROR(FollowMove());
  if (!search_.has_value() && hosts() && !is_closed_) Probe();
  PublishAgain();
  KeepEndpoint();
  Remark();
  return absl::OkStatus();
}

std::string RendezvousSession::Describe() const {
  return absl::StrCat(search_.has_value() ? "has lost " : "is at ", place_.address, " (",
                      place_.instance, "), last round ",
                      last_round_.has_value() ? last_round_->number : 0, ", ",
                      moved_to_.has_value() ? "moves to " + *moved_to_ + ", " : "",
                      rendezvous_ == nullptr ? "has not met" : rendezvous_->Describe());
}

absl::Time RendezvousSession::next() const {
  if (search_.has_value()) return next_search_;
  return hosts() ? std::min(rendezvous_->next(), next_probe_) : rendezvous_->next();
}

RendezvousSession::Awaited RendezvousSession::awaited() const {
  if (search_.has_value() || is_closed_) return {};
  return {place_.store, rendezvous_->AwaitedKey()};
}

bool RendezvousSession::hosts() const {
  return network_.is_hosted_by_nodes() &&
         (re_hosts_ || (endpoint_server_ != nullptr && place_.address == network_.endpoint()));
}

void RendezvousSession::Join(MeetingPlace place, NodeRecord record) {
  if (place.server != nullptr) endpoint_server_ = std::exchange(place.server, nullptr);
  if (place.address != place_.address) {
    if (re_hosts_) SendOn(place.address);
    if (!place_.address.empty()) {
      Remember(place_.address);
      tell_({Kind::kMoved, {}, place.address});
    }
  }
  re_hosts_ = place.address == identity_.store;
  place_ = std::move(place);
  moved_to_.reset();
  search_.reset();
  record.ticket = 0;
  if (last_round_.has_value()) record.round = std::max(record.round, last_round_->number);
  // Its workers may still have to be stopped: until the launcher says so, it does not wait here.
  if (record.state == NodeRecord::State::kDone) record.state = NodeRecord::State::kRunning;
  rendezvous_ = std::make_unique<Rendezvous>(place_.store, std::move(record), timing_, clock_);
  const bool is_at_first_place = !position_.has_value() && place_.address == network_.endpoint();
  if (!network_.is_hosted_by_nodes() || place_.address == identity_.store || is_at_first_place) {
    return;
  }
  Position elsewhere;
  elsewhere.state = Position::State::kElsewhere;
  elsewhere.address = place_.address;
  elsewhere.instance = place_.instance;
  Publish(elsewhere);
}

// Tells those who meet in this node's store where it goes.
void RendezvousSession::SendOn(const std::string& address) {
  const auto history = ReadHistory(*place_.store);
  if (!history.ok() || history->state != InstanceHistory::State::kGoing) return;
  AnnounceMove(*place_.store, *history, address).status().IgnoreError();
}

absl::Status RendezvousSession::Report(std::vector<Announcement> news) {
  const bool is_first = !std::exchange(has_reported_, true);
  if (is_first && !news.empty() && news.back().kind == Announcement::Kind::kClosed) {
    return StoreError(absl::StrCat("the job '", options_.rendezvous.id, "' at ", place_.address,
                                   " has ended (", news.back().reason,
                                   "): give this one another --rdzv-id"));
  }
  // In a store that is new to this node, the launcher may know the first of them. What it is told
  // are rounds that it can run, in the order of their numbers, and the end of those.
  for (Announcement& announcement : news) {
    switch (announcement.kind) {
      case Announcement::Kind::kRound: {
        const Round& round = announcement.round;
        RememberStrays(last_round_, round);
        last_round_ = round;
        last_over_ = {};
        const bool is_member = round.RankOf(identity_.id) >= 0;
        if (is_member ? round.number <= reported_ : !has_round_) continue;
        if (is_member) reported_ = round.number;
        has_round_ = is_member;
        break;
      }
      case Announcement::Kind::kOver:
        last_over_ = announcement;
        if (!has_round_ || announcement.over != reported_) continue;
        has_round_ = false;
        break;
      case Announcement::Kind::kClosed:
        is_closed_ = true;
        break;
      case Announcement::Kind::kMoved:
        moved_to_ = announcement.address;
        moved_since_ = clock_.Now();
        continue;
    }
    tell_({Kind::kAnnouncement, std::move(announcement), ""});
  }
  return absl::OkStatus();
}

void RendezvousSession::ReportOver(const std::string& reason) {
  if (!std::exchange(has_round_, false)) return;
  Announcement over;
  over.kind = Announcement::Kind::kOver;
  over.over = reported_;
  over.reason = reason;
  tell_({Kind::kAnnouncement, std::move(over), ""});
}

void RendezvousSession::Remark() {
  if (clock_.Now() < next_remark_ && !has_round_ && !is_closed_) return;
  next_remark_ = clock_.Now() + kRemarkInterval;
  if (has_round_ || is_closed_ || search_.has_value()) return;
  tell_({Kind::kRemark, {}, absl::StrCat("no round has begun yet: ", rendezvous_->Describe())});
}

// Asks all at once: one that is slow must not keep this node from the others.
std::vector<RendezvousSession::Answer> RendezvousSession::Ask(
    const std::vector<std::string>& addresses, const Patience& patience) {
  std::vector<Answer> answers(addresses.size());
  network_.ForAll(addresses.size(), [&](size_t i) {
    RendezvousNetwork::Reached reached =
        network_.Connect(addresses[i], patience.connect, patience.call);
    answers[i].is_gone = reached.is_gone;
    if (reached.store == nullptr) return;
    auto position = ReadPosition(*reached.store);
    if (!position.ok()) return;
    answers[i].store = std::move(reached.store);
    answers[i].position = *std::move(position);
  });
  return answers;
}

RendezvousSession::Answer RendezvousSession::AskOne(const std::string& address,
                                                    const Patience& patience) {
  return std::move(Ask({address}, patience).front());
}

// Whether this node serves the endpoint, as it does from now on if it can.
bool RendezvousSession::ServesEndpoint() {
  if (endpoint_server_ == nullptr) endpoint_server_ = network_.ServeEndpoint();
  return endpoint_server_ != nullptr;
}

// The process that served the endpoint may have ended while this one, on the same host, is in the
// job. Newcomers would find nobody there; this node sends them on.
void RendezvousSession::KeepEndpoint() {
  if (clock_.Now() < next_keeping_ || endpoint_server_ != nullptr) return;
  next_keeping_ = clock_.Now() + kKeepingInterval;
  if (!network_.is_hosted_by_nodes() || !last_round_.has_value()) return;
  if (search_.has_value() || is_closed_ || moved_to_.has_value()) return;
  if (place_.address == network_.endpoint() || !ServesEndpoint()) return;
  const auto reached = network_.Connect(network_.endpoint(), kSlack, kSlack);
  if (reached.store == nullptr) return;
  OpenInstance(*reached.store, absl::StrCat(identity_.id, "-", ++openings_)).status().IgnoreError();
  Reconcile(network_.endpoint(), AskOne(network_.endpoint(), kProbePatience));
}

Store* RendezvousSession::OwnStore() {
  if (own_store_ == nullptr) {
    own_store_ = network_.Connect(identity_.store, kSlack, absl::InfiniteDuration()).store;
  }
  return own_store_.get();
}

bool RendezvousSession::Publish(const Position& position) {
  position_ = position;
  next_publication_ = clock_.Now() + kPublicationInterval;
  Store* const store = OwnStore();
  return store != nullptr && WritePosition(*store, position).ok();
}

// A write that was given up may have come late, and stand in place of this one.
void RendezvousSession::PublishAgain() {
  if (!position_.has_value() || clock_.Now() < next_publication_) return;
  next_publication_ = clock_.Now() + kPublicationInterval;
  Store* const store = OwnStore();
  if (store == nullptr) return;
  const auto is_there = ReplacePosition(*store, *position_, *position_);
  if (is_there.ok() && !*is_there) Publish(*position_);
}

void RendezvousSession::Leave(const std::string& reason) {
  rendezvous_->Leave(reason);
  rendezvous_->Step().status().IgnoreError();
}

void RendezvousSession::SayGoodbye() {
  if (hosts()) stays_until_ = clock_.Now() + timing_.policy.lost_after;
  // What nodes hold ends with them.
  const absl::Time limit = clock_.Now() + timing_.policy.lost_after;
  rendezvous_->SayGoodbye([&] { return network_.is_hosted_by_nodes() || clock_.Now() >= limit; })
      .IgnoreError();
}

bool RendezvousSession::MustStay() {
  if (clock_.Now() >= stays_until_) return false;
  const auto is_deserted = rendezvous_->IsDeserted();
  return is_deserted.ok() && !*is_deserted;
}

}  // namespace syncline
