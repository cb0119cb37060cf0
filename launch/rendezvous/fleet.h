// Many rendezvous nodes in one thread, on one store and a clock that the test moves.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_FLEET_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_FLEET_H_

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "launch/clock.h"
#include "launch/rendezvous/rendezvous.h"
#include "syncline/status.h"

namespace syncline::launch {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

// A Rendezvous with an agent that has no workers: it runs every round that it is a member of, and
// waits for the next one when that is over.
class FakeNode {
 public:
  FakeNode(std::shared_ptr<Store> store, const NodeRecord& record,
           const Rendezvous::Options& options, const Clock& clock)
      : id(record.identity.id), rendezvous(std::move(store), record, options, clock) {}

  // Errors of the store leave it to the next Step.
  absl::Status Step() {
    absl::StatusOr<std::vector<Announcement>> announcements = rendezvous.Step();
    if (!announcements.ok()) return announcements.status();
    for (Announcement& announcement : *announcements) Take(std::move(announcement));
    return absl::OkStatus();
  }

  // Its worker fails now; it stops the others and waits for the next round.
  void Fail(FailureNote note) {
    rendezvous.Fail(note);
    failure = std::move(note);
  }

  int rank() const { return round.has_value() ? round->RankOf(id) : -1; }

  const std::string id;
  Rendezvous rendezvous;
  enum class Life { kAlive, kSuspended, kDead } life = Life::kAlive;
  std::optional<Round> round;  // The one that it is in.
  std::optional<FailureNote> failure;
  std::optional<Announcement> closed;
  std::vector<Announcement> history;

 private:
  void Take(Announcement announcement) {
    switch (announcement.kind) {
      case Announcement::Kind::kRound:
        round.reset();
        if (announcement.round.RankOf(id) >= 0) {
          round = announcement.round;
          rendezvous.Run(*round);
        } else {
          rendezvous.Wait(std::nullopt);
        }
        break;
      case Announcement::Kind::kOver:
        if (!round.has_value() || round->number != announcement.over) break;
        round.reset();
        rendezvous.Wait(std::exchange(failure, std::nullopt));
        break;
      case Announcement::Kind::kClosed:
      case Announcement::Kind::kMoved:
        round.reset();
        closed = announcement;
        break;
    }
    history.push_back(std::move(announcement));
  }
};

class Fleet {
 public:
  using OpenStore = std::function<std::shared_ptr<Store>()>;

  Fleet(OpenStore open_store, const RoundPolicyOptions& policy)
      : open_store_(std::move(open_store)) {
    options.policy = policy;
  }

  std::shared_ptr<Store> OpenStoreOfJob() { return open_store_(); }

  FakeNode& Add(const NodeIdentity& identity = {}) {
    NodeRecord record;
    record.identity = identity;
    return Add(record);
  }
  FakeNode& Add(NodeRecord record) {
    const size_t number = nodes.size();
    NodeIdentity& identity = record.identity;
    if (identity.id.empty()) identity.id = absl::StrCat("n", number);
    identity.host = absl::StrCat("host", number);
    identity.address = absl::StrCat("10.0.0.", number);
    nodes.push_back(std::make_unique<FakeNode>(open_store_(), record, options, clock));
    return *nodes.back();
  }
  void AddMany(int count) {
    for (int i = 0; i < count; ++i) Add();
  }

  // Time goes by in steps, in each of which every living node does what is due.
  void Run(absl::Duration duration) {
    const absl::Time end = clock.Now() + duration;
    for (;;) {
      for (const auto& node : nodes) {
        if (node->life != FakeNode::Life::kAlive) continue;
        const absl::Status done = node->Step();
        if (!done.ok()) ++store_errors;
      }
      if (clock.Now() >= end) return;
      clock.Advance(std::min(step, end - clock.Now()));
    }
  }

  // Until `condition`, for at most `limit`. Returns how long it took.
  absl::Duration RunUntil(const std::function<bool()>& condition,
                          absl::Duration limit = absl::Minutes(1)) {
    const absl::Time start = clock.Now();
    while (!condition()) {
      if (clock.Now() - start > limit) {
        ADD_FAILURE() << "not within " << limit << ": " << Describe();
        break;
      }
      Run(step);
    }
    return clock.Now() - start;
  }

  // Whether exactly these nodes are in round `number`, by rank.
  bool InRound(int number, const std::vector<int>& by_rank) const {
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      const FakeNode& node = *nodes[by_rank[rank]];
      if (!node.round.has_value() || node.round->number != number) return false;
      if (node.rank() != static_cast<int>(rank)) return false;
      if (node.round->members.size() != by_rank.size()) return false;
    }
    return true;
  }

  bool AllClosed() const {
    for (const auto& node : nodes) {
      if (node->life == FakeNode::Life::kAlive && !node->closed.has_value()) return false;
    }
    return true;
  }

  std::string Describe() const {
    std::string text;
    for (const auto& node : nodes) {
      absl::StrAppend(&text, "\n  ", node->id, node->rendezvous.is_leader() ? " leads" : "",
                      " round ", node->round.has_value() ? node->round->number : 0, " rank ",
                      node->rank(), " state ", static_cast<int>(node->rendezvous.record().state),
                      node->closed.has_value() ? " closed: " + node->closed->reason : "", "; ",
                      node->rendezvous.Describe());
    }
    return text;
  }

  absl::Duration step = absl::Milliseconds(10);  // Of the clock.
  Rendezvous::Options options;
  FakeClock clock;
  std::vector<std::unique_ptr<FakeNode>> nodes;
  int store_errors = 0;

 private:
  const OpenStore open_store_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_FLEET_H_
