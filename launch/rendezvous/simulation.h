// Simulates the nodes, hosts and network of a job in one process, on a simulated clock. Not
// thread-safe; everything runs in the fibers of one SimWorld, which must outlive its nodes.
#ifndef SYNCLINE_LAUNCH_RENDEZVOUS_SIMULATION_H_
#define SYNCLINE_LAUNCH_RENDEZVOUS_SIMULATION_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launch/clock.h"
#include "launch/options/options.h"
#include "launch/rendezvous/fibers.h"
#include "launch/rendezvous/rendezvous_session.h"
#include "syncline/hash_store.h"

namespace syncline::launch {

// A launcher's process, as far as others notice it.
struct SimProcess {
  int host = 0;
  bool alive = true;
  bool stopped = false;  // By SIGSTOP: neither it nor its servers do anything.
};

// A store that a process serves.
struct SimServer {
  std::shared_ptr<SimProcess> owner;
  bool is_closed = false;
  HashStore store;

  bool serves() const { return owner->alive && !is_closed; }
};

// Hosts, the network between them, and what is served there. Everything that may fail does so only
// when the test says so; delays come from a generator that the test seeds.
class SimWorld {
 public:
  SimWorld(int hosts, uint32_t seed);

  absl::Time now() const { return fibers.now(); }
  int hosts() const { return static_cast<int>(is_up_.size()); }

  // Packets from `from` no longer arrive at `to`. Cuts count: two need two heals.
  void Cut(int from, int to);
  void Heal(int from, int to);
  // The whole host is down: nobody answers there, not even with a refusal.
  void SetUp(int host, bool up);
  // The most that a server on the host takes for a call.
  void SetDelay(int host, absl::Duration delay);

  // Whether a packet gets from one host to the other.
  bool Passes(int from, int to) const;
  // Since when packets have got from each of the two processes to the other, and both have run.
  absl::Time ConnectedSince(const SimProcess& a, const SimProcess& b) const;

  absl::Duration Latency();
  absl::Duration DelayAt(int host);

  // To be called when a process ends, stops or goes on.
  void Touch(const SimProcess& process);
  // Everybody who waits looks again.
  void Changed() { fibers.Changed(); }

  Fibers fibers;
  std::map<std::string, std::weak_ptr<SimServer>> servers;  // By host:port.
  // An announcement was made: the store's address with the instance, who made it, what it is.
  std::function<void(const std::string& where, const SimProcess& by, const Announcement& what)>
      on_announcement = [](const std::string&, const SimProcess&, const Announcement&) {};

 private:
  struct Path {
    int cuts = 0;
    absl::Time since = absl::InfinitePast();  // Of the last change.
  };

  std::mt19937 random_;
  std::vector<bool> is_up_;
  std::vector<absl::Time> up_since_;
  std::vector<absl::Duration> delays_;
  std::vector<absl::Time> delay_since_;
  std::vector<std::vector<Path>> paths_;
  std::map<const SimProcess*, absl::Time> touched_;
};

// One launcher: its session, and an agent that runs the rounds, with workers that end when the test
// decides.
class SimNode {
 public:
  // Starts on `host`; the endpoint is on host 0.
  SimNode(SimWorld& world, const LaunchOptions& options, int host, std::string id);
  ~SimNode();

  // What happens to it.
  void Stop();      // SIGSTOP.
  void Continue();  // SIGCONT.
  void Kill();      // SIGKILL. Its host refuses connections from now on.
  void FailWorker();
  void FinishWorkers();
  void Leave();  // SIGTERM.

  bool is_alive() const { return process_->alive; }
  bool is_stopped() const { return process_->stopped; }
  const SimProcess& process() const { return *process_; }
  const std::string& id() const { return identity_.id; }
  const NodeIdentity& identity() const { return identity_; }
  // The round whose workers run here.
  const std::optional<Round>& running() const { return running_; }
  const std::optional<Announcement>& closed() const { return closed_; }
  const std::string& failure() const { return failure_; }
  bool is_leaving() const { return is_leaving_; }
  bool is_done() const { return is_done_; }
  bool has_left() const { return has_left_; }
  const std::vector<Round>& rounds() const { return rounds_; }  // All that it was asked to run.
  std::string Describe() const;

 private:
  class Network;
  class NodeClock;
  using Action = std::function<void(Rendezvous&)>;

  void Command(Action action);
  void RunSteps();
  void WatchAnnouncements();
  void RunAgent();
  void Handle(const RendezvousEvent& event);
  void StopWorkers();
  void Pause(absl::Duration duration);

  SimWorld& world_;
  const LaunchOptions options_;
  const std::shared_ptr<SimProcess> process_;
  NodeIdentity identity_;
  std::shared_ptr<SimServer> server_;
  std::unique_ptr<NodeClock> clock_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<RendezvousSession> session_;

  std::deque<Action> commands_;
  std::deque<RendezvousEvent> events_;
  RendezvousSession::WatchedKey watched_key_;
  bool key_changed_ = false;
  bool has_left_ = false;

  // The agent's.
  std::optional<Round> running_;
  std::optional<FailureNote> failing_;
  std::vector<Round> rounds_;
  bool must_fail_ = false;
  bool must_finish_ = false;
  bool is_done_ = false;
  bool is_leaving_ = false;
  bool leaves_ = false;
  std::optional<Announcement> closed_;
  std::string failure_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_RENDEZVOUS_SIMULATION_H_
