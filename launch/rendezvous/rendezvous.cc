#include "launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launch/rendezvous/try_get.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using State = NodeRecord::State;

constexpr absl::string_view kNodes = "node/";
constexpr absl::string_view kHeartbeats = "beat/";
constexpr absl::string_view kStatuses = "status/";
constexpr absl::string_view kAnnouncements = "notice/";
constexpr absl::string_view kLeader = "leader";
constexpr absl::string_view kJoinCounter = "ticket";
constexpr absl::string_view kChangeCounter = "bell";

std::string AnnouncementKey(int64_t number) { return absl::StrCat(kAnnouncements, number); }

}  // namespace

Rendezvous::Rendezvous(std::shared_ptr<Store> store, NodeRecord self, const Options& options,
                       const Clock& clock)
    : store_(std::move(store)),
      options_(options),
      clock_(clock),
      self_(std::move(self)),
      policy_(options.policy) {}

void Rendezvous::Change(State state) {
  self_.state = state;
  changed_ = true;
  next_ = absl::InfinitePast();
}

void Rendezvous::Wait(std::optional<FailureNote> failure) {
  self_.failure = std::move(failure);
  Change(State::kWaiting);
}

void Rendezvous::Run(const Round& round) {
  self_.round = round.number;
  self_.restarts = round.restarts;
  self_.rank = round.RankOf(self_.identity.id);
  self_.failure.reset();
  Change(State::kRunning);
}

void Rendezvous::Fail(FailureNote failure) {
  self_.failure = std::move(failure);
  Change(State::kFailed);
}

void Rendezvous::Finish() { Change(State::kDone); }

void Rendezvous::Leave(std::string reason) {
  self_.reason = std::move(reason);
  Change(State::kLeft);
}

void Rendezvous::OfferPort(int master_port) {
  self_.identity.master_port = master_port;
  changed_ = true;
}

void Rendezvous::SetStatus(std::string json) { status_ = std::move(json); }

std::string Rendezvous::NextAnnouncementKey() const { return AnnouncementKey(announced_ + 1); }

absl::StatusOr<std::vector<Announcement>> Rendezvous::Step() {
  const absl::Time now = clock_.Now();
  DiscountPause(now);
  if (!registered_) SYNCLINE_RETURN_IF_ERROR(Register());
  if (now >= next_heartbeat_) SYNCLINE_RETURN_IF_ERROR(CheckLeader(now));
  SYNCLINE_RETURN_IF_ERROR(PublishSelf(now));
  SYNCLINE_RETURN_IF_ERROR(ReadAnnouncements(now));
  if (is_leader_ && self_.state == State::kLeft) {
    SYNCLINE_RETURN_IF_ERROR(TransferLeadership());
  } else if (is_leader_) {
    SYNCLINE_RETURN_IF_ERROR(RunAsLeader(now));
  }
  Schedule(now);
  last_step_ = now;
  return std::exchange(unreturned_, {});
}

// After this node was stopped (SIGSTOP), or could not reach the store, all others seem silent,
// because it did not look. Shifts their last heartbeats by the gap, so that they are not declared
// lost. The upper bound excludes the first step, whose gap is infinite.
void Rendezvous::DiscountPause(absl::Time now) {
  const absl::Duration gap = now - std::exchange(last_step_, std::max(last_step_, now));
  if (gap < 2 * options_.keep_alive_interval || gap > absl::Hours(1000)) return;
  leader_heard_ += gap;
  for (auto& [id, view] : nodes_) view.heard += gap;
}

absl::Status Rendezvous::Register() {
  if (self_.join_order == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(self_.join_order, store_->Add(kJoinCounter, 1));
  }
  // In one call, so that a leader that sees the record can also read the heartbeat.
  SYNCLINE_RETURN_IF_ERROR(store_->MultiSet(
      {absl::StrCat(kHeartbeats, self_.identity.id), absl::StrCat(kNodes, self_.identity.id)},
      {absl::StrCat(heartbeats_), Serialize(self_)}));
  registered_ = true;
  return absl::OkStatus();
}

// Three keys at most: the record when it changed, the heartbeat at each interval, and with it the
// status when that changed.
absl::Status Rendezvous::PublishSelf(absl::Time now) {
  if (changed_) {
    // The record before the counter: a leader that sees the new count must find the new record.
    SYNCLINE_RETURN_IF_ERROR(store_->MultiSet(
        {absl::StrCat(kNodes, self_.identity.id), absl::StrCat(kHeartbeats, self_.identity.id)},
        {Serialize(self_), absl::StrCat(++heartbeats_)}));
    SYNCLINE_RETURN_IF_ERROR(store_->Add(kChangeCounter, 1).status());
    changed_ = false;
  }
  if (now < next_heartbeat_) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(
      store_->Set(absl::StrCat(kHeartbeats, self_.identity.id), absl::StrCat(++heartbeats_)));
  if (status_ != written_status_) {
    SYNCLINE_RETURN_IF_ERROR(store_->Set(absl::StrCat(kStatuses, self_.identity.id), status_));
    written_status_ = status_;
  }
  next_heartbeat_ = now + options_.keep_alive_interval;
  return absl::OkStatus();
}

absl::Status Rendezvous::ReadAnnouncements(absl::Time now) {
  for (;;) {
    const std::string key = NextAnnouncementKey();
    SYNCLINE_ASSIGN_OR_RETURN(const auto found, TryGet(*store_, {key}));
    if (!found.has_value()) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(Announcement announcement, ParseAnnouncement(found->front()));
    ++announced_;
    policy_.OnAnnouncement(announcement, now);
    unreturned_.push_back(std::move(announcement));
  }
}

absl::Status Rendezvous::CheckLeader(absl::Time now) {
  // Repairs this node's record. A leader has removed it if this node was silent for long, and an
  // older version may have been delivered late by a connection that was given up. No record is
  // equal to "{}", so this call never writes: it reads the key, present or not, in one round trip.
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto record,
      store_->CompareSet(absl::StrCat(kNodes, self_.identity.id), "{}", Serialize(self_)));
  if (record.value != Serialize(self_)) changed_ = true;
  // Becomes the leader if there is none. Otherwise this reads who is.
  SYNCLINE_ASSIGN_OR_RETURN(const auto current, store_->CompareSet(kLeader, "", self_.identity.id));
  if (current.value == self_.identity.id) {
    if (!is_leader_) BecomeLeader("", now);
    return absl::OkStatus();
  }
  is_leader_ = false;  // Another node took over while this one was silent.
  SYNCLINE_ASSIGN_OR_RETURN(const auto heartbeat,
                            TryGet(*store_, {absl::StrCat(kHeartbeats, current.value)}));
  const std::string heard = heartbeat.has_value() ? heartbeat->front() : "";
  if (leader_ != current.value || leader_heartbeat_ != heard) {
    leader_ = current.value;
    leader_heartbeat_ = heard;
    leader_heard_ = now;
  }
  // A leader that is lost while a round runs stops nobody's workers, so it gets more time.
  const absl::Duration timeout = self_.state == State::kRunning || self_.state == State::kDone
                                     ? options_.policy.lost_after
                                     : options_.policy.silent_after;
  if (self_.state == State::kLeft || now - leader_heard_ < timeout) return absl::OkStatus();
  // Of several nodes that notice at once, compare-and-set lets one replace the silent leader.
  SYNCLINE_ASSIGN_OR_RETURN(const auto taken,
                            store_->CompareSet(kLeader, leader_, self_.identity.id));
  if (taken.swapped) BecomeLeader(leader_, now);
  return absl::OkStatus();
}

// A new leader knows nothing of the nodes but what the next scan reads. The policy has all
// announcements already, and needs no more.
void Rendezvous::BecomeLeader(const std::string& silent_leader, absl::Time now) {
  is_leader_ = true;
  predecessor_ = silent_leader;
  leader_ = self_.identity.id;
  nodes_.clear();
  seen_heartbeats_.clear();
  change_count_ = -1;
  next_heartbeat_scan_ = now;
}

// Before this node leaves: the others would need silent_after to notice that the leader is gone.
absl::Status Rendezvous::TransferLeadership() {
  is_leader_ = false;
  for (const auto& [id, view] : nodes_) {
    if (id == self_.identity.id || view.record.state == State::kLeft) continue;
    if (clock_.Now() - view.heard >= options_.policy.silent_after) continue;
    return store_->CompareSet(kLeader, self_.identity.id, id).status();
  }
  return store_->Delete(kLeader).status();
}

absl::Status Rendezvous::RunAsLeader(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_complete, Scan(now));
  if (!is_complete) return absl::OkStatus();
  while (std::optional<Announcement> decision = policy_.Decide(nodes_, now)) {
    if (!MayAnnounce(*decision)) break;
    SYNCLINE_RETURN_IF_ERROR(Announce(*decision));
    // Reads the log instead of trusting its own write: another leader's entry may stand there. If
    // nothing can be read yet, the next step goes on from here.
    const size_t before = unreturned_.size();
    SYNCLINE_RETURN_IF_ERROR(ReadAnnouncements(now));
    if (unreturned_.size() == before) break;
  }
  for (const std::string& id : policy_.RemovableNodes(nodes_, now)) {
    SYNCLINE_RETURN_IF_ERROR(RemoveNode(id));
  }
  return absl::OkStatus();
}

bool Rendezvous::MayAnnounce(const Announcement& decision) const {
  if (decision.kind != Announcement::Kind::kRound) return true;
  if (options_.may_announce_round == nullptr) return true;
  std::vector<NodeIdentity> left_out;
  if (const std::optional<Round>& last = policy_.last_round(); last.has_value()) {
    for (const NodeIdentity& member : last->members) {
      if (decision.round.RankOf(member.id) < 0) left_out.push_back(member);
    }
  }
  return options_.may_announce_round(left_out);
}

absl::Status Rendezvous::Announce(const Announcement& announcement) {
  // Expects an absent key. If another leader has written announcement n first, that one stands and
  // this decision is dropped; ReadAnnouncements then applies the other one.
  return store_->CompareSet(NextAnnouncementKey(), "", Serialize(announcement)).status();
}

absl::Status Rendezvous::RemoveNode(const std::string& id) {
  nodes_.erase(id);
  seen_heartbeats_.erase(id);
  for (const absl::string_view kind : {kNodes, kHeartbeats, kStatuses}) {
    SYNCLINE_RETURN_IF_ERROR(store_->Delete(absl::StrCat(kind, id)).status());
  }
  return absl::OkStatus();
}

// Records change rarely, so they are read only when the counter says so; one small key is polled
// instead of all nodes.
absl::StatusOr<bool> Rendezvous::Scan(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, TryGet(*store_, {std::string(kChangeCounter)}));
  int64_t change_count = 0;
  if (found.has_value() && !absl::SimpleAtoi(found->front(), &change_count)) {
    return StoreError(absl::StrCat("the rendezvous' bell holds '", found->front(), "'"));
  }
  if (change_count != change_count_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_complete, ScanRecords(now));
    if (!is_complete) return false;  // A record was removed meanwhile; scans again next time.
  }
  // Remembers the count that was read before the records: a change during the scan makes the next
  // scan read them again.
  change_count_ = change_count;
  if (now >= next_heartbeat_scan_) SYNCLINE_RETURN_IF_ERROR(ScanHeartbeats(now));
  return true;
}

absl::StatusOr<bool> Rendezvous::ScanRecords(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->Keys(kNodes));
  SYNCLINE_ASSIGN_OR_RETURN(const auto values, TryGet(*store_, keys));
  if (!values.has_value()) return false;
  std::set<std::string> present;
  for (size_t i = 0; i < keys.size(); ++i) {
    SYNCLINE_ASSIGN_OR_RETURN(NodeRecord record, ParseNodeRecord((*values)[i]));
    const std::string id = record.identity.id;
    present.insert(id);
    // The silence of the leader that was replaced counts on; all others were heard just now.
    const auto [found, is_new] =
        nodes_.try_emplace(id, NodeView{record, id == predecessor_ ? leader_heard_ : now});
    // A changed record is a heartbeat.
    if (!is_new && Serialize(found->second.record) != (*values)[i]) {
      found->second = NodeView{std::move(record), now};
    }
  }
  predecessor_.clear();  // If it comes back, it is a node like any other.
  for (auto node = nodes_.begin(); node != nodes_.end();) {
    node = present.count(node->first) != 0 ? std::next(node) : nodes_.erase(node);
  }
  return true;
}

absl::Status Rendezvous::ScanHeartbeats(absl::Time now) {
  next_heartbeat_scan_ = now + options_.keep_alive_interval / 2;
  std::vector<std::string> keys;
  for (const auto& [id, view] : nodes_) keys.push_back(absl::StrCat(kHeartbeats, id));
  if (keys.empty()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const auto values, TryGet(*store_, keys));
  if (!values.has_value()) {
    change_count_ = -1;  // A node has left; the next scan reads the records again.
    return absl::OkStatus();
  }
  size_t i = 0;
  for (auto& [id, view] : nodes_) {
    const std::string& heartbeat = (*values)[i++];
    const auto [seen, is_new] = seen_heartbeats_.try_emplace(id, heartbeat);
    // Only a counter that differs from the one seen before proves that the node lives now: the
    // value may have been written long ago. No clocks are compared.
    if (is_new || seen->second == heartbeat) continue;
    seen->second = heartbeat;
    view.heard = now;
  }
  return absl::OkStatus();
}

// The leader polls, because a store has no notifications of changes; all others only send
// heartbeats and are woken by the watch for the next announcement.
void Rendezvous::Schedule(absl::Time now) {
  next_ = next_heartbeat_;
  if (!is_leader_) return;
  const bool running = self_.state == State::kRunning || self_.state == State::kDone;
  next_ = std::min({next_, policy_.next(), next_heartbeat_scan_,
                    now + (running ? options_.running_poll : options_.forming_poll)});
}

std::string Rendezvous::Describe() const {
  if (is_leader_) return policy_.Describe(nodes_, clock_.Now());
  return absl::StrCat("waits for the decision of node ", leader_);
}

// The ids of all nodes and the record of one: all records may be megabytes in a large job, and
// every node that waits calls this.
absl::StatusOr<std::string> Rendezvous::DescribeWaiting() const {
  const absl::Time now = clock_.Now();
  if (is_leader_) return policy_.DescribeWaiting(nodes_, now);
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->Keys(kNodes));
  std::set<std::string> registered;
  for (const absl::string_view key : keys) registered.emplace(absl::StripPrefix(key, kNodes));
  std::string text = policy_.DescribeWaiting(registered, now);
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, TryGet(*store_, {absl::StrCat(kNodes, leader_)}));
  if (!found.has_value()) return text;
  SYNCLINE_ASSIGN_OR_RETURN(const NodeRecord leader, ParseNodeRecord(found->front()));
  return absl::StrCat(text, "; ", leader.identity.ToString(), " decides");
}

absl::Status Rendezvous::Deregister(const std::function<bool()>& cancelled) {
  is_leader_ = false;
  SYNCLINE_RETURN_IF_ERROR(RemoveNode(self_.identity.id));
  SYNCLINE_ASSIGN_OR_RETURN(const bool deserted, AllNodesLeft());
  if (!deserted) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> rest, store_->Keys(""));
  for (const std::string& key : rest) {
    if (cancelled()) break;
    SYNCLINE_RETURN_IF_ERROR(store_->Delete(key).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Rendezvous::AllNodesLeft() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, store_->Keys(kNodes));
  return nodes.empty();
}

}  // namespace syncline::launch
