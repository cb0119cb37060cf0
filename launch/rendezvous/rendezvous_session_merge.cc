// RendezvousSession: how one history of the job remains after a network partition has made two.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "launch/rendezvous/rendezvous_session.h"

namespace syncline::launch {
namespace {

constexpr absl::Duration kCheckInterval = absl::Milliseconds(500);
constexpr size_t kCheckedAtOnce = 8;
// A dead node's address stays in the list for good, so the list is bounded.
constexpr size_t kMaxPreviousEndpoints = 16;

}  // namespace

void RendezvousSession::AddPreviousEndpoint(const std::string& address) {
  if (address.empty() || address == identity_.store) return;
  previous_endpoints_.erase(
      std::remove(previous_endpoints_.begin(), previous_endpoints_.end(), address),
      previous_endpoints_.end());
  previous_endpoints_.push_front(address);
  if (previous_endpoints_.size() > kMaxPreviousEndpoints) previous_endpoints_.pop_back();
}

// Members that a new round leaves out may be on the other side of a partition, with a round of
// their own: their stores are queried from now on.
void RendezvousSession::TrackLeftOutMembers(const std::optional<Round>& before, const Round& now) {
  if (!network_.is_hosted_by_nodes()) return;
  if (before.has_value()) {
    for (const NodeIdentity& member : before->members) {
      if (now.RankOf(member.id) < 0) AddPreviousEndpoint(member.store);
    }
  }
  for (const NodeIdentity& member : now.members) {
    previous_endpoints_.erase(
        std::remove(previous_endpoints_.begin(), previous_endpoints_.end(), member.store),
        previous_endpoints_.end());
  }
}

// Called by the host of the current store. Nodes may have joined at the endpoint, returned to a
// previous store, or gone on elsewhere; between rounds, members may have lost the store too.
void RendezvousSession::CheckOtherStores() {
  if (clock_.Now() < next_check_) return;
  std::vector<std::string> all(previous_endpoints_.begin(), previous_endpoints_.end());
  all.push_back(network_.endpoint());
  if (!has_round_ && last_round_.has_value()) {
    for (const NodeIdentity& member : last_round_->members) {
      if (member.id != identity_.id) all.push_back(member.store);
    }
  }
  std::vector<std::string> asked;
  for (size_t i = 0; i < all.size() && asked.size() < kCheckedAtOnce; ++i) {
    const std::string& address = all[next_checked_++ % all.size()];
    if (address != current_.address && !absl::c_linear_search(asked, address)) {
      asked.push_back(address);
    }
  }
  if (!asked.empty()) {
    const std::vector<Answer> answers = Query(asked, kQuickTimeouts);
    for (size_t i = 0; i < answers.size(); ++i) {
      if (Reconcile(asked[i], answers[i])) break;
    }
  }
  next_check_ = clock_.Now() + kCheckInterval;
}

// Queries every store that may know of a round elsewhere before this leader announces one: those of
// the members that the round leaves out, which may be on the other side of a partition; the
// endpoint, where new nodes come; and previous stores. A store that cannot be reached does not
// prevent the round: it would never begin while one node is down.
bool RendezvousSession::MayAnnounceRound(const std::vector<NodeIdentity>& left_out) {
  std::vector<std::string> addresses;
  for (const NodeIdentity& member : left_out) addresses.push_back(member.store);
  addresses.insert(addresses.end(), previous_endpoints_.begin(), previous_endpoints_.end());
  addresses.push_back(network_.endpoint());
  absl::c_sort(addresses);
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  addresses.erase(std::remove(addresses.begin(), addresses.end(), current_.address),
                  addresses.end());
  const std::vector<Answer> answers = Query(addresses, kQuickTimeouts);
  for (size_t i = 0; i < answers.size(); ++i) {
    if (Reconcile(addresses[i], answers[i])) return false;
  }
  return true;
}

// A store redirects to another one. Returns as Reconcile.
bool RendezvousSession::FollowRedirect(const JobLocation& location) {
  AddPreviousEndpoint(location.address);
  const Answer there = QueryOne(location.address, kQuickTimeouts);
  if (there.store == nullptr || !there.location.has_value()) return false;
  if (there.location->state == JobLocation::State::kHere &&
      there.location->instance == location.instance) {
    return Reconcile(location.address, there);
  }
  // The host has left that instance for another. Nodes that are still in it are redirected here.
  const std::shared_ptr<Store> left = InstanceStore(there.store, location.instance);
  const auto history = ReadHistory(*left);
  if (history.ok() && history->announcements > 0 &&
      history->state == InstanceHistory::State::kGoing) {
    AnnounceMove(*left, *history, current_.address).status().IgnoreError();
  }
  return false;
}

bool RendezvousSession::Reconcile(const std::string& address, const Answer& answer) {
  if (answer.store == nullptr || !answer.location.has_value()) return false;
  const JobLocation& location = *answer.location;
  if (location.state == JobLocation::State::kElsewhere) {
    return !IsCurrent(location.address, location.instance) && FollowRedirect(location);
  }
  if (location.state == JobLocation::State::kSearching) return false;
  if (IsCurrent(address, location.instance)) return false;
  const std::shared_ptr<Store> other_store = InstanceStore(answer.store, location.instance);
  const auto other = ReadHistory(*other_store);
  const auto own = ReadHistory(*current_.store);
  if (!other.ok() || !own.ok()) return false;
  // Ended here meanwhile: the next step reads how, and follows.
  if (own->state != InstanceHistory::State::kGoing) return true;
  if (other->state == InstanceHistory::State::kClosed) return false;
  if (other->state == InstanceHistory::State::kMoved) {
    if (other->moved_to == current_.address) return false;
    AddPreviousEndpoint(other->moved_to);
    const Answer next = QueryOne(other->moved_to, kQuickTimeouts);
    const bool goes_on = next.store != nullptr && next.location.has_value() &&
                         next.location->state != JobLocation::State::kSearching;
    // The chain of moves has a dead end. Nodes that follow it are redirected here.
    if (!goes_on) AnnounceMove(*other_store, *other, current_.address).status().IgnoreError();
    return false;
  }
  // Both hosts compute the same comparison; each writes only to the log of the loser. The move is
  // an announcement like any other, so a round that the loser announces first invalidates it.
  if (Outranks(own->At(current_.address), other->At(address))) {
    AnnounceMove(*other_store, *other, current_.address).status().IgnoreError();
    return false;
  }
  // This history loses. If the write fails to get its number, this history has just grown, and the
  // two are compared again.
  return AnnounceMove(*current_.store, *own, address).ok();
}

}  // namespace syncline::launch
