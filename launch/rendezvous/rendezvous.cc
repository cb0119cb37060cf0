#include "launch/rendezvous/rendezvous.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "launch/rendezvous/peek.h"

namespace syncline {
namespace {

using State = NodeRecord::State;

constexpr absl::string_view kNodes = "node/";
constexpr absl::string_view kBeats = "beat/";
constexpr absl::string_view kStatuses = "status/";
constexpr absl::string_view kNotices = "notice/";
constexpr absl::string_view kLeader = "leader";
constexpr absl::string_view kTicket = "ticket";
constexpr absl::string_view kBell = "bell";

std::string NoticeKey(int64_t number) { return absl::StrCat(kNotices, number); }

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

std::string Rendezvous::AwaitedKey() const { return NoticeKey(announced_ + 1); }

absl::StatusOr<std::vector<Announcement>> Rendezvous::Step() {
  const absl::Time now = clock_.Now();
  Forgive(now);
  if (!registered_) SYNCLINE_RETURN_IF_ERROR(Register());
  if (now >= next_beat_) SYNCLINE_RETURN_IF_ERROR(FollowLeader(now));
  SYNCLINE_RETURN_IF_ERROR(Speak(now));
  SYNCLINE_RETURN_IF_ERROR(ReadAnnouncements(now));
  if (leads_ && self_.state == State::kLeft) {
    SYNCLINE_RETURN_IF_ERROR(HandOver());
  } else if (leads_) {
    SYNCLINE_RETURN_IF_ERROR(Lead(now));
  }
  Schedule(now);
  last_step_ = now;
  return std::exchange(news_, {});
}

// A node that was stopped, or whose store was away, heard nobody meanwhile: that is not their
// silence.
void Rendezvous::Forgive(absl::Time now) {
  const absl::Duration gap = now - std::exchange(last_step_, std::max(last_step_, now));
  if (gap < 2 * options_.keep_alive_interval || gap > absl::Hours(1000)) return;
  leader_heard_ += gap;
  for (auto& [id, view] : nodes_) view.heard += gap;
}

absl::Status Rendezvous::Register() {
  if (self_.ticket == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(self_.ticket, store_->Add(kTicket, 1));
  }
  // Together, so that who sees the record can ask for the beat.
  SYNCLINE_RETURN_IF_ERROR(store_->MultiSet(
      {absl::StrCat(kBeats, self_.identity.id), absl::StrCat(kNodes, self_.identity.id)},
      {absl::StrCat(beats_), Serialize(self_)}));
  registered_ = true;
  return absl::OkStatus();
}

absl::Status Rendezvous::Speak(absl::Time now) {
  if (changed_) {
    SYNCLINE_RETURN_IF_ERROR(store_->MultiSet(
        {absl::StrCat(kNodes, self_.identity.id), absl::StrCat(kBeats, self_.identity.id)},
        {Serialize(self_), absl::StrCat(++beats_)}));
    SYNCLINE_RETURN_IF_ERROR(store_->Add(kBell, 1).status());
    changed_ = false;
  }
  if (now < next_beat_) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(
      store_->Set(absl::StrCat(kBeats, self_.identity.id), absl::StrCat(++beats_)));
  if (status_ != written_status_) {
    SYNCLINE_RETURN_IF_ERROR(store_->Set(absl::StrCat(kStatuses, self_.identity.id), status_));
    written_status_ = status_;
  }
  next_beat_ = now + options_.keep_alive_interval;
  return absl::OkStatus();
}

absl::Status Rendezvous::ReadAnnouncements(absl::Time now) {
  for (;;) {
    const std::string key = AwaitedKey();
    SYNCLINE_ASSIGN_OR_RETURN(const auto found, Peek(*store_, {key}));
    if (!found.has_value()) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(Announcement announcement, ParseAnnouncement(found->front()));
    ++announced_;
    policy_.OnAnnouncement(announcement, now);
    news_.push_back(std::move(announcement));
  }
}

absl::Status Rendezvous::FollowLeader(absl::Time now) {
  // The record of a node that was silent for long has been removed; an older one may have been
  // delivered late by a connection that was given up. No record equals an empty object.
  SYNCLINE_ASSIGN_OR_RETURN(
      const auto record,
      store_->CompareSet(absl::StrCat(kNodes, self_.identity.id), "{}", Serialize(self_)));
  if (record.value != Serialize(self_)) changed_ = true;
  // Takes the lead if nobody has it.
  SYNCLINE_ASSIGN_OR_RETURN(const auto current, store_->CompareSet(kLeader, "", self_.identity.id));
  if (current.value == self_.identity.id) {
    if (!leads_) TakeLead("", now);
    return absl::OkStatus();
  }
  leads_ = false;
  SYNCLINE_ASSIGN_OR_RETURN(const auto beat, Peek(*store_, {absl::StrCat(kBeats, current.value)}));
  const std::string heard = beat.has_value() ? beat->front() : "";
  if (leader_ != current.value || leader_beat_ != heard) {
    leader_ = current.value;
    leader_beat_ = heard;
    leader_heard_ = now;
  }
  const absl::Duration patience = self_.state == State::kRunning || self_.state == State::kDone
                                      ? options_.policy.lost_after
                                      : options_.policy.silent_after;
  if (self_.state == State::kLeft || now - leader_heard_ < patience) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const auto taken,
                            store_->CompareSet(kLeader, leader_, self_.identity.id));
  if (taken.swapped) TakeLead(leader_, now);
  return absl::OkStatus();
}

void Rendezvous::TakeLead(const std::string& silent_leader, absl::Time now) {
  leads_ = true;
  predecessor_ = silent_leader;
  leader_ = self_.identity.id;
  nodes_.clear();
  beats_seen_.clear();
  bell_ = -1;
  next_beat_scan_ = now;
}

absl::Status Rendezvous::HandOver() {
  leads_ = false;
  for (const auto& [id, view] : nodes_) {
    if (id == self_.identity.id || view.record.state == State::kLeft) continue;
    if (clock_.Now() - view.heard >= options_.policy.silent_after) continue;
    return store_->CompareSet(kLeader, self_.identity.id, id).status();
  }
  return store_->Delete(kLeader).status();
}

absl::Status Rendezvous::Lead(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_complete, Scan(now));
  if (!is_complete) return absl::OkStatus();
  while (std::optional<Announcement> decision = policy_.Decide(nodes_, now)) {
    if (!MayAnnounce(*decision)) break;
    SYNCLINE_RETURN_IF_ERROR(Announce(*decision));
    const size_t before = news_.size();
    SYNCLINE_RETURN_IF_ERROR(ReadAnnouncements(now));
    if (news_.size() == before) break;
  }
  for (const std::string& id : policy_.Departed(nodes_, now)) {
    SYNCLINE_RETURN_IF_ERROR(Forget(id));
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
  // If another leader was first, its announcement holds.
  return store_->CompareSet(AwaitedKey(), "", Serialize(announcement)).status();
}

absl::Status Rendezvous::Forget(const std::string& id) {
  nodes_.erase(id);
  beats_seen_.erase(id);
  for (const absl::string_view kind : {kNodes, kBeats, kStatuses}) {
    SYNCLINE_RETURN_IF_ERROR(store_->Delete(absl::StrCat(kind, id)).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Rendezvous::Scan(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto found, Peek(*store_, {std::string(kBell)}));
  int64_t bell = 0;
  if (found.has_value() && !absl::SimpleAtoi(found->front(), &bell)) {
    return StoreError(absl::StrCat("the rendezvous' bell holds '", found->front(), "'"));
  }
  if (bell != bell_) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_complete, ScanRecords(now));
    if (!is_complete) return false;  // The next scan may be.
  }
  bell_ = bell;
  if (now >= next_beat_scan_) SYNCLINE_RETURN_IF_ERROR(ScanBeats(now));
  return true;
}

absl::StatusOr<bool> Rendezvous::ScanRecords(absl::Time now) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, store_->Keys(kNodes));
  SYNCLINE_ASSIGN_OR_RETURN(const auto values, Peek(*store_, keys));
  if (!values.has_value()) return false;
  std::set<std::string> present;
  for (size_t i = 0; i < keys.size(); ++i) {
    SYNCLINE_ASSIGN_OR_RETURN(NodeRecord record, ParseNodeRecord((*values)[i]));
    const std::string id = record.identity.id;
    present.insert(id);
    const auto [found, is_new] =
        nodes_.try_emplace(id, NodeView{record, id == predecessor_ ? leader_heard_ : now});
    // Who changes its record lives.
    if (!is_new && Serialize(found->second.record) != (*values)[i]) {
      found->second = NodeView{std::move(record), now};
    }
  }
  predecessor_.clear();  // If it comes back, it is like any other.
  for (auto node = nodes_.begin(); node != nodes_.end();) {
    node = present.count(node->first) != 0 ? std::next(node) : nodes_.erase(node);
  }
  return true;
}

absl::Status Rendezvous::ScanBeats(absl::Time now) {
  next_beat_scan_ = now + options_.keep_alive_interval / 2;
  std::vector<std::string> keys;
  for (const auto& [id, view] : nodes_) keys.push_back(absl::StrCat(kBeats, id));
  if (keys.empty()) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const auto values, Peek(*store_, keys));
  if (!values.has_value()) {
    bell_ = -1;  // A node has gone, which the records will show.
    return absl::OkStatus();
  }
  size_t i = 0;
  for (auto& [id, view] : nodes_) {
    const std::string& beat = (*values)[i++];
    const auto [seen, is_new] = beats_seen_.try_emplace(id, beat);
    if (is_new || seen->second == beat) continue;
    seen->second = beat;
    view.heard = now;
  }
  return absl::OkStatus();
}

void Rendezvous::Schedule(absl::Time now) {
  next_ = next_beat_;
  if (!leads_) return;
  const bool running = self_.state == State::kRunning || self_.state == State::kDone;
  next_ = std::min({next_, policy_.next(), next_beat_scan_,
                    now + (running ? options_.running_poll : options_.forming_poll)});
}

std::string Rendezvous::Describe() const {
  if (leads_) return policy_.Describe(nodes_, clock_.Now());
  return absl::StrCat("waits for the decision of node ", leader_);
}

absl::Status Rendezvous::SayGoodbye(const std::function<bool()>& cancelled) {
  leads_ = false;
  SYNCLINE_RETURN_IF_ERROR(Forget(self_.identity.id));
  SYNCLINE_ASSIGN_OR_RETURN(const bool deserted, IsDeserted());
  if (!deserted) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> rest, store_->Keys(""));
  for (const std::string& key : rest) {
    if (cancelled()) break;
    SYNCLINE_RETURN_IF_ERROR(store_->Delete(key).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Rendezvous::IsDeserted() {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> nodes, store_->Keys(kNodes));
  return nodes.empty();
}

}  // namespace syncline
