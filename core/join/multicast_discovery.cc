#include "core/join/multicast_discovery.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/hmac.h"
#include "core/base/host.h"
#include "core/base/rank_ranges.h"
#include "core/join/multicast_announcement.h"
#include "core/join/multicast_socket.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

// A process that has not been heard for so long counts as gone.
constexpr absl::Duration kStaleAfter = absl::Seconds(2);
// A conflict that lasts longer is not with the former process of a rank that was restarted.
constexpr absl::Duration kConflictGracePeriod = absl::Seconds(3);
// How long to try to connect to a server: at most, and at first if its view was never this
// process's own. Any process may announce any address, and while this one tries to connect the
// others do not hear it.
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
constexpr absl::Duration kUnverifiedConnectTimeout = absl::Milliseconds(200);
// After a try that failed, unverified servers are left alone for so many times its length.
constexpr int kBackoffFactor = 4;
// How many of its own views a process remembers, and how many servers it knows.
constexpr size_t kMaxViews = 1000;
constexpr size_t kMaxServers = 100;

// In the store: a key for each client that has connected, by id.
constexpr absl::string_view kClientPrefix = "multicast/client/";

// For messages: what came over the network may be any bytes.
std::string Printable(absl::string_view text) { return absl::CHexEscape(text.substr(0, 300)); }

// One process's part in the discovery: all that it has heard of the others.
class MulticastDiscovery {
 public:
  MulticastDiscovery(const MulticastOptions& options, MulticastSocket socket,
                     const Deadline& deadline)
      : options_(options), socket_(std::move(socket)), deadline_(deadline) {
    self_.job = options.job;
    self_.size = options.size;
    self_.rank = options.rank;
    self_.id = base::RandomBytes(kProcessIdBytes);
    // Serve compares it with those of the others. An identity that is not known equals no other.
    self_.peer = base::IdentifyThisProcess().value_or(base::ThisPeer());
  }

  absl::StatusOr<OpenedStore> Run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Candidate {
    MulticastAnnouncement announcement;
    std::string source;
    absl::Duration when;  // On the clock of Now().
  };

  absl::Duration Now() const { return absl::FromChrono(Clock::now() - began_); }
  // Many processes announce themselves less often, so that the network does not drown.
  absl::Duration Interval() const { return absl::Milliseconds(std::clamp(options_.size, 50, 500)); }

  // Announces this process if that is due, and receives datagrams until it is due again.
  void AnnounceAndReceive();
  void HandleDatagram(const MulticastSocket::Datagram& datagram);
  void DropStale();

  // The lowest process serves.
  static std::pair<int, std::string> Order(const MulticastAnnouncement& a) {
    return {a.rank < 0 ? std::numeric_limits<int>::max() : a.rank, a.id};
  }
  std::string View() const;
  bool AllAgree() const;
  bool IsLowest() const;
  // The others' name for this job: "job 'x'".
  std::string Job() const;

  // A process that announces that it serves the store.
  struct Server {
    MulticastAnnouncement announcement;
    absl::Duration heard;
    absl::Duration timeout = kUnverifiedConnectTimeout;  // For the next try to connect.
    absl::Duration next_try;
  };
  // Whether its view was this process's own at some time: then it is a process of this job that has
  // heard this one.
  bool IsVerified(const Server& server) const {
    return own_views_.count(server.announcement.view) != 0;
  }
  // Connects to one of the servers if a try is due; nothing if none could be reached.
  std::optional<OpenedStore> TryServers();
  // Why the processes that are heard now cannot be one world.
  absl::Status Conflict() const;

  absl::StatusOr<OpenedStore> Serve();
  absl::Status AwaitClients(Store& store);
  absl::StatusOr<OpenedStore> Connect(const MulticastAnnouncement& server, absl::Duration timeout);

  std::string Describe(const Candidate& candidate) const;
  std::string Others() const;             // For messages: who has been heard.
  std::vector<int> MissingRanks() const;  // Empty if some rank is to be assigned.
  absl::Status TimeoutStatus() const;

  const Clock::time_point began_ = Clock::now();
  const MulticastOptions& options_;
  const MulticastSocket socket_;
  const Deadline& deadline_;
  MulticastAnnouncement self_;
  // By id, of this job, without this process: those that wait as this one does, and those that
  // serve. A process is in one of the two.
  std::map<std::string, Candidate> candidates_;
  std::map<std::string, Server> servers_;
  std::set<std::string> own_views_;  // All that have been announced.
  absl::Duration next_unverified_try_;
  std::set<std::string> other_jobs_;
  int64_t ignored_ = 0;  // Datagrams that were no announcement.
  std::string last_ignored_;
  absl::Status last_error_;
  absl::Duration next_announcement_;
  std::optional<absl::Duration> conflict_since_;
};

absl::StatusOr<OpenedStore> MulticastDiscovery::Run() {
  while (true) {
    self_.view = View();
    if (own_views_.size() >= kMaxViews) own_views_.clear();
    own_views_.insert(self_.view);
    AnnounceAndReceive();
    DropStale();
    if (std::optional<OpenedStore> store = TryServers()) return *std::move(store);
    const absl::Status conflict = Conflict();
    if (conflict.ok()) {
      conflict_since_.reset();
      if (AllAgree() && IsLowest()) return Serve();
    } else {
      if (!conflict_since_.has_value()) conflict_since_ = Now();
      if (Now() - *conflict_since_ > kConflictGracePeriod) return conflict;
    }
    if (deadline_.Expired()) return conflict.ok() ? TimeoutStatus() : conflict;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
}

void MulticastDiscovery::AnnounceAndReceive() {
  if (Now() >= next_announcement_) {
    absl::Status sent = socket_.Send(self_.Seal(options_.secret, options_.is_encrypted));
    if (!sent.ok()) last_error_ = sent;  // A network may come up yet.
    next_announcement_ = Now() + Interval();
  }
  const absl::Duration pause =
      std::min({next_announcement_ - Now(), deadline_.Remaining(), kInterruptInterval});
  auto datagram = socket_.Receive(std::max(pause, absl::ZeroDuration()));
  // Handles all datagrams that have queued up: one for each call would lag behind many senders.
  while (datagram.ok() && datagram->has_value()) {
    HandleDatagram(**datagram);
    if (Now() >= next_announcement_) return;
    datagram = socket_.Receive(absl::ZeroDuration());
  }
  if (!datagram.ok()) last_error_ = datagram.status();
}

void MulticastDiscovery::HandleDatagram(const MulticastSocket::Datagram& datagram) {
  auto announcement =
      MulticastAnnouncement::Open(datagram.bytes, options_.secret, options_.is_encrypted);
  if (!announcement.ok()) {
    ++ignored_;
    last_ignored_ =
        absl::StrCat("the last from ", datagram.source, ": ", announcement.status().message());
    return;
  }
  if (announcement->job != options_.job) {
    if (other_jobs_.size() < 10) other_jobs_.insert(Printable(announcement->job));
    return;
  }
  if (announcement->id == self_.id) return;
  const std::string id = announcement->id;
  // Both maps are bounded: a process that floods the group must not fill the memory.
  if (!announcement->store.empty() && announcement->size == options_.size) {
    if (servers_.size() >= kMaxServers && servers_.count(id) == 0) return;
    candidates_.erase(id);
    Server& server = servers_[id];
    server.announcement = *std::move(announcement);
    server.heard = Now();
    return;
  }
  if (candidates_.size() > 2 * static_cast<size_t>(options_.size) + 100 &&
      candidates_.count(id) == 0)
    return;
  servers_.erase(id);
  candidates_[id] = {*std::move(announcement), datagram.source, Now()};
}

void MulticastDiscovery::DropStale() {
  const absl::Duration limit = std::max(kStaleAfter, 4 * Interval());
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    it = Now() - it->second.when > limit ? candidates_.erase(it) : std::next(it);
  }
  // Servers are kept longer: one that was dropped would be tried as if for the first time.
  for (auto it = servers_.begin(); it != servers_.end();) {
    const bool is_gone = Now() - it->second.heard > 10 * limit;
    it = is_gone ? servers_.erase(it) : std::next(it);
  }
}

std::string MulticastDiscovery::View() const {
  std::string view = self_.id;
  for (const auto& entry : candidates_) {
    for (size_t i = 0; i < view.size(); ++i) view[i] ^= entry.first[i];
  }
  return view;
}

bool MulticastDiscovery::AllAgree() const {
  if (static_cast<int>(candidates_.size()) + 1 != options_.size) return false;
  const std::string view = View();
  return std::all_of(candidates_.begin(), candidates_.end(),
                     [&](const auto& entry) { return entry.second.announcement.view == view; });
}

bool MulticastDiscovery::IsLowest() const {
  return std::all_of(candidates_.begin(), candidates_.end(), [&](const auto& entry) {
    return Order(self_) < Order(entry.second.announcement);
  });
}

std::optional<OpenedStore> MulticastDiscovery::TryServers() {
  for (const bool verified : {true, false}) {
    for (auto& [id, server] : servers_) {
      if (IsVerified(server) != verified || Now() < server.next_try ||
          Now() - server.heard > kStaleAfter) {
        continue;
      }
      if (!verified && Now() < next_unverified_try_) continue;
      const absl::Duration timeout = verified ? kConnectTimeout : server.timeout;
      auto store = Connect(server.announcement, timeout);
      if (store.ok()) return *std::move(store);
      last_error_ = store.status();
      server.timeout = std::min(2 * server.timeout, kConnectTimeout);
      server.next_try = Now() + kBackoffFactor * timeout;
      if (!verified) next_unverified_try_ = server.next_try;
      return std::nullopt;  // Announces this process again before the next try.
    }
  }
  return std::nullopt;
}

std::string MulticastDiscovery::Job() const {
  return options_.job.empty() ? "the job without a group_name"
                              : absl::StrCat("job '", options_.job, "'");
}

absl::Status MulticastDiscovery::Conflict() const {
  std::map<int, std::string> ranks;
  if (self_.rank >= 0) ranks[self_.rank] = "this process";
  for (const auto& entry : candidates_) {
    const MulticastAnnouncement& a = entry.second.announcement;
    const std::string who = Describe(entry.second);
    if (a.size != options_.size) {
      return ArgumentError(absl::StrCat("world_size is ", options_.size, " here, but ", who,
                                        " says ", a.size, ": start all processes of ", Job(),
                                        " with the same world_size"));
    }
    if (a.rank < 0) continue;
    const auto [taken, is_free] = ranks.emplace(a.rank, who);
    if (!is_free) {
      return ArgumentError(absl::StrCat("rank ", a.rank, " of ", Job(), " is taken twice, by ",
                                        taken->second, " and ", who,
                                        ": give each process its own rank"));
    }
  }
  if (static_cast<int>(candidates_.size()) < options_.size) return absl::OkStatus();
  return ArgumentError(absl::StrCat("more processes than world_size, ", options_.size,
                                    ", have come to ", Job(), ": this one and ", Others(),
                                    "; give each job a group_name of its own"));
}

absl::StatusOr<OpenedStore> MulticastDiscovery::Serve() {
  const bool is_one_host =
      std::all_of(candidates_.begin(), candidates_.end(), [&](const auto& entry) {
        return entry.second.announcement.peer.identity == self_.peer.identity;
      });
  StoreConfig config;
  config.host = is_one_host ? "127.0.0.1" : socket_.local_address();
  config.role = StoreConfig::Role::kServer;
  config.timeout = options_.store_timeout;
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
  self_.store = store->address();
  SYNCLINE_RETURN_IF_ERROR(AwaitClients(*store));
  return OpenedStore{std::move(store), config.host, StoreConfig::Role::kServer};
}

absl::Status MulticastDiscovery::AwaitClients(Store& store) {
  self_.view = View();         // Verifies this server to the others: it was their view, too.
  next_announcement_ = Now();  // The others need not wait for the rest of the interval.
  const auto clients = candidates_;
  std::vector<std::string> came;
  while (true) {
    // Keys are a set: a client that connects twice is there once.
    SYNCLINE_ASSIGN_OR_RETURN(came, store.Keys(kClientPrefix));
    if (static_cast<int>(came.size()) >= options_.size - 1) return absl::OkStatus();
    if (deadline_.Expired()) break;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    AnnounceAndReceive();
  }
  std::vector<std::string> missing;
  std::vector<int> ranks;
  for (const auto& entry : clients) {
    const std::string key = absl::StrCat(kClientPrefix, absl::BytesToHexString(entry.first));
    if (std::count(came.begin(), came.end(), key) != 0) continue;
    missing.push_back(Describe(entry.second));
    // -1 of a process to which a rank is assigned.
    if (entry.second.announcement.rank >= 0) ranks.push_back(entry.second.announcement.rank);
  }
  const absl::Status late = TimeoutError(absl::StrCat(
      "these processes of ", Job(), " were heard, but did not connect to ", store.ToString(),
      " within ", absl::FormatDuration(deadline_.timeout()), ": ", absl::StrJoin(missing, ", "),
      "; see whether they still run and reach that address"));
  return WithRanks(late, std::move(ranks));
}

absl::StatusOr<OpenedStore> MulticastDiscovery::Connect(const MulticastAnnouncement& server,
                                                        absl::Duration timeout) {
  StoreConfig config;
  const size_t colon = server.store.rfind(':');
  if (colon == std::string::npos ||
      !absl::SimpleAtoi(server.store.substr(colon + 1), &config.port)) {
    return NetworkError(absl::StrCat("'", Printable(server.store), "' is not host:port"));
  }
  absl::string_view host = absl::string_view(server.store).substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");  // IPv6
  config.host = std::string(host);
  config.timeout = options_.store_timeout;
  config.connect_timeout = std::min(deadline_.Remaining(), timeout);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
  SYNCLINE_RETURN_IF_ERROR(store->Wait({}, timeout));  // A silent server must not hold up Set.
  SYNCLINE_RETURN_IF_ERROR(store->Set(absl::StrCat(kClientPrefix, absl::BytesToHexString(self_.id)),
                                      self_.peer.Serialize()));
  return OpenedStore{std::move(store), config.host, StoreConfig::Role::kClient};
}

std::string MulticastDiscovery::Describe(const Candidate& candidate) const {
  const MulticastAnnouncement& a = candidate.announcement;
  return absl::StrCat(
      a.rank < 0 ? "a process" : absl::StrCat("rank ", a.rank), " (", Printable(a.peer.ToString()),
      ", at ", candidate.source, ", ",
      absl::FormatDuration(absl::Trunc(Now() - candidate.when, absl::Milliseconds(1))), " ago)");
}

std::string MulticastDiscovery::Others() const {
  std::vector<std::string> others;
  for (const auto& entry : candidates_) others.push_back(Describe(entry.second));
  return others.empty() ? "nobody" : absl::StrJoin(others, ", ");
}

std::vector<int> MulticastDiscovery::MissingRanks() const {
  std::set<int> present = {self_.rank};
  for (const auto& entry : candidates_) present.insert(entry.second.announcement.rank);
  std::vector<int> missing;
  if (present.count(-1) != 0) return missing;
  for (int rank = 0; rank < options_.size; ++rank) {
    if (present.count(rank) == 0) missing.push_back(rank);
  }
  return missing;
}

absl::Status MulticastDiscovery::TimeoutStatus() const {
  std::string text =
      absl::StrCat("only ", candidates_.size() + 1, " of ", options_.size, " processes of ", Job(),
                   " met at multicast address ", options_.group, ", port ", options_.port,
                   " within ", absl::FormatDuration(deadline_.timeout()), "; this one, at ",
                   socket_.local_address(), ", has heard ", Others());
  const std::vector<int> missing = MissingRanks();
  if (static_cast<int>(candidates_.size()) + 1 == options_.size) {
    absl::StrAppend(&text, ", but they have not all heard each other");
  } else if (!missing.empty()) {
    absl::StrAppend(&text, "; missing: rank ", base::RankRanges(missing));
  }
  if (!other_jobs_.empty()) {
    absl::StrAppend(&text, "; other jobs there: '", absl::StrJoin(other_jobs_, "', '"), "'");
  }
  if (ignored_ > 0) absl::StrAppend(&text, "; ignored ", ignored_, " datagrams, ", last_ignored_);
  if (!last_error_.ok()) absl::StrAppend(&text, "; last error: ", last_error_.message());
  const absl::Status late = TimeoutError(absl::StrCat(
      text, ". Were all started, with the same group_name, in one network that passes multicast?"));
  return WithRanks(late, missing);
}

}  // namespace

absl::StatusOr<OpenedStore> DiscoverStoreByMulticast(const MulticastOptions& options,
                                                     const Deadline& deadline) {
  if (options.job.size() > kMaxJobName) {
    return ArgumentError(
        absl::StrCat("a group_name may have ", kMaxJobName, " bytes, not ", options.job.size()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(MulticastSocket socket,
                            MulticastSocket::Open(options.group, options.port));
  return MulticastDiscovery(options, std::move(socket), deadline).Run();
}

}  // namespace syncline::join
