#include "launch/rendezvous/rendezvous_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launch/rendezvous/round_policy_options.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Kind = RendezvousEvent::Kind;

constexpr absl::Duration kLogWaitingInterval = absl::Seconds(10);
constexpr absl::Duration kPublishInterval = absl::Seconds(1);
constexpr absl::Duration kEndpointCheckInterval = absl::Seconds(1);
// For a process on a loaded host to reach its next call.
constexpr absl::Duration kSlack = absl::Seconds(1);

// Whether the call failed without an answer, so that another try may succeed.
bool IsTransient(const absl::Status& status) { return KindOf(status) == ErrorKind::kTimeout; }

}  // namespace

RendezvousSession::RendezvousSession(const LaunchOptions& options, NodeIdentity identity,
                                     RendezvousNetwork& network, const Clock& clock,
                                     OnEvent on_event, std::function<bool()> cancelled)
    : options_(options),
      identity_(std::move(identity)),
      network_(network),
      clock_(clock),
      on_event_(std::move(on_event)),
      cancelled_(std::move(cancelled)),
      // A node notices the loss when the call for its next heartbeat times out.
      loss_detection_time_(options.rendezvous.keep_alive_interval + CallTimeout(options) + kSlack),
      next_log_waiting_(clock.Now() + kLogWaitingInterval) {
  timing_.policy = RoundPolicyFor(options);
  timing_.keep_alive_interval = options.rendezvous.keep_alive_interval;
  if (!network_.is_hosted_by_nodes()) return;
  timing_.may_announce_round = [this](const std::vector<NodeIdentity>& left_out) {
    return MayAnnounceRound(left_out);
  };
}

absl::Status RendezvousSession::Open() {
  // The node that hosts the store may be the last to start.
  const absl::Duration timeout =
      std::max(options_.rendezvous.read_timeout, options_.rendezvous.join_timeout);
  const auto cancelled = [this] {
    if (clock_.Now() >= next_log_waiting_) {
      next_log_waiting_ = clock_.Now() + kLogWaitingInterval;
      on_event_({Kind::kMessage, {}, "the rendezvous has not been reached yet"});
    }
    return cancelled_();
  };
  const absl::Time limit = clock_.Now() + timeout;
  absl::StatusOr<RendezvousStore> target = OpenEndpoint(timeout, cancelled);
  // A server that accepted the connection and then timed out is slow; it may answer the next one.
  while (!target.ok() && IsTransient(target.status()) && clock_.Now() < limit && !cancelled()) {
    target = OpenEndpoint(limit - clock_.Now(), cancelled);
  }
  SYNCLINE_RETURN_IF_ERROR(target.status());
  NodeRecord record;
  record.identity = identity_;
  record.rank = options_.node_rank;  // Preferred; identity_.wanted_rank makes it mandatory.
  Join(*std::move(target), std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<RendezvousStore> RendezvousSession::OpenEndpoint(
    absl::Duration timeout, const std::function<bool()>& cancelled) {
  SYNCLINE_ASSIGN_OR_RETURN(RendezvousStore target, network_.Open(timeout, cancelled));
  if (!network_.is_hosted_by_nodes()) return target;
  auto instance = OpenInstance(*target.store, absl::StrCat(identity_.id, "-", ++instances_opened_));
  if (!instance.ok()) {
    return KindOf(instance.status()) == ErrorKind::kNetwork
               ? TimeoutError(instance.status().message())
               : instance.status();
  }
  target.instance = *std::move(instance);
  target.store = InstanceStore(std::move(target.store), target.instance);
  return target;
}

absl::Status RendezvousSession::Step() {
  if (search_.has_value()) return SearchStep();
  absl::StatusOr<std::vector<Announcement>> announcements = rendezvous_->Step();
  if (!announcements.ok()) {
    // After the job is closed its host exits, and takes the store along.
    has_ended_ = is_closed_;
    if (!has_ended_) StartSearch(announcements.status());
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(ReportAnnouncements(*std::move(announcements)));
  SYNCLINE_RETURN_IF_ERROR(FollowMove());
  if (!search_.has_value() && hosts_store() && !is_closed_) CheckOtherStores();
  RepublishLocation();
  EnsureEndpointServed();
  LogWaiting();
  return absl::OkStatus();
}

std::string RendezvousSession::Describe() const {
  return absl::StrCat(search_.has_value() ? "has lost " : "is at ", current_.address, " (",
                      current_.instance, "), last round ",
                      last_round_.has_value() ? last_round_->number : 0, ", ",
                      moved_to_.has_value() ? "moves to " + *moved_to_ + ", " : "",
                      rendezvous_ == nullptr ? "has not met" : rendezvous_->Describe());
}

absl::Time RendezvousSession::next() const {
  if (search_.has_value()) return next_search_;
  return hosts_store() ? std::min(rendezvous_->next(), next_check_) : rendezvous_->next();
}

RendezvousSession::WatchedKey RendezvousSession::watched_key() const {
  if (search_.has_value() || is_closed_) return {};
  return {current_.store, rendezvous_->NextAnnouncementKey()};
}

bool RendezvousSession::hosts_store() const {
  return network_.is_hosted_by_nodes() &&
         (hosts_in_own_store_ ||
          (endpoint_server_ != nullptr && current_.address == network_.endpoint()));
}

void RendezvousSession::Join(RendezvousStore target, NodeRecord record) {
  if (target.server != nullptr) endpoint_server_ = std::exchange(target.server, nullptr);
  if (target.address != current_.address) {
    if (hosts_in_own_store_) AnnounceMoveTo(target.address);
    if (!current_.address.empty()) {
      AddPreviousEndpoint(current_.address);
      on_event_({Kind::kMoved, {}, target.address});
    }
  }
  hosts_in_own_store_ = target.address == identity_.store;
  current_ = std::move(target);
  moved_to_.reset();
  search_.reset();
  record.join_order = 0;  // Counts per store; Rendezvous gets a new one.
  if (last_round_.has_value()) record.round = std::max(record.round, last_round_->number);
  // If the end of the round was reported to the launcher, this node is not done in the new store:
  // kRunning keeps the leader waiting until the launcher has stopped the workers and calls Wait.
  // Otherwise the round goes on there, and this node, whose launcher says only once that it is
  // done, still is.
  const bool is_over = !has_round_;
  if (is_over && record.state == NodeRecord::State::kDone) {
    record.state = NodeRecord::State::kRunning;
  }
  rendezvous_ = std::make_unique<Rendezvous>(current_.store, std::move(record), timing_, clock_);
  const bool is_at_first_store = !location_.has_value() && current_.address == network_.endpoint();
  if (!network_.is_hosted_by_nodes() || current_.address == identity_.store || is_at_first_store) {
    return;
  }
  // Nodes that query this node's store are redirected.
  JobLocation elsewhere;
  elsewhere.state = JobLocation::State::kElsewhere;
  elsewhere.address = current_.address;
  elsewhere.instance = current_.instance;
  PublishLocation(elsewhere);
}

// Redirects the nodes that are still in this node's own store. If it fails, they find the job by a
// search, or by the next CheckOtherStores of its host.
void RendezvousSession::AnnounceMoveTo(const std::string& address) {
  const auto history = ReadHistory(*current_.store);
  if (!history.ok() || history->state != InstanceHistory::State::kGoing) return;
  AnnounceMove(*current_.store, *history, address).status().IgnoreError();
}

absl::Status RendezvousSession::ReportAnnouncements(std::vector<Announcement> announcements) {
  const bool is_first = !std::exchange(has_reported_, true);
  if (is_first && !announcements.empty() &&
      announcements.back().kind == Announcement::Kind::kClosed) {
    return StoreError(absl::StrCat("the job '", options_.rendezvous.id, "' at ", current_.address,
                                   " has ended (", announcements.back().reason,
                                   "): give this one another --rdzv-id"));
  }
  // After a move the log of the new store is read from its first entry, which may repeat rounds
  // that the launcher knows. The launcher gets each round that this node is a member of once, in
  // the order of numbers, and the end of each such round once.
  for (Announcement& announcement : announcements) {
    switch (announcement.kind) {
      case Announcement::Kind::kRound: {
        const Round& round = announcement.round;
        TrackLeftOutMembers(last_round_, round);
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
        move_announced_at_ = clock_.Now();
        continue;
    }
    on_event_({Kind::kAnnouncement, std::move(announcement), ""});
  }
  return absl::OkStatus();
}

void RendezvousSession::ReportRoundOver(const std::string& reason) {
  if (!std::exchange(has_round_, false)) return;
  Announcement over;
  over.kind = Announcement::Kind::kOver;
  over.over = reported_;
  over.reason = reason;
  on_event_({Kind::kAnnouncement, std::move(over), ""});
}

void RendezvousSession::LogWaiting() {
  if (clock_.Now() < next_log_waiting_ && !has_round_ && !is_closed_) return;
  next_log_waiting_ = clock_.Now() + kLogWaitingInterval;
  if (has_round_ || is_closed_ || search_.has_value()) return;
  absl::StatusOr<std::string> reason = rendezvous_->DescribeWaiting();
  if (!reason.ok()) return;  // The next step finds that the store is lost.
  on_event_({Kind::kMessage, {}, *std::move(reason)});
}

// Queries all stores at once, so that slow ones cost one timeout together.
std::vector<RendezvousSession::Answer> RendezvousSession::Query(
    const std::vector<std::string>& addresses, const Timeouts& timeouts) {
  std::vector<Answer> answers(addresses.size());
  network_.ForAll(addresses.size(), [&](size_t i) {
    RendezvousNetwork::ConnectResult connected =
        network_.Connect(addresses[i], timeouts.connect, timeouts.call);
    answers[i].is_refused = connected.is_refused;
    if (connected.store == nullptr) return;
    auto location = ReadLocation(*connected.store);
    if (!location.ok()) return;
    answers[i].store = std::move(connected.store);
    answers[i].location = *std::move(location);
  });
  return answers;
}

RendezvousSession::Answer RendezvousSession::QueryOne(const std::string& address,
                                                      const Timeouts& timeouts) {
  return std::move(Query({address}, timeouts).front());
}

// Starts to serve the endpoint if possible. Returns whether this node serves it.
bool RendezvousSession::TryServeEndpoint() {
  if (endpoint_server_ == nullptr) endpoint_server_ = network_.ServeEndpoint();
  return endpoint_server_ != nullptr;
}

// The process that served the endpoint may have exited. New nodes know no other address, so a node
// on the same host takes over and redirects them.
void RendezvousSession::EnsureEndpointServed() {
  if (clock_.Now() < next_endpoint_check_ || endpoint_server_ != nullptr) return;
  next_endpoint_check_ = clock_.Now() + kEndpointCheckInterval;
  if (!network_.is_hosted_by_nodes() || !last_round_.has_value()) return;
  if (search_.has_value() || is_closed_ || moved_to_.has_value()) return;
  if (current_.address == network_.endpoint() || !TryServeEndpoint()) return;
  const auto connected = network_.Connect(network_.endpoint(), kSlack, kSlack);
  if (connected.store == nullptr) return;
  OpenInstance(*connected.store, absl::StrCat(identity_.id, "-", ++instances_opened_))
      .status()
      .IgnoreError();
  Reconcile(network_.endpoint(), QueryOne(network_.endpoint(), kQuickTimeouts));
}

Store* RendezvousSession::OwnStore() {
  if (own_store_ == nullptr) {
    own_store_ = network_.Connect(identity_.store, kSlack, absl::InfiniteDuration()).store;
  }
  return own_store_.get();
}

bool RendezvousSession::PublishLocation(const JobLocation& location) {
  location_ = location;
  next_publish_ = clock_.Now() + kPublishInterval;
  Store* const store = OwnStore();
  return store != nullptr && WriteLocation(*store, location).ok();
}

// A write that timed out may take effect later and replace a newer one; checks for that regularly.
void RendezvousSession::RepublishLocation() {
  if (!location_.has_value() || clock_.Now() < next_publish_) return;
  next_publish_ = clock_.Now() + kPublishInterval;
  Store* const store = OwnStore();
  if (store == nullptr) return;
  const auto is_there = ReplaceLocation(*store, *location_, *location_);
  if (is_there.ok() && !*is_there) PublishLocation(*location_);
}

void RendezvousSession::Leave(const std::string& reason) {
  rendezvous_->Leave(reason);
  rendezvous_->Step().status().IgnoreError();
}

void RendezvousSession::Deregister() {
  if (hosts_store()) serve_until_ = clock_.Now() + timing_.policy.lost_after;
  // A store that a node hosts disappears with it: its keys need no removal.
  const absl::Time limit = clock_.Now() + timing_.policy.lost_after;
  rendezvous_->Deregister([&] { return network_.is_hosted_by_nodes() || clock_.Now() >= limit; })
      .IgnoreError();
}

bool RendezvousSession::MustKeepServing() {
  if (clock_.Now() >= serve_until_) return false;
  const auto is_deserted = rendezvous_->AllNodesLeft();
  return is_deserted.ok() && !*is_deserted;
}

}  // namespace syncline::launch
