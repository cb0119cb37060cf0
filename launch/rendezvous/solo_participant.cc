#include <utility>

#include "absl/strings/str_cat.h"
#include "launch/rendezvous/event_queue.h"
#include "launch/rendezvous/participant.h"
#include "launch/rendezvous/rendezvous.h"
#include "launch/rendezvous/round_policy_options.h"
#include "syncline/hash_store.h"

namespace syncline::launch {
namespace {

// A job of one node: no other node can fall silent, so heartbeats and polls hardly ever happen.
Rendezvous::Options Alone(const LaunchOptions& options) {
  Rendezvous::Options result;
  result.policy = RoundPolicyFor(options);
  result.policy.lost_after = absl::InfiniteDuration();
  result.policy.silent_after = absl::InfiniteDuration();
  result.keep_alive_interval = absl::Hours(1);
  result.running_poll = absl::Hours(1);
  return result;
}

NodeRecord Record(NodeIdentity identity) {
  NodeRecord record;
  record.identity = std::move(identity);
  return record;
}

// Runs the same Rendezvous as several nodes do, over a store in memory, on the launcher's thread:
// each change of state takes the steps that follow from it at once.
class SoloParticipant final : public Participant {
 public:
  SoloParticipant(const LaunchOptions& options, NodeIdentity identity, const Clock& clock)
      : clock_(clock),
        rendezvous_(std::make_shared<HashStore>(), Record(std::move(identity)), Alone(options),
                    clock) {}

  int fd() const override { return queue_.fd(); }
  absl::Time next() const override { return begun_ ? rendezvous_.next() : absl::InfiniteFuture(); }
  std::vector<RendezvousEvent> Take() override {
    if (begun_ && clock_.Now() >= rendezvous_.next()) Advance();
    return queue_.Take();
  }

  void Wait(std::optional<FailureNote> failure, int master_port) override {
    begun_ = true;
    rendezvous_.OfferPort(master_port);
    rendezvous_.Wait(std::move(failure));
    Advance();
  }
  void Run(const Round& round) override {
    rendezvous_.Run(round);
    Advance();
  }
  void Fail(FailureNote failure) override {
    rendezvous_.Fail(std::move(failure));
    Advance();
  }
  void Finish() override {
    rendezvous_.Finish();
    Advance();
  }
  void SetStatus(std::string /*json*/) override {}
  void Leave(std::optional<std::string> /*reason*/, absl::Duration /*timeout*/) override {}
  const NodeIdentity& identity() const override { return rendezvous_.record().identity; }

 private:
  void Advance() {
    absl::StatusOr<std::vector<Announcement>> announcements = rendezvous_.Step();
    if (!announcements.ok()) {
      queue_.Put(
          {RendezvousEvent::Kind::kFailed, {}, std::string(announcements.status().message())});
      return;
    }
    for (Announcement& announcement : *announcements) {
      queue_.Put({RendezvousEvent::Kind::kAnnouncement, std::move(announcement), ""});
    }
  }

  const Clock& clock_;
  EventQueue queue_;
  Rendezvous rendezvous_;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<Participant> MakeSoloParticipant(const LaunchOptions& options,
                                                 NodeIdentity identity, const Clock& clock) {
  return std::make_unique<SoloParticipant>(options, std::move(identity), clock);
}

}  // namespace syncline::launch
