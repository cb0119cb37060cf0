// RendezvousSession: how a node finds the job again when its store is lost or has moved.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launch/rendezvous/rendezvous_session.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Kind = RendezvousEvent::Kind;

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr int kMaxHops = 4;  // Redirects that one search follows.
constexpr int kFirstQueried = 2;
constexpr char kLost[] = "the rendezvous is lost";

bool IsSame(const Round& a, const Round& b) {
  if (a.number != b.number || a.members.size() != b.members.size()) return false;
  for (const NodeIdentity& member : a.members) {
    if (b.RankOf(member.id) < 0) return false;
  }
  return true;
}

}  // namespace

void RendezvousSession::StartSearch(const absl::Status& loss) {
  Search search;
  search.loss = loss;
  search.began = clock_.Now();
  search.was_done = rendezvous_->record().state == NodeRecord::State::kDone;
  search_ = std::move(search);
  next_search_ = absl::InfinitePast();
  if (!network_.is_hosted_by_nodes() || !last_round_.has_value()) return;
  ReportRoundOver(
      absl::StrCat("the node that held the rendezvous at ", current_.address, " is lost"));
  // Its own store was only slow: the others are still there, so it is not announced as lost.
  if (hosts_in_own_store_) return;
  JobLocation searching;
  searching.state = JobLocation::State::kSearching;
  searching.last = *last_round_;
  PublishLocation(searching);
}

absl::Status RendezvousSession::SearchStep() {
  const bool has_members = network_.is_hosted_by_nodes() && last_round_.has_value();
  absl::StatusOr<bool> is_found = true;
  if (has_members) {
    is_found = SearchMembers();
  } else {
    is_found = ReconnectToStore();
  }
  if (!is_found.ok() || *is_found) return is_found.status();
  next_search_ = clock_.Now() + kRetryInterval;
  const bool is_late = clock_.Now() - search_->began >= options_.rendezvous.read_timeout;
  if (!is_late && !cancelled_()) return absl::OkStatus();
  return Annotate(search_->loss, kLost);
}

// For a store that no node hosts, or before the first round: there is nobody to query, so the node
// waits for the same store. It may come back empty, as etcd does when its lease has expired; then
// the nodes write the last round again.
absl::StatusOr<bool> RendezvousSession::ReconnectToStore() {
  absl::StatusOr<std::vector<Announcement>> announcements = rendezvous_->Step();
  if (announcements.ok()) {
    search_.reset();
    SYNCLINE_RETURN_IF_ERROR(ReportAnnouncements(*std::move(announcements)));
    return true;
  }
  search_->loss = announcements.status();
  const absl::Duration left = search_->began + options_.rendezvous.read_timeout - clock_.Now();
  auto target =
      OpenEndpoint(std::clamp(left, absl::Milliseconds(100), kSearchTimeouts.connect), cancelled_);
  if (!target.ok()) return false;
  const auto history = ReadHistory(*target->store);
  if (!history.ok()) return false;
  if (last_round_.has_value() && history->announcements == 0) {
    if (!WriteHistory(*target->store, *last_round_, EndOfLastRound()).ok()) return false;
    ReportRoundOver("the store of the rendezvous has lost its contents");
  }
  Join(*std::move(target), rendezvous_->record());
  return true;
}

bool RendezvousSession::SearchMembers() {
  // Perhaps only the connection is lost, and the store is still there.
  const Answer previous = QueryOne(current_.address, kSearchTimeouts);
  if (previous.location.has_value() && previous.location->state == JobLocation::State::kHere &&
      previous.location->instance == current_.instance &&
      JoinAt(current_.address, previous, kMaxHops)) {
    return true;
  }
  if (moved_to_.has_value() && JoinVia(*moved_to_, kMaxHops)) return true;
  const int own = rank();
  bool must_wait = false;
  const int before = own >= 0 ? own : static_cast<int>(last_round_->members.size());
  if (QueryLowerRanks(before, &must_wait)) return true;
  if (must_wait || cancelled_()) return false;
  if (own >= 0) return BecomeHost();
  // This node was not a member, and no member can be reached. Others may be at the endpoint.
  return JoinVia(network_.endpoint(), kMaxHops) ||
         (clock_.Now() - search_->began >= loss_detection_time_ && ReopenEndpoint());
}

// The endpoint redirects to a store that is gone, or nobody serves it. A node that can serve it
// opens a new instance there, for itself and for all nodes that have come since. The location is
// replaced last, and by compare-and-set: of several nodes one opens the instance, and none finds it
// empty.
bool RendezvousSession::ReopenEndpoint() {
  if (!TryServeEndpoint()) return false;
  const Answer answer = QueryOne(network_.endpoint(), kSearchTimeouts);
  if (answer.store == nullptr) return false;
  RendezvousStore target;
  target.address = network_.endpoint();
  target.instance = absl::StrCat(identity_.id, "-", ++instances_opened_);
  target.store = InstanceStore(answer.store, target.instance);
  JobLocation here;
  here.state = JobLocation::State::kHere;
  here.instance = target.instance;
  if (last_round_.has_value() &&
      !WriteHistory(*target.store, *last_round_, EndOfLastRound()).ok()) {
    return false;
  }
  const auto is_open = ReplaceLocation(*answer.store, answer.location, here);
  if (!is_open.ok() || !*is_open) return false;
  if (moved_to_.has_value()) AddPreviousEndpoint(*moved_to_);
  Join(std::move(target), rendezvous_->record());
  return true;
}

// How the last round ended, for the instance that replaces a lost one.
Announcement RendezvousSession::EndOfLastRound() const {
  Announcement over = last_over_;
  over.kind = Announcement::Kind::kOver;
  over.over = last_round_->number;
  if (over.reason.empty()) {
    over.cause = Announcement::Cause::kStoreLost;
    over.reason = network_.is_hosted_by_nodes() ? "the node that held the rendezvous is lost"
                                                : "the store of the rendezvous is lost";
  }
  return over;
}

// Queries the members with ranks below `limit`, in groups of doubling size: usually one of the
// first ranks answers, and either hosts the new store or will. The higher ranks are then spared a
// query from every searching node.
bool RendezvousSession::QueryLowerRanks(int limit, bool* must_wait) {
  const std::vector<NodeIdentity> members = last_round_->members;
  for (int begin = 0, count = kFirstQueried; begin < limit; begin += count, count *= 2) {
    std::vector<std::string> addresses;
    for (int rank = begin; rank < std::min(begin + count, limit); ++rank) {
      addresses.push_back(members[rank].store);
    }
    const std::vector<Answer> answers = Query(addresses, kSearchTimeouts);
    for (size_t i = 0; i < answers.size(); ++i) {
      const SearchResult result = EvaluateAnswer(members[begin + i], answers[i]);
      if (result == SearchResult::kJoined) return true;
      *must_wait = result == SearchResult::kWait;
      if (*must_wait) return false;
    }
  }
  return false;
}

// What the location in a member's store means for this node's search.
RendezvousSession::SearchResult RendezvousSession::EvaluateAnswer(const NodeIdentity& member,
                                                                  const Answer& answer) {
  if (answer.store == nullptr) return SearchResult::kNext;
  const absl::Duration age = clock_.Now() - search_->began;
  const bool may_be_undetected = age < loss_detection_time_;
  JobLocation at;  // A node that has never moved has no location: it is at the endpoint.
  at.state = JobLocation::State::kElsewhere;
  at.address = network_.endpoint();
  if (answer.location.has_value()) at = *answer.location;
  if (at.state == JobLocation::State::kSearching) {
    const History own = {last_round_->number, static_cast<int>(last_round_->members.size()), ""};
    const History other = {at.last.number, static_cast<int>(at.last.members.size()), ""};
    if (Outranks(other, own)) {
      last_round_ = at.last;  // It has read a later round, whose members are queried next.
      last_over_ = {};
      return SearchResult::kWait;
    }
    // The lowest searching rank becomes the host. It may have begun to search, and to wait for a
    // still lower one, later than this node; but not for ever.
    const bool comes_first = last_round_->RankOf(member.id) < rank() || rank() < 0;
    const bool may_decide = age < 2 * loss_detection_time_ + 2 * kSearchTimeouts.connect;
    return comes_first && may_decide ? SearchResult::kWait : SearchResult::kNext;
  }
  if (at.state == JobLocation::State::kHere) {
    return JoinAt(member.store, answer, kMaxHops) ? SearchResult::kJoined : SearchResult::kNext;
  }
  const bool is_lost_store =
      at.address == current_.address && (at.instance.empty() || at.instance == current_.instance);
  if (!is_lost_store && JoinVia(at.address, kMaxHops)) return SearchResult::kJoined;
  // It has not noticed the loss yet, or is in a store that this node cannot reach.
  return may_be_undetected ? SearchResult::kWait : SearchResult::kNext;
}

// This node is the lowest rank of the last round that it can reach. Before it opens an instance in
// its own store it queries the higher ranks too: one of them may know where the job goes on.
bool RendezvousSession::BecomeHost() {
  std::vector<NodeIdentity> members = last_round_->members;
  members.erase(members.begin() + rank());
  std::vector<std::string> addresses;
  for (const NodeIdentity& member : members) addresses.push_back(member.store);
  bool is_alone = true;
  bool are_refused = true;
  const std::vector<Answer> answers = Query(addresses, kSearchTimeouts);
  for (size_t i = 0; i < answers.size(); ++i) {
    is_alone = is_alone && answers[i].store == nullptr;
    are_refused = are_refused && answers[i].is_refused;
    const SearchResult result = EvaluateAnswer(members[i], answers[i]);
    if (result != SearchResult::kNext) return result == SearchResult::kJoined;
  }
  if (cancelled_()) return false;
  if (search_->was_done && is_alone) {
    // A node whose hosts refuse connections has exited. One that does not answer may be behind a
    // partition and still run, so the end of the job needs more time then.
    if (are_refused || clock_.Now() - search_->began >= options_.rendezvous.read_timeout / 2) {
      CloseAlone();
      return true;
    }
    return false;
  }
  if (OwnStore() == nullptr) return false;
  if (current_.address == identity_.store) {
    // The store was only slow, and the others are still in it.
    const Answer own = QueryOne(identity_.store, kSearchTimeouts);
    if (own.store == nullptr) return false;
    if (own.location.has_value() && own.location->instance == current_.instance) {
      return JoinAt(identity_.store, own, kMaxHops);
    }
  }
  RendezvousStore target;
  target.address = identity_.store;
  target.instance = absl::StrCat(identity_.id, "-", ++instances_opened_);
  target.store = InstanceStore(own_store_, target.instance);
  JobLocation here;
  here.state = JobLocation::State::kHere;
  here.instance = target.instance;
  // The history before the location: a node that reads the location must find the last round.
  if (!WriteHistory(*target.store, *last_round_, EndOfLastRound()).ok()) return false;
  if (!PublishLocation(here)) return false;
  Join(std::move(target), rendezvous_->record());
  // Another node may have opened an instance since it answered.
  const std::vector<Answer> again = Query(addresses, kQuickTimeouts);
  for (size_t i = 0; i < again.size(); ++i) {
    if (Reconcile(addresses[i], again[i])) break;
  }
  return true;
}

// Joins the instance that the location in the store at `address` names, following redirects.
bool RendezvousSession::JoinAt(const std::string& address, const Answer& answer, int hops) {
  if (answer.store == nullptr || !answer.location.has_value() || hops == 0) return false;
  const JobLocation& location = *answer.location;
  if (location.state == JobLocation::State::kSearching) return false;
  if (location.state == JobLocation::State::kElsewhere) {
    return JoinVia(location.address, hops - 1);
  }
  RendezvousStore target;
  target.address = address;
  target.instance = location.instance;
  target.store = InstanceStore(answer.store, location.instance);
  const auto history = ReadHistory(*target.store);
  if (!history.ok()) return false;
  if (history->state == InstanceHistory::State::kMoved) {
    return JoinVia(history->moved_to, hops - 1);
  }
  // A partitioned part of the job may have ended by join_timeout while this part got further.
  const bool is_behind = last_round_.has_value() && history->last.number < last_round_->number;
  if (history->state == InstanceHistory::State::kClosed && is_behind) return false;
  NodeRecord record = rendezvous_->record();
  // A failure in a round that did not happen there must not cost a restart there.
  if (!last_round_.has_value() || !IsSame(*last_round_, history->last)) record.failure.reset();
  Join(std::move(target), std::move(record));
  return true;
}

bool RendezvousSession::JoinVia(const std::string& address, int hops) {
  return hops > 0 && JoinAt(address, QueryOne(address, kSearchTimeouts), hops);
}

void RendezvousSession::CloseAlone() {
  Announcement closed;
  closed.kind = Announcement::Kind::kClosed;
  closed.reason = "this node's workers have succeeded, and no other node is left";
  is_closed_ = true;
  has_ended_ = true;
  search_.reset();
  on_event_({Kind::kAnnouncement, std::move(closed), ""});
}

// Follows the last kMoved announcement. Retries every step until read_timeout; then the store
// counts as lost, and a search begins.
absl::Status RendezvousSession::FollowMove() {
  if (!moved_to_.has_value() || is_closed_) return absl::OkStatus();
  const std::string destination = *moved_to_;
  ReportRoundOver("the job goes on elsewhere");
  if (JoinVia(destination, kMaxHops)) return absl::OkStatus();
  // The target may be gone, and a new instance be open in this store.
  const Answer here = QueryOne(current_.address, kSearchTimeouts);
  if (here.location.has_value() && here.location->instance != current_.instance &&
      JoinAt(current_.address, here, kMaxHops)) {
    return absl::OkStatus();
  }
  const bool is_at_endpoint = current_.address == network_.endpoint();
  if (is_at_endpoint && clock_.Now() >= move_announced_at_ + loss_detection_time_ &&
      ReopenEndpoint()) {
    return absl::OkStatus();
  }
  if (clock_.Now() < move_announced_at_ + options_.rendezvous.read_timeout) return absl::OkStatus();
  moved_to_.reset();
  const absl::Status loss =
      NetworkError(absl::StrCat("the job goes on at ", destination, ", which cannot be reached"));
  // A node that has read no round knows no members to query.
  if (!last_round_.has_value()) return Annotate(loss, kLost);
  StartSearch(loss);
  return absl::OkStatus();
}

}  // namespace syncline::launch
