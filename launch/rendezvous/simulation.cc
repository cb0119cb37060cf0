#include "launch/rendezvous/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "launch/rendezvous/records.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr int kEndpointPort = 29400;
constexpr absl::Duration kLateness = absl::Seconds(20);  // Of what the network delivers in the end.

std::string HostAddress(int host) { return absl::StrCat("10.0.0.", host); }
int HostOfAddress(const std::string& address) {
  int host = -1;
  (void)absl::SimpleAtoi(address.substr(7, address.find(':') - 7), &host);
  return host;
}

// A client's connection to a server. A call's request and its answer are packets: they wait while
// they cannot pass, and a request that its caller has given up may still take effect.
class SimStore final : public Store {
 public:
  SimStore(SimWorld& world, std::shared_ptr<SimProcess> client, std::shared_ptr<SimServer> server,
           std::string address, absl::Duration timeout)
      : world_(world),
        client_(std::move(client)),
        server_(std::move(server)),
        address_(std::move(address)),
        timeout_(timeout) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return MultiSet({std::string(key)}, {std::string(value)});
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    SYNCLINE_ASSIGN_OR_RETURN(auto values, MultiGet({std::string(key)}, timeout));
    return values[0];
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    return Call<absl::StatusOr<int64_t>>(
        [key = std::string(key), amount](HashStore& store) { return store.Add(key, amount); });
  }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override {
    return Call<absl::StatusOr<CompareSetResult>>(
        [key = std::string(key), expected = std::string(expected), desired = std::string(desired),
         world = &world_, client = client_,
         address = address_](HashStore& store) -> absl::StatusOr<CompareSetResult> {
          auto result = store.CompareSet(key, expected, desired);
          const size_t notice = key.find("notice/");
          if (result.ok() && result->swapped && notice != std::string::npos) {
            world->Changed();
            world->on_announcement(absl::StrCat(address, "/", key), *client,
                                   *ParseAnnouncement(desired));
          }
          return result;
        });
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override {
    return MultiGet(keys, timeout).status();
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override {
    return Call<absl::StatusOr<bool>>(
        [keys = Copy(keys)](HashStore& store) { return store.Check(keys); });
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override {
    return Call<absl::StatusOr<bool>>(
        [key = std::string(key)](HashStore& store) { return store.Delete(key); });
  }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override {
    return Call<absl::StatusOr<std::vector<std::string>>>(
        [prefix = std::string(prefix)](HashStore& store) { return store.Keys(prefix); });
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    return Call<absl::Status>([key = std::string(key), value = std::string(value)](
                                  HashStore& store) { return store.Append(key, value); });
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override {
    const std::vector<std::string> all = Copy(keys);
    const absl::Time deadline = world_.now() + timeout;
    SYNCLINE_RETURN_IF_ERROR(Send(deadline));
    const auto may_answer = [&] {
      return IsSettled() || (!server_->owner->stopped && *server_->store.Check(all));
    };
    const bool in_time = world_.fibers.Await(may_answer, deadline);
    if (!IsSettled() && !in_time) return TimeoutError("not set");
    if (IsSettled()) return Lost();
    auto values = server_->store.MultiGet(all, absl::ZeroDuration());
    SYNCLINE_RETURN_IF_ERROR(Receive(deadline));
    return values;
  }
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override {
    return Call<absl::Status>([keys = Copy(keys), values = Copy(values)](HashStore& store) {
      return store.MultiSet(keys, values);
    });
  }
  absl::Duration timeout() const override { return timeout_; }
  std::string ToString() const override { return absl::StrCat("sim://", address_); }

 private:
  static std::vector<std::string> Copy(absl::Span<const std::string> strings) {
    return {strings.begin(), strings.end()};
  }

  int here() const { return client_->host; }
  int there() const { return server_->owner->host; }
  // One of the processes has ended, so that there will be no answer.
  bool IsSettled() const { return !client_->alive || !server_->serves(); }
  static absl::Status Lost() { return NetworkError("the connection is lost"); }

  absl::Status Send(absl::Time deadline) {
    if (!client_->alive) return Lost();
    world_.fibers.Sleep(world_.Latency());
    const auto arrives = [this] {
      return !client_->alive || (world_.Passes(here(), there()) && !server_->owner->stopped &&
                                 (server_->serves() || world_.Passes(there(), here())));
    };
    if (!world_.fibers.Await(arrives, deadline)) {
      return TimeoutError("the server does not answer");
    }
    return IsSettled() ? Lost() : absl::OkStatus();
  }

  absl::Status Receive(absl::Time deadline) {
    const auto arrives = [this] {
      return !client_->alive ||
             (world_.Passes(there(), here()) && (!server_->serves() || !server_->owner->stopped));
    };
    if (!world_.fibers.Await(arrives, deadline)) return TimeoutError("the answer is lost");
    if (IsSettled()) return Lost();
    world_.fibers.Sleep(world_.Latency());
    return absl::OkStatus();
  }

  template <typename Result, typename Operation>
  Result Call(Operation operation) {
    const absl::Time deadline = world_.now() + timeout_;
    if (const absl::Status sent = Send(deadline); !sent.ok()) {
      if (KindOf(sent) == ErrorKind::kTimeout) DeliverLate(std::move(operation));
      return sent;
    }
    if (const absl::Duration delay = world_.DelayAt(there()); delay > absl::ZeroDuration()) {
      const absl::Time done = world_.now() + delay;
      if (done > deadline) {
        world_.fibers.Spawn([server = server_, world = &world_, operation, delay]() {
          world->fibers.Sleep(delay);
          if (server->serves()) operation(server->store).ok();
        });
        world_.fibers.Sleep(deadline - world_.now());
        return TimeoutError("the server is slow");
      }
      world_.fibers.Sleep(delay);
      if (IsSettled()) return Lost();
    }
    Result result = operation(server_->store);
    SYNCLINE_RETURN_IF_ERROR(Receive(deadline));
    return result;
  }

  // What was sent is on its way until the network drops it.
  template <typename Operation>
  void DeliverLate(Operation operation) {
    world_.fibers.Spawn([world = &world_, server = server_, here = here(), operation]() {
      const auto arrives = [&] {
        return !server->serves() ||
               (world->Passes(here, server->owner->host) && !server->owner->stopped);
      };
      if (!world->fibers.Await(arrives, world->now() + kLateness)) return;
      world->fibers.Sleep(world->Latency());
      if (server->serves()) operation(server->store).ok();
    });
  }

  SimWorld& world_;
  const std::shared_ptr<SimProcess> client_;
  const std::shared_ptr<SimServer> server_;
  const std::string address_;
  const absl::Duration timeout_;
};

}  // namespace

SimWorld::SimWorld(int hosts, uint32_t seed)
    : random_(seed),
      is_up_(hosts, true),
      up_since_(hosts, absl::InfinitePast()),
      delays_(hosts),
      delay_since_(hosts, absl::InfinitePast()),
      paths_(hosts, std::vector<Path>(hosts)) {}

void SimWorld::Cut(int from, int to) {
  ++paths_[from][to].cuts;
  paths_[from][to].since = now();
}

void SimWorld::Heal(int from, int to) {
  --paths_[from][to].cuts;
  paths_[from][to].since = now();
  Changed();
}

void SimWorld::SetUp(int host, bool up) {
  is_up_[host] = up;
  up_since_[host] = now();
  Changed();
}

void SimWorld::SetDelay(int host, absl::Duration delay) {
  delays_[host] = delay;
  delay_since_[host] = now();
}

bool SimWorld::Passes(int from, int to) const {
  return is_up_[from] && is_up_[to] && (from == to || paths_[from][to].cuts == 0);
}

absl::Time SimWorld::ConnectedSince(const SimProcess& a, const SimProcess& b) const {
  if (!a.alive || !b.alive || a.stopped || b.stopped) return absl::InfiniteFuture();
  if (!Passes(a.host, b.host) || !Passes(b.host, a.host)) return absl::InfiniteFuture();
  if (delays_[a.host] > absl::ZeroDuration() || delays_[b.host] > absl::ZeroDuration()) {
    return absl::InfiniteFuture();
  }
  absl::Time since = std::max(paths_[a.host][b.host].since, paths_[b.host][a.host].since);
  for (const SimProcess* process : {&a, &b}) {
    since = std::max({since, up_since_[process->host], delay_since_[process->host]});
    if (const auto touched = touched_.find(process); touched != touched_.end()) {
      since = std::max(since, touched->second);
    }
  }
  return since;
}

absl::Duration SimWorld::Latency() {
  return absl::Microseconds(std::uniform_int_distribution<int>(100, 2000)(random_));
}

absl::Duration SimWorld::DelayAt(int host) {
  if (delays_[host] == absl::ZeroDuration()) return absl::ZeroDuration();
  return delays_[host] * std::uniform_real_distribution<double>(0, 1)(random_);
}

void SimWorld::Touch(const SimProcess& process) {
  touched_[&process] = now();
  Changed();
}

class SimNode::NodeClock final : public Clock {
 public:
  NodeClock(const SimWorld& world, absl::Duration offset) : world_(world), offset_(offset) {}
  absl::Time Now() const override { return world_.now() + offset_; }

 private:
  const SimWorld& world_;
  const absl::Duration offset_;
};

class SimNode::Network final : public RendezvousNetwork {
 public:
  Network(SimWorld& world, std::shared_ptr<SimProcess> process, absl::Duration call_timeout)
      : world_(world), process_(std::move(process)), call_timeout_(call_timeout) {}

  std::string endpoint() const override { return absl::StrCat(HostAddress(0), ":", kEndpointPort); }
  bool is_hosted_by_nodes() const override { return true; }

  absl::StatusOr<RendezvousStore> Open(absl::Duration timeout,
                                       const std::function<bool()>& cancelled) override {
    const absl::Time deadline = world_.now() + timeout;
    RendezvousStore target;
    target.address = endpoint();
    for (;;) {
      if (target.server == nullptr) target.server = ServeEndpoint();
      const ConnectResult connected = Connect(endpoint(), absl::Seconds(1), call_timeout_);
      if (connected.store != nullptr) {
        target.store = connected.store;
        return target;
      }
      if (cancelled() || world_.now() >= deadline) return connected.status;
      world_.fibers.Sleep(absl::Milliseconds(100));
    }
  }

  std::shared_ptr<void> ServeEndpoint() override {
    if (process_->host != 0 || Find(endpoint()) != nullptr) return nullptr;
    auto server = std::make_shared<SimServer>();
    server->owner = process_;
    world_.servers[endpoint()] = server;
    return std::shared_ptr<void>(server.get(), [server](void*) { server->is_closed = true; });
  }

  ConnectResult Connect(const std::string& address, absl::Duration timeout,
                        absl::Duration call_timeout) override {
    const auto is_decided = [&] {
      const int host = HostOfAddress(address);
      if (!world_.Passes(process_->host, host) || !world_.Passes(host, process_->host)) {
        return false;
      }
      const auto server = Find(address);
      return server == nullptr || !server->owner->stopped;
    };
    const auto is_over = [&] { return !process_->alive || is_decided(); };
    world_.fibers.Sleep(2 * world_.Latency());
    world_.fibers.Await(is_over, world_.now() + timeout);
    ConnectResult connected;
    connected.status = NetworkError(absl::StrCat(address, " cannot be reached"));
    if (!process_->alive || !is_decided()) return connected;
    const auto server = Find(address);
    connected.is_refused = server == nullptr;
    if (server == nullptr) return connected;
    connected.status = absl::OkStatus();
    connected.store = std::make_shared<SimStore>(world_, process_, server, address,
                                                 std::min(call_timeout, call_timeout_));
    return connected;
  }

  void ForAll(size_t count, const std::function<void(size_t)>& work) override {
    size_t left = count;
    const auto take = [&](size_t i) {
      work(i);
      --left;
      world_.Changed();
    };
    for (size_t i = 1; i < count; ++i) {
      world_.fibers.Spawn([&take, i] { take(i); }, &process_->stopped);
    }
    if (count > 0) take(0);
    world_.fibers.Await([&] { return left == 0; }, absl::InfiniteFuture());
  }

 private:
  std::shared_ptr<SimServer> Find(const std::string& address) const {
    const auto found = world_.servers.find(address);
    if (found == world_.servers.end()) return nullptr;
    auto server = found->second.lock();
    return server != nullptr && server->serves() ? server : nullptr;
  }

  SimWorld& world_;
  const std::shared_ptr<SimProcess> process_;
  const absl::Duration call_timeout_;
};

SimNode::SimNode(SimWorld& world, const LaunchOptions& options, int host, std::string id)
    : world_(world),
      options_(options),
      process_(std::make_shared<SimProcess>()),
      server_(std::make_shared<SimServer>()) {
  process_->host = host;
  server_->owner = process_;
  identity_.id = std::move(id);
  identity_.host = absl::StrCat("host", host);
  identity_.address = HostAddress(host);
  for (int port = 40000;; ++port) {
    identity_.store = absl::StrCat(identity_.address, ":", port);
    if (world_.servers.emplace(identity_.store, server_).second) break;
  }
  world_.Touch(*process_);
  clock_ = std::make_unique<NodeClock>(
      world_, absl::Seconds(static_cast<double>(std::hash<std::string>()(identity_.id) % 100000)));
  network_ = std::make_unique<Network>(world_, process_, absl::Seconds(5));
  session_ = std::make_unique<RendezvousSession>(
      options_, identity_, *network_, *clock_,
      [this](RendezvousEvent event) {
        events_.push_back(std::move(event));
        world_.Changed();
      },
      [this] { return !process_->alive || leaves_; });
  world_.fibers.Spawn([this] { RunSteps(); }, &process_->stopped);
  world_.fibers.Spawn([this] { WatchAnnouncements(); }, &process_->stopped);
  world_.fibers.Spawn([this] { RunAgent(); }, &process_->stopped);
}

SimNode::~SimNode() = default;

void SimNode::Stop() {
  process_->stopped = true;
  world_.Touch(*process_);
}

void SimNode::Continue() {
  process_->stopped = false;
  world_.Touch(*process_);
}

void SimNode::Kill() {
  process_->alive = false;
  process_->stopped = false;
  running_.reset();
  world_.Touch(*process_);
}

void SimNode::FailWorker() {
  must_fail_ = true;
  world_.Changed();
}

void SimNode::FinishWorkers() {
  must_finish_ = true;
  world_.Changed();
}

void SimNode::Leave() {
  is_leaving_ = true;
  world_.Changed();
}

std::string SimNode::Describe() const {
  std::string text =
      absl::StrCat(id(), " at ", identity_.store, process_->alive ? "" : " dead",
                   process_->stopped ? " stopped" : "", is_leaving_ ? " leaving" : "",
                   is_done_ ? " done" : "", has_left_ ? " departed" : "");
  if (running_.has_value()) {
    absl::StrAppend(&text, " runs round ", running_->number, " of");
    for (const NodeIdentity& member : running_->members) absl::StrAppend(&text, " ", member.id);
  }
  if (closed_.has_value()) absl::StrAppend(&text, " closed: ", closed_->reason);
  if (!failure_.empty()) absl::StrAppend(&text, " failed: ", failure_);
  absl::StrAppend(&text, "; ", session_->Describe());
  return text;
}

void SimNode::Command(Action action) {
  commands_.push_back(std::move(action));
  world_.Changed();
}

void SimNode::RunSteps() {
  absl::Status status = session_->Open();
  while (status.ok() && process_->alive) {
    while (!commands_.empty()) {
      const Action action = std::move(commands_.front());
      commands_.pop_front();
      action(session_->rendezvous());
    }
    status = session_->Step();
    if (!status.ok() || session_->has_ended()) break;
    if (leaves_ && commands_.empty()) {
      if (is_leaving_ && !closed_.has_value()) {
        session_->Leave("SIGTERM");
        break;
      }
      session_->Deregister();
      while (process_->alive && session_->MustKeepServing()) {
        world_.fibers.Sleep(absl::Milliseconds(50));
      }
      break;
    }
    watched_key_ = session_->watched_key();
    key_changed_ = false;
    world_.Changed();
    const auto has_work = [this] {
      return !process_->alive || key_changed_ || leaves_ || !commands_.empty();
    };
    const absl::Duration wait = session_->next() - clock_->Now();
    world_.fibers.Await(has_work,
                        world_.now() + std::clamp(wait, absl::Milliseconds(1), absl::Seconds(1)));
  }
  if (!status.ok() && process_->alive && !leaves_) failure_ = std::string(status.message());
  watched_key_ = {};
  has_left_ = true;
  running_.reset();
  process_->alive = false;  // A launcher that has departed ends.
  world_.Touch(*process_);
}

void SimNode::WatchAnnouncements() {
  while (process_->alive) {
    const auto is_needed = [this] {
      return !process_->alive || (watched_key_.store != nullptr && !key_changed_);
    };
    world_.fibers.Await(is_needed, absl::InfiniteFuture());
    if (!process_->alive) return;
    const RendezvousSession::WatchedKey watched_key = watched_key_;
    const absl::Status came = watched_key.store->Wait({watched_key.key}, absl::Milliseconds(500));
    if (!came.ok() && KindOf(came) == ErrorKind::kTimeout) continue;
    if (watched_key_.store == watched_key.store && watched_key_.key == watched_key.key) {
      key_changed_ = true;
      watched_key_.store = nullptr;
      world_.Changed();
    }
  }
}

void SimNode::Pause(absl::Duration duration) {
  world_.fibers.Await([this] { return !process_->alive; }, world_.now() + duration);
}

void SimNode::StopWorkers() {
  if (!running_.has_value()) return;
  Pause(600 * world_.Latency());  // 0.06 to 1.2 s.
  running_.reset();
  is_done_ = false;
  Command([note = std::exchange(failing_, std::nullopt)](Rendezvous& rendezvous) {
    rendezvous.Wait(note);
  });
}

void SimNode::Handle(const RendezvousEvent& event) {
  if (event.kind != RendezvousEvent::Kind::kAnnouncement) return;
  const Announcement& announcement = event.announcement;
  switch (announcement.kind) {
    case Announcement::Kind::kRound:
      if (announcement.round.RankOf(identity_.id) < 0) {
        StopWorkers();
        break;
      }
      running_ = announcement.round;
      rounds_.push_back(*running_);
      Command([round = *running_](Rendezvous& rendezvous) { rendezvous.Run(round); });
      break;
    case Announcement::Kind::kOver:
      if (running_.has_value() && running_->number == announcement.over) StopWorkers();
      break;
    case Announcement::Kind::kClosed:
      closed_ = announcement;
      leaves_ = true;
      break;
    case Announcement::Kind::kMoved:
      break;
  }
}

void SimNode::RunAgent() {
  Command([](Rendezvous& rendezvous) { rendezvous.Wait(std::nullopt); });
  while (process_->alive) {
    const auto has_work = [this] {
      const bool acts = must_fail_ || (must_finish_ && !is_done_);
      return !process_->alive || !events_.empty() || (is_leaving_ && !leaves_) ||
             (running_.has_value() && acts);
    };
    world_.fibers.Await(has_work, absl::InfiniteFuture());
    Pause(10 * world_.Latency());
    if (!process_->alive) return;
    if (!events_.empty()) {
      const RendezvousEvent event = std::move(events_.front());
      events_.pop_front();
      Handle(event);
      continue;
    }
    if (is_leaving_ && !leaves_) {
      Pause(300 * world_.Latency());
      running_.reset();
      leaves_ = true;
      world_.Changed();
      continue;
    }
    if (!running_.has_value()) continue;
    if (std::exchange(must_fail_, false)) {
      if (is_done_) continue;
      FailureNote note;
      note.summary = absl::StrCat("a worker of ", id(), " failed");
      failing_ = note;
      Command([note](Rendezvous& rendezvous) { rendezvous.Fail(note); });
      StopWorkers();
    } else if (must_finish_ && !is_done_) {
      is_done_ = true;
      Command([](Rendezvous& rendezvous) { rendezvous.Finish(); });
    }
  }
}

}  // namespace syncline::launch
