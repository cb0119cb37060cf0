// How one history of the job remains where a cut of the network has made two.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "launch/rendezvous/session.h"

namespace syncline {
namespace {

constexpr absl::Duration kProbeInterval = absl::Milliseconds(500);
constexpr size_t kProbedAtOnce = 8;
constexpr size_t kRemembered = 16;  // Stores; a node that died is one of them for good.

}  // namespace

void RendezvousSession::Remember(const std::string& address) {
  if (address.empty() || address == identity_.store) return;
  former_.erase(std::remove(former_.begin(), former_.end(), address), former_.end());
  former_.push_front(address);
  if (former_.size() > kRemembered) former_.pop_back();
}

// Members that a new round leaves out may be cut off, and go on by themselves.
void RendezvousSession::RememberStrays(const std::optional<Round>& before, const Round& now) {
  if (!network_.is_hosted_by_nodes()) return;
  if (before.has_value()) {
    for (const NodeIdentity& member : before->members) {
      if (now.RankOf(member.id) < 0) Remember(member.store);
    }
  }
  for (const NodeIdentity& member : now.members) {
    former_.erase(std::remove(former_.begin(), former_.end(), member.store), former_.end());
  }
}

// Nodes come to the endpoint, or return to where the job was, or go on elsewhere.
void RendezvousSession::Probe() {
  if (clock_.Now() < next_probe_) return;
  std::vector<std::string> all(former_.begin(), former_.end());
  all.push_back(network_.endpoint());
  if (!has_round_ && last_round_.has_value()) {
    for (const NodeIdentity& member : last_round_->members) {
      if (member.id != identity_.id) all.push_back(member.store);
    }
  }
  std::vector<std::string> asked;
  for (size_t i = 0; i < all.size() && asked.size() < kProbedAtOnce; ++i) {
    const std::string& address = all[probed_++ % all.size()];
    if (address != place_.address && !absl::c_linear_search(asked, address)) {
      asked.push_back(address);
    }
  }
  if (!asked.empty()) {
    const std::vector<Answer> answers = Ask(asked, kProbePatience);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (Reconcile(asked[i], answers[i])) break;
    }
  }
  next_probe_ = clock_.Now() + kProbeInterval;
}

// Asks everybody who may know of a round that runs elsewhere: the members that the next round
// leaves out, who may be cut off; the endpoint, where nodes come who know nothing; and former
// stores.
bool RendezvousSession::MayAnnounceRound(const std::vector<NodeIdentity>& left_out) {
  std::vector<std::string> addresses;
  for (const NodeIdentity& member : left_out) addresses.push_back(member.store);
  addresses.insert(addresses.end(), former_.begin(), former_.end());
  addresses.push_back(network_.endpoint());
  absl::c_sort(addresses);
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  addresses.erase(std::remove(addresses.begin(), addresses.end(), place_.address), addresses.end());
  const std::vector<Answer> answers = Ask(addresses, kProbePatience);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (Reconcile(addresses[i], answers[i])) return false;
  }
  return true;
}

// A node takes part elsewhere. Returns as Reconcile.
bool RendezvousSession::FollowTo(const Position& position) {
  Remember(position.address);
  const Answer there = AskOne(position.address, kProbePatience);
  if (there.store == nullptr || !there.position.has_value()) return false;
  if (there.position->state == Position::State::kHere &&
      there.position->instance == position.instance) {
    return Reconcile(position.address, there);
  }
  // Who held that instance has left it, and those who are in it do not know.
  const std::shared_ptr<Store> left = InstanceStore(there.store, position.instance);
  const auto history = ReadHistory(*left);
  if (history.ok() && history->announcements > 0 &&
      history->state == InstanceHistory::State::kGoing) {
    AnnounceMove(*left, *history, place_.address).status().IgnoreError();
  }
  return false;
}

bool RendezvousSession::Reconcile(const std::string& address, const Answer& answer) {
  if (answer.store == nullptr || !answer.position.has_value()) return false;
  const Position& position = *answer.position;
  if (position.state == Position::State::kElsewhere) {
    return !IsHere(position.address, position.instance) && FollowTo(position);
  }
  if (position.state == Position::State::kSearching) return false;
  if (IsHere(address, position.instance)) return false;
  const std::shared_ptr<Store> other_store = InstanceStore(answer.store, position.instance);
  const auto other = ReadHistory(*other_store);
  const auto own = ReadHistory(*place_.store);
  if (!other.ok() || !own.ok()) return false;
  if (own->state != InstanceHistory::State::kGoing) return true;
  if (other->state == InstanceHistory::State::kClosed) return false;
  if (other->state == InstanceHistory::State::kMoved) {
    if (other->moved_to == place_.address) return false;
    Remember(other->moved_to);
    const Answer next = AskOne(other->moved_to, kProbePatience);
    const bool goes_on = next.store != nullptr && next.position.has_value() &&
                         next.position->state != Position::State::kSearching;
    // Who comes there is sent on to here.
    if (!goes_on) AnnounceMove(*other_store, *other, place_.address).status().IgnoreError();
    return false;
  }
  if (Outranks(own->At(place_.address), other->At(address))) {
    AnnounceMove(*other_store, *other, place_.address).status().IgnoreError();
    return false;
  }
  // If that comes too late, this history has just grown, and is looked at again.
  return AnnounceMove(*place_.store, *own, address).ok();
}

}  // namespace syncline
