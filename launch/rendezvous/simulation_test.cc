// Random cuts, stalls, deaths and delays, by the thousand, and what must hold after each.
//
// One schedule follows from one seed: how many nodes there are and how many are needed, and what
// happens to them and their network when. `--seeds=BEGIN:END` runs those; a failure names its seed.
#include "launch/rendezvous/simulation.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using Kind = Announcement::Kind;

// From the moment on which all nodes can reach each other until they are in one round.
constexpr absl::Duration kHealsWithin = absl::Seconds(30);
constexpr absl::Duration kLastsFor = absl::Seconds(8);
constexpr absl::Duration kClosesWithin = absl::Seconds(20);
// A node that has been reachable for so long must not be left out by a round.
constexpr absl::Duration kKnownWithin = absl::Seconds(4);

class Simulation {
 public:
  // Which ills a schedule may have, beside failing workers.
  struct Ills {
    bool cuts = true;
    bool stalls = true;
    bool deaths = true;
    bool delays = true;
  };

  explicit Simulation(uint32_t seed) : Simulation(seed, Between(seed, 2, 7)) {}
  Simulation(uint32_t seed, int nodes) : seed_(seed), random_(seed), world_(nodes, seed ^ 0x5eed) {
    const int min = Random(1, nodes);
    Init(nodes, min);
  }
  Simulation(uint32_t seed, int nodes, int min)
      : seed_(seed), random_(seed), world_(nodes, seed ^ 0x5eed) {
    Init(nodes, min);
  }

  ~Simulation() {
    for (const auto& node : nodes_) node->Kill();
    world_.fibers.RunUntil(absl::InfiniteFuture());
  }

  // A whole life of a job. Returns how long the nodes took to be in one round after the last ill.
  absl::Duration Run(const Ills& ills) {
    Start();
    MakeSchedule(ills);
    RunUntil(end_);
    ReplaceTheDead();
    const absl::Duration took = AwaitOneRound();
    Check();
    Finish();
    return took;
  }

  void Start() {
    for (int host = 0; host < world_.hosts(); ++host) {
      const int i = host;
      At(absl::Milliseconds(Random(0, 3000)), [this, i] { AddNode(i); });
    }
    RunUntil(world_.now() + absl::Seconds(3));
    while (!IsOneRound() && world_.now() - start_ < absl::Minutes(1)) {
      RunFor(absl::Milliseconds(100));
    }
  }

  // Something happens `after` from now.
  void At(absl::Duration after, std::function<void()> what) {
    events_.emplace(world_.now() + after, std::move(what));
  }

  void RunUntil(absl::Time time) {
    while (!events_.empty() && events_.begin()->first <= time) {
      world_.fibers.RunUntil(events_.begin()->first);
      const auto what = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      what();
    }
    world_.fibers.RunUntil(time);
  }
  void RunFor(absl::Duration duration) { RunUntil(world_.now() + duration); }

  SimNode& AddNode(int host) {
    nodes_.push_back(
        std::make_unique<SimNode>(world_, options_, host, absl::StrCat("n", nodes_.size())));
    Trace(absl::StrCat("node ", nodes_.back()->id(), " starts on host ", host));
    return *nodes_.back();
  }

  // The living node on a host, unless it is about to leave; null if there is none.
  SimNode* NodeOn(int host) {
    for (const auto& node : nodes_) {
      if (node->process().host != host || node->is_leaving()) continue;
      if (node->is_alive()) return node.get();
    }
    return nullptr;
  }

  void CutBetween(int from, int to, absl::Duration duration) {
    Trace(absl::StrCat("cut ", from, " -> ", to, " for ", absl::FormatDuration(duration)));
    world_.Cut(from, to);
    At(duration, [this, from, to] {
      Trace(absl::StrCat("heal ", from, " -> ", to));
      world_.Heal(from, to);
    });
  }
  // Cuts the hosts in `side` off from the others.
  void CutOff(const std::set<int>& side, absl::Duration duration, bool out = true, bool in = true) {
    for (const int a : side) {
      for (int b = 0; b < world_.hosts(); ++b) {
        if (side.count(b) != 0) continue;
        if (out) CutBetween(a, b, duration);
        if (in) CutBetween(b, a, duration);
      }
    }
  }
  void Stall(int host, absl::Duration duration) {
    SimNode* const node = NodeOn(host);
    if (node == nullptr || node->is_stopped()) return;
    Trace(absl::StrCat("stall ", node->id(), " for ", absl::FormatDuration(duration)));
    node->Stop();
    At(duration, [this, node] {
      if (!node->is_alive()) return;
      Trace(absl::StrCat("continue ", node->id()));
      node->Continue();
    });
  }
  void Kill(int host) {
    SimNode* const node = NodeOn(host);
    if (node == nullptr) return;
    Trace(absl::StrCat("kill ", node->id()));
    node->Kill();
  }
  void FailWorker(int host) {
    SimNode* const node = NodeOn(host);
    if (node == nullptr || node->is_leaving()) return;
    Trace(absl::StrCat("worker of ", node->id(), " fails"));
    node->FailWorker();
    ++failures_;
  }
  void Leave(int host) {
    SimNode* const node = NodeOn(host);
    if (node == nullptr || node->is_stopped()) return;
    Trace(absl::StrCat(node->id(), " leaves"));
    node->Leave();
  }
  void SetUp(int host, bool up) {
    Trace(absl::StrCat("host ", host, up ? " is up" : " is down"));
    if (!up) Kill(host);
    world_.SetUp(host, up);
  }
  void SetDelay(int host, absl::Duration delay) {
    Trace(absl::StrCat("servers on host ", host, " take up to ", absl::FormatDuration(delay)));
    world_.SetDelay(host, delay);
  }

  std::vector<SimNode*> Living() const {
    std::vector<SimNode*> living;
    for (const auto& node : nodes_) {
      if (node->is_alive() && !node->is_leaving()) living.push_back(node.get());
    }
    return living;
  }

  // Whether all living nodes are in one round, and nobody else is.
  bool IsOneRound() const {
    const std::vector<SimNode*> living = Living();
    for (const SimNode* node : living) {
      const auto& round = node->running();
      if (!round.has_value() || round->members.size() != living.size()) return false;
      if (round->number != living[0]->running()->number) return false;
      for (const SimNode* other : living) {
        if (round->RankOf(other->id()) < 0) return false;
      }
    }
    for (const auto& node : nodes_) {
      if (node->is_alive() && node->is_leaving()) return false;
    }
    return !living.empty();
  }

  // Returns how long it took until they were in one round that lasts.
  absl::Duration AwaitOneRound() {
    const absl::Time began = world_.now();
    absl::Time since = absl::InfiniteFuture();
    int number = 0;
    while (world_.now() - since < kLastsFor && !has_failed_) {
      const int now = IsOneRound() ? Living()[0]->running()->number : 0;
      if (now == 0 || now != number) since = absl::InfiniteFuture();
      if (now != 0) since = std::min(since, world_.now());
      number = now;
      if (std::min(since, world_.now()) - began > kHealsWithin) {
        Fail(absl::StrCat("not in one round within ", absl::FormatDuration(kHealsWithin)));
      }
      RunFor(absl::Milliseconds(100));
      CheckHealthy();
    }
    return since - began;
  }

  // All workers succeed now; then all launchers end with that.
  void Finish() {
    if (has_failed_) return;
    const std::vector<SimNode*> living = Living();
    for (SimNode* node : living) node->FinishWorkers();
    const absl::Time began = world_.now();
    const auto all_departed = [&] {
      return std::all_of(living.begin(), living.end(),
                         [](const SimNode* node) { return node->has_left(); });
    };
    while (!all_departed() && world_.now() - began < kClosesWithin) RunFor(absl::Milliseconds(100));
    for (const SimNode* node : living) {
      if (!node->closed().has_value() || node->closed()->exit_code != 0) {
        Fail(absl::StrCat(node->id(), " has not heard that the job has succeeded"));
      }
    }
    if (!all_departed()) Fail("not all launchers end");
  }

  void Check() {
    if (has_failed_) return;
    // Rounds of one instance follow each other, and restarts are the failures between them.
    for (const auto& [where, instance] : instances_) {
      const Announcement* round = nullptr;
      const Announcement* over = nullptr;
      for (const auto& [number, each] : instance) {
        if (each.kind == Kind::kOver) over = &each;
        if (each.kind != Kind::kRound) continue;
        if (round != nullptr) {
          const bool failed = over != nullptr && over->cause == Announcement::Cause::kFailure;
          const int more = each.round.restarts - round->round.restarts;
          if (each.round.number <= round->round.number) {
            Fail(absl::StrCat("round ", each.round.number, " follows ", round->round.number));
          }
          if (more < 0 || more > (failed ? 1 : 0)) {
            Fail(absl::StrCat(more, " restarts are counted for round ", each.round.number, " at ",
                              where));
          }
          const bool lost_any = !std::all_of(
              round->round.members.begin(), round->round.members.end(),
              [&](const NodeIdentity& member) { return each.round.RankOf(member.id) >= 0; });
          if (failed && !lost_any && more != 1) {
            Fail(
                absl::StrCat("no restart is counted for round ", each.round.number, " at ", where));
          }
        }
        round = &each;
        over = nullptr;
      }
    }
    for (const auto& node : nodes_) {
      for (size_t i = 1; i < node->rounds().size(); ++i) {
        if (node->rounds()[i].number <= node->rounds()[i - 1].number) {
          Fail(absl::StrCat(node->id(), " runs round ", node->rounds()[i].number, " after ",
                            node->rounds()[i - 1].number));
        }
      }
    }
    const int restarts = Living()[0]->running()->restarts;
    if (restarts > failures_) {
      Fail(absl::StrCat(restarts, " restarts after ", failures_, " failures"));
    }
  }

  void Trace(const std::string& what) {
    absl::StrAppend(&log_, "\n  ", absl::ToInt64Milliseconds(world_.now() - start_), " ms: ", what);
  }

  void Fail(const std::string& what) {
    if (std::exchange(has_failed_, true)) return;
    std::string text;
    for (const auto& node : nodes_) absl::StrAppend(&text, "\n  ", node->Describe());
    ADD_FAILURE() << "seed " << seed_ << ", " << world_.hosts() << " hosts, MIN "
                  << options_.nodes.min << ", at "
                  << absl::ToInt64Milliseconds(world_.now() - start_) << " ms: " << what
                  << "\nnodes:" << text << "\nwhat happened:" << log_;
  }

  bool has_failed() const { return has_failed_; }
  int failures() const { return failures_; }
  const std::string& log() const { return log_; }
  SimWorld& world() { return world_; }
  std::vector<std::unique_ptr<SimNode>>& nodes() { return nodes_; }
  int Random(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

 private:
  static int Between(uint32_t seed, int from, int to) {
    std::mt19937 random(seed * 7919 + 1);
    return std::uniform_int_distribution<int>(from, to)(random);
  }

  void Init(int nodes, int min) {
    start_ = world_.now();
    end_ = start_;
    options_.nodes = {min, nodes};
    options_.node_rank = -1;
    options_.max_restarts = 1000;
    options_.rendezvous.backend = RendezvousOptions::Backend::kC10d;
    options_.rendezvous.last_call_timeout = absl::Seconds(10);
    world_.on_announcement = [this](const std::string& where, const SimProcess& by,
                                    const Announcement& what) { OnAnnouncement(where, by, what); };
  }

  absl::Duration Span(double from, double to) {
    return absl::Milliseconds(Random(static_cast<int>(from * 1000), static_cast<int>(to * 1000)));
  }

  void MakeSchedule(const Ills& ills) {
    const int count = Random(1, 5);
    for (int i = 0; i < count; ++i) {
      const absl::Duration when = Span(0, 20);
      const absl::Duration duration = Random(0, 2) == 0 ? Span(0.05, 3) : Span(3, 15);
      const int host = Random(0, world_.hosts() - 1);
      const int other = (host + Random(1, world_.hosts() - 1)) % world_.hosts();
      std::set<int> side;
      for (int h = 0; h < world_.hosts(); ++h) {
        if (Random(0, 1) == 0) side.insert(h);
      }
      const int direction = Random(0, 3);
      const bool out = direction != 1;
      const bool in = direction != 2;
      const absl::Duration delay = Span(0.05, 8);
      const absl::Duration back = Span(0, 10);
      const int ill = Random(0, 8);
      absl::Duration until = duration;
      if (ill <= 2 && ills.cuts) {
        At(when, [this, host, other, side, duration, out, in, ill] {
          if (ill == 0) {
            CutOff({host}, duration, out, in);
          } else if (ill == 1) {
            CutOff(side, duration, out, in);
          } else {
            if (out) CutBetween(host, other, duration);
            if (in) CutBetween(other, host, duration);
          }
        });
      } else if (ill == 3 && ills.stalls) {
        At(when, [this, host, duration] { Stall(host, duration); });
      } else if (ill == 4 && ills.deaths) {
        At(when, [this, host] { Kill(host); });
        At(when + back, [this, host] { Replace(host); });
        until = back;
      } else if (ill == 5 && ills.deaths) {
        At(when, [this, host] { SetUp(host, false); });
        At(when + duration, [this, host] {
          SetUp(host, true);
          Replace(host);
        });
      } else if (ill == 6 && ills.delays) {
        At(when, [this, host, delay] { SetDelay(host, delay); });
        At(when + duration, [this, host] { SetDelay(host, absl::ZeroDuration()); });
      } else if (ill == 7 && ills.deaths) {
        At(when, [this, host] { Leave(host); });
        At(when + back + absl::Seconds(4), [this, host] { Replace(host); });
        until = back + absl::Seconds(4);
      } else {
        At(when, [this, host] { FailWorker(host); });
      }
      end_ = std::max(end_, world_.now() + when + until);
    }
  }

  void Replace(int host) {
    if (NodeOn(host) == nullptr) AddNode(host);
  }
  void ReplaceTheDead() {
    for (int host = 0; host < world_.hosts(); ++host) Replace(host);
  }

  // No job ends, and no launcher gives up, before its time.
  void CheckHealthy() {
    for (const auto& node : nodes_) {
      if (!node->failure().empty()) Fail(absl::StrCat(node->id(), " gives up"));
      if (node->closed().has_value()) Fail(absl::StrCat("the job has ended at ", node->id()));
    }
  }

  void OnAnnouncement(const std::string& where, const SimProcess& by, const Announcement& what) {
    std::string line = absl::StrCat("announced at ", where, ": ");
    if (what.kind == Kind::kRound) {
      absl::StrAppend(&line, "round ", what.round.number, ", restarts ", what.round.restarts,
                      " of");
      for (const NodeIdentity& member : what.round.members) absl::StrAppend(&line, " ", member.id);
    } else if (what.kind == Kind::kOver) {
      absl::StrAppend(&line, "over ", what.over, ": ", what.reason);
    } else if (what.kind == Kind::kMoved) {
      absl::StrAppend(&line, "moved to ", what.address);
    } else {
      absl::StrAppend(&line, "closed: ", what.reason);
    }
    Trace(line);
    const size_t slash = where.rfind('/');
    int number = 0;
    (void)absl::SimpleAtoi(where.substr(slash + 1), &number);
    auto& instance = instances_[where.substr(0, slash)];
    instance[number] = what;
    if (static_cast<int>(instance.size()) != number) Fail("announcements are not in order");
    if (what.kind != Kind::kRound) return;
    // A new instance begins with a round that was announced before.
    if (instance_of_.emplace(NameOf(what.round), where.substr(0, slash)).second) {
      CheckRound(what.round, by);
    }
  }

  static std::string NameOf(const Round& round) {
    std::string name = absl::StrCat(round.number);
    for (const NodeIdentity& member : round.members) absl::StrAppend(&name, " ", member.id);
    return name;
  }
  // Whether its end has been announced where the round was.
  bool IsOver(const Round& round) {
    const Announcement& last = instances_[instance_of_[NameOf(round)]].rbegin()->second;
    return last.kind != Kind::kRound || last.round.number != round.number;
  }

  // No round begins while another one runs, unless its nodes cannot be reached.
  void CheckRound(const Round& round, const SimProcess& by) {
    const int size = static_cast<int>(round.members.size());
    if (size < options_.nodes.min || size > options_.nodes.max) {
      Fail(absl::StrCat("a round of ", size, " nodes"));
    }
    for (const auto& node : nodes_) {
      const auto& other = node->running();
      if (!node->is_alive() || !other.has_value() || round.RankOf(node->id()) >= 0) continue;
      if (IsOver(*other)) continue;
      bool is_whole = true;
      bool is_reachable = true;
      for (const NodeIdentity& member : other->members) {
        const SimNode* const peer = Find(member.id);
        is_whole = is_whole && peer->is_alive() && peer->running().has_value() &&
                   peer->running()->number == other->number &&
                   peer->running()->members.size() == other->members.size();
        is_reachable = is_reachable &&
                       world_.now() - world_.ConnectedSince(by, peer->process()) >= kKnownWithin;
      }
      if (is_whole && is_reachable) {
        Fail(absl::StrCat("round ", round.number, " begins while round ", other->number,
                          " runs at ", node->id(), ", which can be reached"));
      }
    }
  }

  const SimNode* Find(const std::string& id) const {
    for (const auto& node : nodes_) {
      if (node->id() == id) return node.get();
    }
    return nullptr;
  }

  const uint32_t seed_;
  std::mt19937 random_;
  SimWorld world_;
  LaunchOptions options_;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  std::multimap<absl::Time, std::function<void()>> events_;
  absl::Time start_;
  absl::Time end_;
  std::map<std::string, std::map<int, Announcement>> instances_;
  std::map<std::string, std::string> instance_of_;  // By the name of a round.
  std::string log_;
  int failures_ = 0;
  bool has_failed_ = false;
};

// The schedules that the test runs: from the first seed on, before the second.
uint32_t first_seed = 0;
uint32_t end_seed = 1000;
constexpr int kMaxFailures = 3;  // That are printed.

// As a person would say it: hosts 0, 1, ... with a node each, n0, n1, ... in this order; the first
// serves the store and leads.
void StartInOrder(Simulation& simulation) {
  for (int host = 0; host < simulation.world().hosts(); ++host) {
    simulation.AddNode(host);
    simulation.RunFor(absl::Milliseconds(300));
  }
  simulation.RunFor(absl::Seconds(15));
  ASSERT_TRUE(simulation.IsOneRound());
}

void ExpectOneRoundSoon(Simulation& simulation) {
  simulation.AwaitOneRound();
  simulation.Check();
  simulation.Finish();
}

TEST(SimulationTest, ANodeThatWasCutOffForSevenSecondsComesBack) {
  for (int min = 1; min <= 3; ++min) {
    for (const int host : {0, 1, 2}) {
      for (const bool out : {true, false}) {
        SCOPED_TRACE(absl::StrCat("MIN ", min, ", host ", host, out ? ", both ways" : ", one way"));
        Simulation simulation(7, 3, min);
        StartInOrder(simulation);
        simulation.CutOff({host}, absl::Seconds(7), out);
        simulation.RunFor(absl::Seconds(7));
        ExpectOneRoundSoon(simulation);
      }
    }
  }
}

TEST(SimulationTest, BothHalvesOfACutNetworkGoOnWhereMinAllowsItAndAreOneJobAfterwards) {
  Simulation simulation(8, 4, 2);
  StartInOrder(simulation);
  simulation.CutOff({0, 1}, absl::Seconds(30));
  simulation.RunFor(absl::Seconds(29));
  for (const auto& node : simulation.nodes()) {
    ASSERT_TRUE(node->running().has_value()) << node->Describe();
    EXPECT_EQ(node->running()->members.size(), 2) << node->Describe();
  }
  simulation.RunFor(absl::Seconds(1));
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, NoHalfOfACutNetworkGoesOnWhereMinForbidsIt) {
  Simulation simulation(9, 4, 3);
  StartInOrder(simulation);
  simulation.CutOff({0, 1}, absl::Seconds(30));
  simulation.RunFor(absl::Seconds(29));
  for (const auto& node : simulation.nodes()) EXPECT_FALSE(node->running().has_value());
  simulation.RunFor(absl::Seconds(1));
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, WhenTheHostOfTheStoreDiesWhileASurvivorIsStalledTheJobStaysOne) {
  for (int min = 1; min <= 2; ++min) {
    for (const int stalled : {1, 2}) {
      Simulation simulation(10, 3, min);
      StartInOrder(simulation);
      simulation.Stall(stalled, absl::Milliseconds(3500));
      simulation.Kill(0);
      simulation.RunFor(absl::Milliseconds(3500));
      ExpectOneRoundSoon(simulation);
    }
  }
}

TEST(SimulationTest, ANodeThatIsDoneEndsNeitherTheJobOfLaterRanksNorWaitsForThoseThatHaveEnded) {
  Simulation simulation(11, 3, 2);
  StartInOrder(simulation);
  simulation.NodeOn(1)->FinishWorkers();
  simulation.RunFor(absl::Seconds(1));
  simulation.Kill(0);
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, ANewcomerWaitsForASlowStore) {
  Simulation simulation(12, 3, 1);
  StartInOrder(simulation);
  simulation.SetDelay(0, absl::Seconds(4));
  simulation.Kill(2);
  simulation.AddNode(2);
  simulation.Stall(0, absl::Seconds(11));
  simulation.RunFor(absl::Seconds(15));
  simulation.SetDelay(0, absl::ZeroDuration());
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, AFailureCountsThoughItsRoundsMembersCouldNotBeReachedMeanwhile) {
  Simulation simulation(13, 4, 4);
  StartInOrder(simulation);
  simulation.FailWorker(1);
  simulation.RunFor(absl::Milliseconds(60));
  simulation.CutOff({2, 3}, absl::Seconds(4));
  simulation.RunFor(absl::Seconds(4));
  ExpectOneRoundSoon(simulation);
  EXPECT_EQ(simulation.nodes()[0]->rounds().back().restarts, 1);
}

TEST(SimulationTest, AFailureCountsThoughTheStoreWasLostBeforeAnybodyReadOfIt) {
  Simulation simulation(66, 3, 3);
  StartInOrder(simulation);
  simulation.Kill(0);
  simulation.RunFor(absl::Seconds(8));
  simulation.AddNode(0);
  simulation.RunFor(absl::Seconds(8));
  ASSERT_TRUE(simulation.IsOneRound());
  const int restarts = simulation.NodeOn(1)->running()->restarts;
  // The store's host is stopped until node 0, whose address is lower, has opened another store.
  simulation.Stall(1, absl::Seconds(9));
  simulation.FailWorker(2);
  simulation.RunFor(absl::Seconds(9));
  ExpectOneRoundSoon(simulation);
  EXPECT_EQ(simulation.nodes()[1]->rounds().back().restarts, restarts + 1);
}

TEST(SimulationTest, NewcomersGoOnWhenAllMembersOfTheLastRoundHaveEnded) {
  Simulation simulation(14, 2, 2);
  StartInOrder(simulation);
  simulation.Kill(0);
  simulation.RunFor(absl::Milliseconds(700));
  simulation.AddNode(0);
  simulation.RunFor(absl::Milliseconds(900));
  simulation.SetUp(1, false);
  simulation.RunFor(absl::Seconds(8));
  simulation.SetUp(1, true);
  simulation.AddNode(1);
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, AHostWhoseOwnStoreIsSlowLosesNobodyWhoMeetsThere) {
  for (uint32_t seed = 15; seed < 25; ++seed) {
    Simulation simulation(seed, 2, 2);
    StartInOrder(simulation);
    simulation.SetUp(0, false);
    simulation.RunFor(absl::Seconds(6));
    simulation.SetUp(0, true);
    simulation.AddNode(0);
    simulation.RunFor(absl::Seconds(5));
    simulation.SetDelay(1, absl::Seconds(7));
    simulation.RunFor(absl::Seconds(12));
    simulation.SetDelay(1, absl::ZeroDuration());
    ExpectOneRoundSoon(simulation);
  }
}

TEST(SimulationTest, ALateWriteOfWhereANodeIsHidesItsStoreFromNobody) {
  for (uint32_t seed = 25; seed < 35; ++seed) {
    Simulation simulation(seed, 2, 1);
    StartInOrder(simulation);
    simulation.SetDelay(1, absl::Seconds(12));
    simulation.RunFor(absl::Milliseconds(500));
    simulation.Kill(0);
    simulation.RunFor(absl::Seconds(6));
    simulation.SetDelay(1, absl::ZeroDuration());
    simulation.RunFor(absl::Seconds(3));
    simulation.AddNode(0);
    ExpectOneRoundSoon(simulation);
  }
}

// The store's host asks those that were lost where the job is. If their stores are slow, it still
// gives signs of life.
TEST(SimulationTest, AHostThatAsksSlowNodesIsNotLost) {
  for (uint32_t seed = 35; seed < 45; ++seed) {
    Simulation simulation(seed, 4, 1);
    StartInOrder(simulation);
    simulation.CutOff({2, 3}, absl::Seconds(8));
    simulation.RunFor(absl::Seconds(8));
    simulation.SetDelay(2, absl::Seconds(20));
    simulation.SetDelay(3, absl::Seconds(20));
    simulation.RunFor(absl::Seconds(15));
    EXPECT_EQ(simulation.log().find("node 10.0.0.0 (host host0, pid 0) is lost"), std::string::npos)
        << simulation.log();
    simulation.SetDelay(2, absl::ZeroDuration());
    simulation.SetDelay(3, absl::ZeroDuration());
    ExpectOneRoundSoon(simulation);
  }
}

// The survivors' store is slow, so that its host does not find those who come to the endpoint.
TEST(SimulationTest, SurvivorsAskTheEndpointBeforeTheyAnnounceARound) {
  for (uint32_t seed = 45; seed < 65; ++seed) {
    Simulation simulation(seed, 4, 1);
    StartInOrder(simulation);
    simulation.Kill(0);
    simulation.RunFor(absl::Milliseconds(100));
    simulation.AddNode(0);
    simulation.SetDelay(1, absl::Seconds(4));
    simulation.RunFor(absl::Seconds(30));
    simulation.SetDelay(1, absl::ZeroDuration());
    ExpectOneRoundSoon(simulation);
  }
}

TEST(SimulationTest, NewcomersFindTheJobWhenTheLauncherThatServedTheEndpointHasLeftItToAnother) {
  Simulation simulation(65, 3, 1);
  StartInOrder(simulation);
  simulation.Leave(0);
  simulation.AddNode(0);  // Meets with the others before that has left.
  simulation.RunFor(absl::Seconds(15));
  ASSERT_TRUE(simulation.IsOneRound());
  simulation.Kill(2);
  simulation.AddNode(2);
  ExpectOneRoundSoon(simulation);
}

TEST(SimulationTest, ANewcomerThatIsSentOnToWhereItCannotGoSaysSo) {
  Simulation simulation(67, 3, 1);
  StartInOrder(simulation);
  simulation.Kill(0);
  simulation.RunFor(absl::Seconds(8));
  simulation.AddNode(0);
  simulation.RunFor(absl::Seconds(8));
  ASSERT_TRUE(simulation.IsOneRound());  // In the store of node 1.
  simulation.Kill(2);
  simulation.CutBetween(1, 2, absl::Seconds(90));
  simulation.CutBetween(2, 1, absl::Seconds(90));
  const SimNode& newcomer = simulation.AddNode(2);
  simulation.RunFor(absl::Seconds(50));
  EXPECT_TRUE(newcomer.is_alive());
  simulation.RunFor(absl::Seconds(40));
  EXPECT_NE(newcomer.failure().find("the job goes on at 10.0.0.1:"), std::string::npos)
      << newcomer.Describe();
  EXPECT_TRUE(simulation.IsOneRound());
}

// Seeds whose schedules failed once.
TEST(SimulationTest, SchedulesThatFailedOnceDoSoNoMore) {
  for (const uint32_t seed : {38, 99, 172, 277, 2487, 3124, 3365, 4020, 4297, 5055, 5251, 10741,
                              10750, 20491, 21293, 23062}) {
    Simulation(seed).Run({});
  }
}

TEST(SimulationTest, OneSeedIsOneHistory) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    Simulation first(seed);
    Simulation second(seed);
    first.Run({});
    second.Run({});
    EXPECT_EQ(first.log(), second.log());
  }
}

TEST(SimulationTest, WhateverHappensOneHistoryRemains) {
  absl::Duration longest;
  int failed = 0;
  const absl::Time began = absl::Now();
  for (uint32_t seed = first_seed; seed < end_seed && failed < kMaxFailures; ++seed) {
    Simulation simulation(seed);
    longest = std::max(longest, simulation.Run({}));
    failed += simulation.has_failed() ? 1 : 0;
  }
  std::printf("%u schedules in %.1f s; in one round within %s\n", end_seed - first_seed,
              absl::ToDoubleSeconds(absl::Now() - began), absl::FormatDuration(longest).c_str());
}

// Without cuts and stalls there are never two rounds, and each failure is a restart.
TEST(SimulationTest, WhereOnlyWorkersFailEachFailureIsARestart) {
  Simulation::Ills none;
  none.cuts = none.stalls = none.deaths = none.delays = false;
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Simulation simulation(seed);
    simulation.Run(none);
    if (simulation.has_failed()) break;
    const Round& last = simulation.nodes()[0]->rounds().back();
    EXPECT_EQ(last.restarts, last.number - 1) << "seed " << seed;
    EXPECT_LE(last.restarts, simulation.failures()) << "seed " << seed;
    EXPECT_EQ(last.restarts > 0, simulation.failures() > 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace syncline::launch

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1) {
    const std::string argument = argv[1];
    const std::vector<std::string> seeds = absl::StrSplit(argument.substr(8), ':');
    if (argument.substr(0, 8) != "--seeds=" || seeds.size() != 2 ||
        !absl::SimpleAtoi(seeds[0], &syncline::launch::first_seed) ||
        !absl::SimpleAtoi(seeds[1], &syncline::launch::end_seed)) {
      std::fprintf(stderr, "usage: %s [--seeds=BEGIN:END]\n", argv[0]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
