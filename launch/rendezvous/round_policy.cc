#include "launch/rendezvous/round_policy.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace syncline::launch {
namespace {

using State = NodeRecord::State;

Announcement Over(const Round& round, Announcement::Cause cause, std::string reason) {
  Announcement over;
  over.kind = Announcement::Kind::kOver;
  over.over = round.number;
  over.cause = cause;
  over.reason = std::move(reason);
  return over;
}

Announcement Closed(int exit_code, std::string reason) {
  Announcement closed;
  closed.kind = Announcement::Kind::kClosed;
  closed.exit_code = exit_code;
  closed.reason = std::move(reason);
  return closed;
}

// The likeliest root cause among the failures of the round. A failure that no restart can help
// comes first.
const NodeRecord* RootCause(const NodeViews& nodes, int round) {
  const NodeRecord* root = nullptr;
  for (const auto& [id, view] : nodes) {
    const NodeRecord& record = view.record;
    if (record.round != round || !record.failure.has_value()) continue;
    const bool is_final = record.failure->retry == FailureNote::Retry::kNever;
    if (is_final) return &record;
    if (root == nullptr || *record.failure < *root->failure) root = &record;
  }
  return root;
}

// Whether a member of `round` waits for the next one and runs no workers any more.
bool HasStopped(const NodeRecord& member, const Round& round) {
  return member.state == State::kWaiting && member.round >= round.number;
}

std::string Name(const NodeIdentity& node) {
  std::string name = node.ToString();
  if (node.wanted_rank >= 0) absl::StrAppend(&name, " with node rank ", node.wanted_rank);
  return name;
}

std::string Names(const std::vector<const NodeRecord*>& records) {
  return absl::StrJoin(records, ", ", [](std::string* out, const NodeRecord* record) {
    absl::StrAppend(out, Name(record->identity));
  });
}

// Rounds count from 0 in messages.
std::string Name(const Round& round) { return absl::StrCat("round ", round.number - 1); }

}  // namespace

RoundPolicy::RoundPolicy(const RoundPolicyOptions& options) : options_(options) {}

void RoundPolicy::OnAnnouncement(const Announcement& announcement, absl::Time now) {
  switch (announcement.kind) {
    case Announcement::Kind::kRound:
      phase_ = Phase::kRunning;
      last_ = announcement.round;
      round_began_ = now;
      newcomer_since_ = absl::InfiniteFuture();
      break;
    case Announcement::Kind::kOver:
      phase_ = Phase::kForming;
      forming_since_ = now;
      over_cause_ = announcement.cause;
      over_reason_ = announcement.reason;
      // Only failures soon after the start of a round count towards the backoff.
      if (announcement.cause != Announcement::Cause::kFailure) break;
      quick_failures_ = now - round_began_ < options_.backoff_reset ? quick_failures_ + 1 : 1;
      break;
    case Announcement::Kind::kClosed:
    case Announcement::Kind::kMoved:
      phase_ = Phase::kClosed;
      break;
  }
}

std::optional<Announcement> RoundPolicy::Decide(const NodeViews& nodes, absl::Time now) {
  now_ = now;
  for (const auto& [id, view] : nodes) seen_.insert(id);
  next_ = absl::InfiniteFuture();
  switch (phase_) {
    case Phase::kRunning:
      return DecideRunning(nodes, now);
    case Phase::kForming:
      return DecideForming(nodes, now);
    case Phase::kClosed:
      break;
  }
  return std::nullopt;
}

// In order of precedence: a lost member ends the round even if a worker failed as well, because
// that failure is most likely its consequence, and costs no restart then. Success needs all
// members.
std::optional<Announcement> RoundPolicy::DecideRunning(const NodeViews& nodes, absl::Time now) {
  using Cause = Announcement::Cause;
  if (std::string missing = MissingMember(nodes, now, options_.lost_after); !missing.empty()) {
    return Over(*last_, Cause::kMembership, std::move(missing));
  }
  size_t done = 0;
  bool wants_next = false;
  for (const NodeIdentity& member : last_->members) {
    const NodeView& view = nodes.at(member.id);
    const NodeRecord& record = view.record;
    WakeAt(view.heard + options_.lost_after);
    if (record.round < last_->number) continue;  // Has not read the round yet.
    if (record.round > last_->number || record.state == State::kFailed ||
        record.state == State::kWaiting) {
      wants_next = true;
    }
    if (record.state == State::kDone) ++done;
  }
  if (wants_next) {
    const NodeRecord* root = RootCause(nodes, last_->number);
    return root == nullptr ? Over(*last_, Cause::kMembership, "a node asked for a new round")
                           : Over(*last_, Cause::kFailure, root->failure->summary);
  }
  if (done == last_->members.size()) return Closed(0, "all workers have succeeded");
  // New nodes end a running round, but not one that is about to succeed.
  const bool has_room = static_cast<int>(last_->members.size()) < options_.max_nodes && done == 0;
  std::vector<const NodeRecord*> newcomers;
  for (const NodeRecord* record : Candidates(nodes, now)) {
    if (last_->RankOf(record->identity.id) < 0) newcomers.push_back(record);
  }
  if (!has_room || newcomers.empty()) {
    newcomer_since_ = absl::InfiniteFuture();
    return std::nullopt;
  }
  newcomer_since_ = std::min(newcomer_since_, now);
  WakeAt(newcomer_since_ + options_.scale_up_delay);
  if (now < newcomer_since_ + options_.scale_up_delay) return std::nullopt;
  return Over(*last_, Cause::kMembership, absl::StrCat(Names(newcomers), " joins"));
}

std::string RoundPolicy::MissingMember(const NodeViews& nodes, absl::Time now,
                                       absl::Duration silence) const {
  for (const NodeIdentity& member : last_->members) {
    const auto found = nodes.find(member.id);
    if (found == nodes.end()) return absl::StrCat(member.ToString(), " is gone");
    const NodeView& view = found->second;
    if (view.record.state == State::kLeft) {
      return absl::StrCat(member.ToString(), " left: ", view.record.reason);
    }
    if (now - view.heard >= silence) {
      return absl::StrCat(
          member.ToString(), " is lost: no sign of life for ",
          absl::FormatDuration(absl::Trunc(now - view.heard, absl::Milliseconds(1))));
    }
  }
  return "";
}

std::vector<const NodeRecord*> RoundPolicy::Candidates(const NodeViews& nodes,
                                                       absl::Time now) const {
  std::vector<const NodeRecord*> candidates;
  for (const auto& [id, view] : nodes) {
    if (view.record.state != State::kWaiting || now - view.heard >= options_.silent_after) continue;
    candidates.push_back(&view.record);
  }
  // Members first, by rank, so that they stay when there are too many nodes; then in join order.
  const auto key = [this](const NodeRecord* record) {
    const int rank = last_.has_value() ? last_->RankOf(record->identity.id) : record->rank;
    return std::make_tuple(rank < 0, rank, record->join_order);
  };
  std::sort(candidates.begin(), candidates.end(),
            [&key](const NodeRecord* a, const NodeRecord* b) { return key(a) < key(b); });
  std::set<int> wanted;  // Of two nodes that want one rank the first gets it.
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                  [&wanted](const NodeRecord* record) {
                                    const int rank = record->identity.wanted_rank;
                                    return rank >= 0 && !wanted.insert(rank).second;
                                  }),
                   candidates.end());
  return candidates;
}

// Whether members of the last round are still stopping their workers. A round must not begin
// before: workers of two rounds would use the same devices and ports.
bool RoundPolicy::AwaitsMembers(const NodeViews& nodes, absl::Time now) {
  if (!last_.has_value()) return false;
  bool awaits = false;
  for (const NodeIdentity& member : last_->members) {
    const auto found = nodes.find(member.id);
    if (found == nodes.end()) {
      // A node that was seen here has left. In a store that has just replaced another one the node
      // may not have arrived yet.
      const absl::Time limit = forming_since_ + options_.silent_after;
      if (seen_.count(member.id) != 0 || now >= limit) continue;
      awaits = true;
      WakeAt(limit);
      continue;
    }
    const NodeView& view = found->second;
    if (view.record.state == State::kLeft || now - view.heard >= options_.silent_after) continue;
    if (HasStopped(view.record, *last_)) continue;
    awaits = true;
    WakeAt(view.heard + options_.silent_after);
  }
  return awaits;
}

// Waits in turn: for members that still stop their workers, for min_nodes, for the backoff or the
// last call. What ends the job, or corrects the cause of the last end, is decided in between, as
// soon as all members have said how they ended.
std::optional<Announcement> RoundPolicy::DecideForming(const NodeViews& nodes, absl::Time now) {
  if (nodes.empty()) return std::nullopt;
  // A new leader learns of no time before its own first look.
  forming_since_ = forming_since_ == absl::InfinitePast() ? now : forming_since_;
  for (const auto& [id, view] : nodes) WakeAt(view.heard + options_.silent_after);
  if (AwaitsMembers(nodes, now)) return std::nullopt;
  if (auto over = FindFailure(nodes)) return over;
  if (auto closed = AfterFailure(nodes)) return closed;
  const std::vector<const NodeRecord*> candidates = Candidates(nodes, now);
  // Each new node restarts the last call.
  if (candidates.size() > known_candidates_) last_arrival_ = now;
  known_candidates_ = candidates.size();
  const int count = static_cast<int>(candidates.size());
  if (count < options_.min_nodes) {
    const absl::Time limit = forming_since_ + options_.join_timeout;
    WakeAt(limit);
    if (now < limit) return std::nullopt;
    Announcement closed =
        Closed(1, absl::StrCat("no round within ", absl::FormatDuration(options_.join_timeout),
                               " (join_timeout)", last_.has_value() ? " after " + Name(*last_) : "",
                               ": ", Describe(nodes, now)));
    const NodeRecord* root = last_.has_value() ? RootCause(nodes, last_->number) : nullptr;
    if (root != nullptr) closed.failure = root->failure;
    return closed;
  }
  absl::Time earliest = absl::InfinitePast();
  if (over_cause_ == Announcement::Cause::kFailure && !LacksMember(nodes)) {
    earliest = forming_since_ + Backoff();
  }
  if (count < options_.max_nodes && !last_.has_value()) {
    earliest = last_arrival_ + options_.last_call_timeout;
  }
  if (now < earliest) {
    WakeAt(earliest);
    return std::nullopt;
  }
  return Form(candidates, nodes);
}

// Whether a member of the last round is not waiting for the next one: it is lost, has left, or
// still stops its workers.
bool RoundPolicy::LacksMember(const NodeViews& nodes) const {
  if (!last_.has_value()) return false;
  for (const NodeIdentity& member : last_->members) {
    const auto found = nodes.find(member.id);
    if (found == nodes.end() || !HasStopped(found->second.record, *last_)) return true;
  }
  return false;
}

// The true end of the last round, if that was lost with the store and the records show a failure.
// One that comes with the loss of a member counts as that loss.
std::optional<Announcement> RoundPolicy::FindFailure(const NodeViews& nodes) const {
  if (over_cause_ != Announcement::Cause::kStoreLost || !last_.has_value()) return std::nullopt;
  const NodeRecord* root = RootCause(nodes, last_->number);
  if (root == nullptr) return std::nullopt;
  const bool is_final = root->failure->retry == FailureNote::Retry::kNever;
  if (!is_final && LacksMember(nodes)) return std::nullopt;
  return Over(*last_, Announcement::Cause::kFailure, root->failure->summary);
}

// The failure that ended the last round, if it is to end the job. One that comes with the loss of a
// member counts as that loss, unless the member comes back before the next round.
std::optional<Announcement> RoundPolicy::AfterFailure(const NodeViews& nodes) const {
  if (!last_.has_value() || over_cause_ != Announcement::Cause::kFailure) return std::nullopt;
  const NodeRecord* root = RootCause(nodes, last_->number);
  const bool is_final = root != nullptr && root->failure->retry == FailureNote::Retry::kNever;
  if (!is_final && (LacksMember(nodes) || last_->restarts < options_.max_restarts)) {
    return std::nullopt;
  }
  Announcement closed = Closed(1, over_reason_);
  if (root != nullptr) {
    closed.failure = root->failure;
    closed.exit_code = root->failure->exit_code;
    closed.reason = root->failure->summary;
  }
  return closed;
}

bool RoundPolicy::KeepsMembers(const Round& next) const {
  if (!last_.has_value()) return true;
  for (const NodeIdentity& member : last_->members) {
    if (next.RankOf(member.id) < 0) return false;
  }
  return true;
}

// Ranks: a wanted rank first, then the rank of the last round, then any that is free. The round's
// number exceeds every number that any node has seen, in whichever store, so that histories of two
// stores can be compared.
Announcement RoundPolicy::Form(const std::vector<const NodeRecord*>& candidates,
                               const NodeViews& nodes) const {
  const int count = std::min(static_cast<int>(candidates.size()), options_.max_nodes);
  std::vector<const NodeRecord*> by_rank(count, nullptr);
  std::vector<const NodeRecord*> others;
  for (int i = 0; i < count; ++i) {
    const NodeRecord* record = candidates[i];
    const int before = last_.has_value() ? last_->RankOf(record->identity.id) : record->rank;
    const int rank = record->identity.wanted_rank >= 0 ? record->identity.wanted_rank : before;
    if (rank >= 0 && rank < count && by_rank[rank] == nullptr) {
      by_rank[rank] = record;
    } else {
      others.push_back(record);
    }
  }
  size_t next_other = 0;
  Announcement announcement;
  Round& round = announcement.round;
  for (const NodeRecord*& record : by_rank) {
    if (record == nullptr) record = others[next_other++];
    round.members.push_back(record->identity);
  }
  for (const auto& [id, view] : nodes) {
    round.number = std::max(round.number, view.record.round);
    round.restarts = std::max(round.restarts, view.record.restarts);
  }
  if (last_.has_value()) {
    round.number = std::max(round.number, last_->number);
    round.restarts = last_->restarts;
  }
  ++round.number;
  // A restart is spent only on a failure of workers; with a member lost, that explains the failure.
  if (over_cause_ == Announcement::Cause::kFailure && KeepsMembers(round)) ++round.restarts;
  if (last_.has_value()) round.reason = over_reason_;
  return announcement;
}

// Doubles, so that a job that fails at once does not load the cluster; the first failure of a long
// round costs no wait.
absl::Duration RoundPolicy::Backoff() const {
  if (quick_failures_ <= 1) return absl::ZeroDuration();
  absl::Duration wait = options_.backoff;
  for (int i = 2; i < quick_failures_ && wait < options_.max_backoff; ++i) wait *= 2;
  return std::min(wait, options_.max_backoff);
}

std::string RoundPolicy::Describe(const NodeViews& nodes, absl::Time now) const {
  const std::vector<const NodeRecord*> candidates = Candidates(nodes, now);
  std::string text =
      absl::StrCat(candidates.size(), " of at least ", options_.min_nodes,
                   " node(s) have come: ", candidates.empty() ? "none" : Names(candidates));
  const bool is_over = phase_ == Phase::kForming && last_.has_value();
  std::set<std::string> present;
  std::vector<std::string> silent;
  std::vector<std::string> stopping;
  for (const auto& [id, view] : nodes) {
    if (view.record.state == State::kLeft) continue;
    present.insert(id);
    if (now - view.heard >= options_.silent_after) {
      silent.push_back(view.record.identity.ToString());
    } else if (is_over && last_->RankOf(id) >= 0 && !HasStopped(view.record, *last_)) {
      stopping.push_back(view.record.identity.ToString());
    }
  }
  absl::StrAppend(&text, DescribeGone(present));
  if (!silent.empty())
    absl::StrAppend(&text, "; no sign of life from ", absl::StrJoin(silent, ", "));
  if (!stopping.empty())
    absl::StrAppend(&text, "; workers still run on ", absl::StrJoin(stopping, ", "));
  return text;
}

// The members of the last round that are not among `present`. The leader removes the record of a
// node that is lost or has left, so that only the round still names it.
std::string RoundPolicy::DescribeGone(const std::set<std::string>& present) const {
  if (!last_.has_value()) return "";
  std::vector<std::string> gone;
  for (const NodeIdentity& member : last_->members) {
    if (present.count(member.id) == 0) gone.push_back(Name(member));
  }
  if (gone.empty()) return "";
  return absl::StrCat("; lost or left since ", Name(*last_), ": ", absl::StrJoin(gone, ", "));
}

std::string RoundPolicy::DescribeWaiting(const NodeViews& nodes, absl::Time now) const {
  return DescribeWaiting(Describe(nodes, now), static_cast<int>(Candidates(nodes, now).size()),
                         now);
}

std::string RoundPolicy::DescribeWaiting(const std::set<std::string>& registered,
                                         absl::Time now) const {
  const int count = static_cast<int>(registered.size());
  return DescribeWaiting(absl::StrCat(count, " of at least ", options_.min_nodes,
                                      " node(s) have come", DescribeGone(registered)),
                         count, now);
}

// `who` has come and is missing; `count` could be in the next round.
std::string RoundPolicy::DescribeWaiting(absl::string_view who, int count, absl::Time now) const {
  if (phase_ == Phase::kRunning) {
    return absl::StrCat(Name(*last_), " runs with ", last_->members.size(), " of at most ",
                        options_.max_nodes, " node(s), and this node waits for a place");
  }
  std::string text = last_.has_value()
                         ? absl::StrCat(Name(*last_), " is over, and the next has not begun yet: ")
                         : "no round has begun yet: ";
  absl::StrAppend(&text, who);
  // A node that has never led knows no beginning of the first round's wait.
  if (count < options_.min_nodes && forming_since_ != absl::InfinitePast()) {
    const absl::Duration left = forming_since_ + options_.join_timeout - now;
    absl::StrAppend(
        &text, "; the job ends unless enough come within ",
        absl::FormatDuration(absl::Trunc(std::max(left, absl::ZeroDuration()), absl::Seconds(1))));
  }
  return text;
}

// A member of a running round is kept: its silence is the evidence that ends the round.
std::vector<std::string> RoundPolicy::RemovableNodes(const NodeViews& nodes, absl::Time now) const {
  std::vector<std::string> removable;
  for (const auto& [id, view] : nodes) {
    const bool is_member = phase_ == Phase::kRunning && last_.has_value() && last_->RankOf(id) >= 0;
    const bool has_left =
        view.record.state == State::kLeft || now - view.heard >= options_.lost_after;
    if (has_left && !is_member) removable.push_back(id);
  }
  return removable;
}

void RoundPolicy::WakeAt(absl::Time time) {
  if (time > now_) next_ = std::min(next_, time);
}

}  // namespace syncline::launch
