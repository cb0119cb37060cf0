// How a node finds the job again when the store is lost, or has moved.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "launch/rendezvous/session.h"

namespace syncline {
namespace {

using Kind = ParticipantNews::Kind;

constexpr absl::Duration kRetryInterval = absl::Milliseconds(100);
constexpr int kMaxHops = 4;  // From a store to the one where the job went on, and so on.
constexpr int kFirstAsked = 2;
constexpr char kLost[] = "the rendezvous is lost";

bool IsSame(const Round& a, const Round& b) {
  if (a.number != b.number || a.members.size() != b.members.size()) return false;
  for (const NodeIdentity& member : a.members) {
    if (b.RankOf(member.id) < 0) return false;
  }
  return true;
}

}  // namespace

void RendezvousSession::Lose(const absl::Status& loss) {
  Search search;
  search.loss = loss;
  search.began = clock_.Now();
  search.was_done = rendezvous_->record().state == NodeRecord::State::kDone;
  search_ = std::move(search);
  next_search_ = absl::InfinitePast();
  if (!network_.is_hosted_by_nodes() || !last_round_.has_value()) return;
  ReportOver(absl::StrCat("the node that held the rendezvous at ", place_.address, " is lost"));
  if (re_hosts_) return;  // The others may still be there, and so will this node.
  Position searching;
  searching.state = Position::State::kSearching;
  searching.last = *last_round_;
  Publish(searching);
}

absl::Status RendezvousSession::TakeSearchStep() {
  const bool has_members = network_.is_hosted_by_nodes() && last_round_.has_value();
  absl::StatusOr<bool> is_found = true;
  if (has_members) {
    is_found = SearchMembers();
  } else {
    is_found = ReturnToStore();
  }
  if (!is_found.ok() || *is_found) return is_found.status();
  next_search_ = clock_.Now() + kRetryInterval;
  const bool is_late = clock_.Now() - search_->began >= options_.rendezvous.read_timeout;
  if (!is_late && !cancelled_()) return absl::OkStatus();
  return Annotate(search_->loss, kLost);
}

// Nobody can take the store's place: it comes back, or not. It may come back without what it held,
// as etcd does after its lease has ended; then the nodes write again what they know.
absl::StatusOr<bool> RendezvousSession::ReturnToStore() {
  absl::StatusOr<std::vector<Announcement>> news = rendezvous_->Step();
  if (news.ok()) {
    search_.reset();
    SYNCLINE_RETURN_IF_ERROR(Report(*std::move(news)));
    return true;
  }
  search_->loss = news.status();
  const absl::Duration left = search_->began + options_.rendezvous.read_timeout - clock_.Now();
  auto place =
      OpenEndpoint(std::clamp(left, absl::Milliseconds(100), kSearchPatience.connect), cancelled_);
  if (!place.ok()) return false;
  const auto history = ReadHistory(*place->store);
  if (!history.ok()) return false;
  if (last_round_.has_value() && history->announcements == 0) {
    if (!WriteHistory(*place->store, *last_round_, EndOfLast()).ok()) return false;
    ReportOver("the store of the rendezvous has lost its contents");
  }
  Join(*std::move(place), rendezvous_->record());
  return true;
}

bool RendezvousSession::SearchMembers() {
  // Perhaps only the connection is lost.
  const Answer former = AskOne(place_.address, kSearchPatience);
  if (former.position.has_value() && former.position->state == Position::State::kHere &&
      former.position->instance == place_.instance && JoinAt(place_.address, former, kMaxHops)) {
    return true;
  }
  if (moved_to_.has_value() && JoinElsewhere(*moved_to_, kMaxHops)) return true;
  const int own = rank();
  bool must_wait = false;
  const int before = own >= 0 ? own : static_cast<int>(last_round_->members.size());
  if (AskBefore(before, &must_wait)) return true;
  if (must_wait || cancelled_()) return false;
  if (own >= 0) return BecomeHost();
  // All members are gone; others may have come to where the job began.
  return JoinElsewhere(network_.endpoint(), kMaxHops) ||
         (clock_.Now() - search_->began >= notice_patience_ && ReopenEndpoint());
}

// The endpoint says that the job went on elsewhere, and nobody is left there, or nobody serves it.
// The node that serves it opens a new instance for all who have come since.
bool RendezvousSession::ReopenEndpoint() {
  if (!ServesEndpoint()) return false;
  const Answer answer = AskOne(network_.endpoint(), kSearchPatience);
  if (answer.store == nullptr) return false;
  MeetingPlace place;
  place.address = network_.endpoint();
  place.instance = absl::StrCat(identity_.id, "-", ++openings_);
  place.store = InstanceStore(answer.store, place.instance);
  Position here;
  here.state = Position::State::kHere;
  here.instance = place.instance;
  if (last_round_.has_value() && !WriteHistory(*place.store, *last_round_, EndOfLast()).ok()) {
    return false;
  }
  const auto is_open = ReplacePosition(*answer.store, answer.position, here);
  if (!is_open.ok() || !*is_open) return false;
  if (moved_to_.has_value()) Remember(*moved_to_);
  Join(std::move(place), rendezvous_->record());
  return true;
}

// What an instance that takes the place of a lost one says of the end of the last round.
Announcement RendezvousSession::EndOfLast() const {
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

// Asks the members whose ranks are lower than `limit`, at first only a few: the first that lives
// knows, or will, where the job is.
bool RendezvousSession::AskBefore(int limit, bool* must_wait) {
  const std::vector<NodeIdentity> members = last_round_->members;
  for (int begin = 0, count = kFirstAsked; begin < limit; begin += count, count *= 2) {
    std::vector<std::string> addresses;
    for (int rank = begin; rank < std::min(begin + count, limit); ++rank) {
      addresses.push_back(members[rank].store);
    }
    const std::vector<Answer> answers = Ask(addresses, kSearchPatience);
    for (size_t i = 0; i < answers.size(); ++i) {
      const Verdict verdict = Consider(members[begin + i], answers[i]);
      if (verdict == Verdict::kJoined) return true;
      *must_wait = verdict == Verdict::kWait;
      if (*must_wait) return false;
    }
  }
  return false;
}

// What the answer of a member of the last round means for this node's search.
RendezvousSession::Verdict RendezvousSession::Consider(const NodeIdentity& member,
                                                       const Answer& answer) {
  if (answer.store == nullptr) return Verdict::kNext;
  const absl::Duration age = clock_.Now() - search_->began;
  const bool may_notice = age < notice_patience_;
  Position at;  // The endpoint, if the node has never moved.
  at.state = Position::State::kElsewhere;
  at.address = network_.endpoint();
  if (answer.position.has_value()) at = *answer.position;
  if (at.state == Position::State::kSearching) {
    const History own = {last_round_->number, static_cast<int>(last_round_->members.size()), ""};
    const History other = {at.last.number, static_cast<int>(at.last.members.size()), ""};
    if (Outranks(other, own)) {
      last_round_ = at.last;  // It has heard more. Now its members are asked.
      last_over_ = {};
      return Verdict::kWait;
    }
    // Nodes of lower ranks come first. They may have begun to search, and to wait, later.
    const bool comes_first = last_round_->RankOf(member.id) < rank() || rank() < 0;
    const bool may_decide = age < 2 * notice_patience_ + 2 * kSearchPatience.connect;
    return comes_first && may_decide ? Verdict::kWait : Verdict::kNext;
  }
  if (at.state == Position::State::kHere) {
    return JoinAt(member.store, answer, kMaxHops) ? Verdict::kJoined : Verdict::kNext;
  }
  const bool is_lost_place =
      at.address == place_.address && (at.instance.empty() || at.instance == place_.instance);
  if (!is_lost_place && JoinElsewhere(at.address, kMaxHops)) return Verdict::kJoined;
  // It has not noticed the loss, or is where this node cannot go.
  return may_notice ? Verdict::kWait : Verdict::kNext;
}

// This node is the first member of the last round that it can reach.
bool RendezvousSession::BecomeHost() {
  std::vector<NodeIdentity> members = last_round_->members;
  members.erase(members.begin() + rank());
  std::vector<std::string> addresses;
  for (const NodeIdentity& member : members) addresses.push_back(member.store);
  bool is_alone = true;
  bool are_gone = true;
  const std::vector<Answer> answers = Ask(addresses, kSearchPatience);
  for (size_t i = 0; i < answers.size(); ++i) {
    is_alone = is_alone && answers[i].store == nullptr;
    are_gone = are_gone && answers[i].is_gone;
    const Verdict verdict = Consider(members[i], answers[i]);
    if (verdict != Verdict::kNext) return verdict == Verdict::kJoined;
  }
  if (cancelled_()) return false;
  if (search_->was_done && is_alone) {
    // Perhaps the others are only cut off, and later ranks still run.
    if (are_gone || clock_.Now() - search_->began >= options_.rendezvous.read_timeout / 2) {
      CloseAlone();
      return true;
    }
    return false;
  }
  if (OwnStore() == nullptr) return false;
  if (place_.address == identity_.store) {
    // It was only slow. The others are there.
    const Answer own = AskOne(identity_.store, kSearchPatience);
    if (own.store == nullptr) return false;
    if (own.position.has_value() && own.position->instance == place_.instance) {
      return JoinAt(identity_.store, own, kMaxHops);
    }
  }
  MeetingPlace place;
  place.address = identity_.store;
  place.instance = absl::StrCat(identity_.id, "-", ++openings_);
  place.store = InstanceStore(own_store_, place.instance);
  Position here;
  here.state = Position::State::kHere;
  here.instance = place.instance;
  if (!WriteHistory(*place.store, *last_round_, EndOfLast()).ok()) return false;
  if (!Publish(here)) return false;
  Join(std::move(place), rendezvous_->record());
  // Others may have done the same since they answered.
  const std::vector<Answer> again = Ask(addresses, kProbePatience);
  for (size_t i = 0; i < again.size(); ++i) {
    if (Reconcile(addresses[i], again[i])) break;
  }
  return true;
}

// Joins where the store at `address` says that the job is, if that is so.
bool RendezvousSession::JoinAt(const std::string& address, const Answer& answer, int hops) {
  if (answer.store == nullptr || !answer.position.has_value() || hops == 0) return false;
  const Position& position = *answer.position;
  if (position.state == Position::State::kSearching) return false;
  if (position.state == Position::State::kElsewhere) {
    return JoinElsewhere(position.address, hops - 1);
  }
  MeetingPlace place;
  place.address = address;
  place.instance = position.instance;
  place.store = InstanceStore(answer.store, position.instance);
  const auto history = ReadHistory(*place.store);
  if (!history.ok()) return false;
  if (history->state == InstanceHistory::State::kMoved) {
    return JoinElsewhere(history->moved_to, hops - 1);
  }
  // A part of the job that was cut off may have ended; this one has not, if it came further.
  const bool is_behind = last_round_.has_value() && history->last.number < last_round_->number;
  if (history->state == InstanceHistory::State::kClosed && is_behind) return false;
  NodeRecord record = rendezvous_->record();
  // What failed in a round that has not happened there is no failure there.
  if (!last_round_.has_value() || !IsSame(*last_round_, history->last)) record.failure.reset();
  Join(std::move(place), std::move(record));
  return true;
}

bool RendezvousSession::JoinElsewhere(const std::string& address, int hops) {
  return hops > 0 && JoinAt(address, AskOne(address, kSearchPatience), hops);
}

void RendezvousSession::CloseAlone() {
  Announcement closed;
  closed.kind = Announcement::Kind::kClosed;
  closed.reason = "this node's workers have succeeded, and no other node is left";
  is_closed_ = true;
  has_ended_ = true;
  search_.reset();
  tell_({Kind::kAnnouncement, std::move(closed), ""});
}

// Goes where the job is said to go on. The place that was announced last counts: one before may be
// lost by now.
absl::Status RendezvousSession::FollowMove() {
  if (!moved_to_.has_value() || is_closed_) return absl::OkStatus();
  const std::string target = *moved_to_;
  ReportOver("the job goes on elsewhere");
  if (JoinElsewhere(target, kMaxHops)) return absl::OkStatus();
  // Nobody may be left there, and this store be in use again.
  const Answer here = AskOne(place_.address, kSearchPatience);
  if (here.position.has_value() && here.position->instance != place_.instance &&
      JoinAt(place_.address, here, kMaxHops)) {
    return absl::OkStatus();
  }
  const bool is_at_endpoint = place_.address == network_.endpoint();
  if (is_at_endpoint && clock_.Now() >= moved_since_ + notice_patience_ && ReopenEndpoint()) {
    return absl::OkStatus();
  }
  if (clock_.Now() < moved_since_ + options_.rendezvous.read_timeout) return absl::OkStatus();
  moved_to_.reset();
  const absl::Status loss =
      NetworkError(absl::StrCat("the job goes on at ", target, ", which cannot be reached"));
  // A node that has read of no round knows nobody else to ask.
  if (!last_round_.has_value()) return Annotate(loss, kLost);
  Lose(loss);
  return absl::OkStatus();
}

}  // namespace syncline
