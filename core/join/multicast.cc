#include "core/join/multicast.h"

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
#include "core/base/hmac.h"
#include "core/base/host.h"
#include "core/base/interrupt.h"
#include "core/base/rank_ranges.h"
#include "core/base/status.h"
#include "core/join/announcement.h"
#include "core/join/multicast_socket.h"

namespace syncline {
namespace {

// Who has not been heard for so long is taken to be gone.
constexpr absl::Duration kMemory = absl::Seconds(2);
// A conflict that lasts longer is not one with a process that has been restarted.
constexpr absl::Duration kConflictPatience = absl::Seconds(3);
// For connecting to a store that has been announced a moment ago: at most, and at first if its host
// has not met with this process. Anybody may announce anything, and while this process tries to
// connect the others do not hear it.
constexpr absl::Duration kConnectPatience = absl::Seconds(2);
constexpr absl::Duration kDoubtfulPatience = absl::Milliseconds(200);
// After a try that failed, other doubtful stores are left alone for so many times its length.
constexpr int kRest = 4;
// How many of its own views a process remembers, and how many hosts it knows.
constexpr size_t kMaxViews = 1000;
constexpr size_t kMaxHosts = 100;

// In the store: the guests that have come, by id.
constexpr absl::string_view kGuest = "multicast/guest/";

// For messages: what came over the network may be any bytes.
std::string Printable(absl::string_view text) { return absl::CHexEscape(text.substr(0, 300)); }

// What one process knows of the others.
class Gathering {
 public:
  Gathering(const MulticastOptions& meeting, MulticastSocket socket, const Deadline& deadline)
      : meeting_(meeting), socket_(std::move(socket)), deadline_(deadline) {
    self_.job = meeting.job;
    self_.size = meeting.size;
    self_.rank = meeting.rank;
    self_.id = RandomBytes(kMeetingIdBytes);
    // It is compared with others', and one that is not known is like no other.
    self_.peer = IdentifyThisProcess().value_or(ThisPeer());
  }

  absl::StatusOr<OpenedStore> Run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Heard {
    MulticastAnnouncement announcement;
    std::string source;
    absl::Duration when;  // As Now() tells it.
  };

  absl::Duration Now() const { return absl::FromChrono(Clock::now() - began_); }
  // Many processes announce themselves less often, so that the network does not drown.
  absl::Duration Interval() const {
    return absl::Milliseconds(std::clamp<int64_t>(meeting_.size, 50, 500));
  }

  // Announces this process if it is time to, and takes in what comes until it is time again.
  void Exchange();
  void Take(const MulticastSocket::Datagram& datagram);
  void Forget();

  // Lower ones host.
  static std::pair<int64_t, std::string> Order(const MulticastAnnouncement& a) {
    return {a.rank < 0 ? std::numeric_limits<int64_t>::max() : a.rank, a.id};
  }
  std::string View() const;
  bool AllAgree() const;
  bool IsLowest() const;
  // The others' name for this job: "job 'x'".
  std::string Job() const;

  // A process that says that it hosts the store.
  struct Host {
    MulticastAnnouncement announcement;
    absl::Duration heard;
    absl::Duration patience = kDoubtfulPatience;  // For the next try to connect.
    absl::Duration next_try;
  };
  // Whether its view was this process's own at some time, so that they have met.
  bool IsTrusted(const Host& host) const { return own_views_.count(host.announcement.view) != 0; }
  // Connects to one of the hosts if it is time for that; nothing if none could be reached.
  std::optional<OpenedStore> TryHosts();
  // Why the processes that are heard now cannot be one world.
  absl::Status Conflict() const;

  absl::StatusOr<OpenedStore> BeHost();
  absl::StatusOr<OpenedStore> Visit(const MulticastAnnouncement& host, absl::Duration patience);
  absl::Status AwaitGuests(Store& store);

  std::string Describe(const Heard& heard) const;
  std::string Others() const;                 // What has been heard, for messages.
  std::vector<int64_t> MissingRanks() const;  // Empty if some rank is to be assigned.
  absl::Status NotMet() const;

  const Clock::time_point began_ = Clock::now();
  const MulticastOptions& meeting_;
  const MulticastSocket socket_;
  const Deadline& deadline_;
  MulticastAnnouncement self_;
  // By id, of this job, without this process: those who wait as this one does, and those who host.
  std::map<std::string, Heard> heard_;
  std::map<std::string, Host> hosts_;
  std::set<std::string> own_views_;  // All that have been announced.
  absl::Duration next_doubtful_try_;
  std::set<std::string> other_jobs_;
  int64_t ignored_ = 0;  // Datagrams that were no announcement.
  std::string last_ignored_;
  absl::Status last_error_;
  absl::Duration next_announcement_;
  std::optional<absl::Duration> conflict_since_;
};

absl::StatusOr<OpenedStore> Gathering::Run() {
  while (true) {
    self_.view = View();
    if (own_views_.size() >= kMaxViews) own_views_.clear();
    own_views_.insert(self_.view);
    Exchange();
    Forget();
    if (std::optional<OpenedStore> place = TryHosts()) return *std::move(place);
    const absl::Status conflict = Conflict();
    if (conflict.ok()) {
      conflict_since_.reset();
      if (AllAgree() && IsLowest()) return BeHost();
    } else {
      if (!conflict_since_.has_value()) conflict_since_ = Now();
      if (Now() - *conflict_since_ > kConflictPatience) return conflict;
    }
    if (deadline_.Expired()) return conflict.ok() ? NotMet() : conflict;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
}

void Gathering::Exchange() {
  if (Now() >= next_announcement_) {
    absl::Status sent = socket_.Send(self_.Seal(meeting_.secret));
    if (!sent.ok()) last_error_ = sent;  // A network may come up yet.
    next_announcement_ = Now() + Interval();
  }
  const absl::Duration pause =
      std::min({next_announcement_ - Now(), deadline_.Remaining(), kInterruptInterval});
  auto datagram = socket_.Receive(std::max(pause, absl::ZeroDuration()));
  // What has queued up is taken in at one go, or a crowd would be heard too late.
  while (datagram.ok() && datagram->has_value()) {
    Take(**datagram);
    if (Now() >= next_announcement_) return;
    datagram = socket_.Receive(absl::ZeroDuration());
  }
  if (!datagram.ok()) last_error_ = datagram.status();
}

void Gathering::Take(const MulticastSocket::Datagram& datagram) {
  auto announcement = MulticastAnnouncement::Open(datagram.bytes, meeting_.secret);
  if (!announcement.ok()) {
    ++ignored_;
    last_ignored_ =
        absl::StrCat("the last from ", datagram.source, ": ", announcement.status().message());
    return;
  }
  if (announcement->job != meeting_.job) {
    if (other_jobs_.size() < 10) other_jobs_.insert(Printable(announcement->job));
    return;
  }
  if (announcement->id == self_.id) return;
  const std::string id = announcement->id;
  // Whoever floods the group must not fill the memory.
  if (!announcement->store.empty() && announcement->size == meeting_.size) {
    if (hosts_.size() >= kMaxHosts && hosts_.count(id) == 0) return;
    heard_.erase(id);
    Host& host = hosts_[id];
    host.announcement = *std::move(announcement);
    host.heard = Now();
    return;
  }
  if (heard_.size() > 2 * static_cast<size_t>(meeting_.size) + 100 && heard_.count(id) == 0) return;
  hosts_.erase(id);
  heard_[id] = {*std::move(announcement), datagram.source, Now()};
}

void Gathering::Forget() {
  const absl::Duration limit = std::max(kMemory, 4 * Interval());
  for (auto it = heard_.begin(); it != heard_.end();) {
    it = Now() - it->second.when > limit ? heard_.erase(it) : std::next(it);
  }
  // Longer: who is forgotten is tried as if for the first time.
  for (auto it = hosts_.begin(); it != hosts_.end();) {
    const bool is_gone = Now() - it->second.heard > 10 * limit;
    it = is_gone ? hosts_.erase(it) : std::next(it);
  }
}

std::string Gathering::View() const {
  std::string view = self_.id;
  for (const auto& entry : heard_) {
    for (size_t i = 0; i < view.size(); ++i) view[i] ^= entry.first[i];
  }
  return view;
}

bool Gathering::AllAgree() const {
  if (static_cast<int64_t>(heard_.size()) + 1 != meeting_.size) return false;
  const std::string view = View();
  return std::all_of(heard_.begin(), heard_.end(),
                     [&](const auto& entry) { return entry.second.announcement.view == view; });
}

bool Gathering::IsLowest() const {
  return std::all_of(heard_.begin(), heard_.end(), [&](const auto& entry) {
    return Order(self_) < Order(entry.second.announcement);
  });
}

std::optional<OpenedStore> Gathering::TryHosts() {
  for (const bool trusted : {true, false}) {
    for (auto& [id, host] : hosts_) {
      if (IsTrusted(host) != trusted || Now() < host.next_try || Now() - host.heard > kMemory) {
        continue;
      }
      if (!trusted && Now() < next_doubtful_try_) continue;
      const absl::Duration patience = trusted ? kConnectPatience : host.patience;
      auto place = Visit(host.announcement, patience);
      if (place.ok()) return *std::move(place);
      last_error_ = place.status();
      host.patience = std::min(2 * host.patience, kConnectPatience);
      host.next_try = Now() + kRest * patience;
      if (!trusted) next_doubtful_try_ = host.next_try;
      return std::nullopt;  // First tell the others that this process is there.
    }
  }
  return std::nullopt;
}

std::string Gathering::Job() const {
  return meeting_.job.empty() ? "the job without a group_name"
                              : absl::StrCat("job '", meeting_.job, "'");
}

absl::Status Gathering::Conflict() const {
  std::map<int64_t, std::string> ranks;
  if (self_.rank >= 0) ranks[self_.rank] = "this process";
  for (const auto& entry : heard_) {
    const MulticastAnnouncement& a = entry.second.announcement;
    const std::string who = Describe(entry.second);
    if (a.size != meeting_.size) {
      return ArgumentError(absl::StrCat("world_size is ", meeting_.size, " here, but ", who,
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
  if (static_cast<int64_t>(heard_.size()) < meeting_.size) return absl::OkStatus();
  return ArgumentError(absl::StrCat("more processes than world_size, ", meeting_.size,
                                    ", have come to ", Job(), ": this one and ", Others(),
                                    "; give each job a group_name of its own"));
}

absl::StatusOr<OpenedStore> Gathering::BeHost() {
  const bool is_one_host = std::all_of(heard_.begin(), heard_.end(), [&](const auto& entry) {
    return entry.second.announcement.peer.identity == self_.peer.identity;
  });
  StoreConfig config;
  config.host = is_one_host ? "127.0.0.1" : socket_.local_address();
  config.role = StoreConfig::Role::kServer;
  config.timeout = meeting_.store_timeout;
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
  self_.store = store->address();
  SYNCLINE_RETURN_IF_ERROR(AwaitGuests(*store));
  return OpenedStore{std::move(store), config.host, OpenedStore::Part::kHost};
}

absl::Status Gathering::AwaitGuests(Store& store) {
  self_.view = View();         // By which the others know that they have met with this one.
  next_announcement_ = Now();  // Those who wait shall not wait for an interval more.
  const auto guests = heard_;
  std::vector<std::string> came;
  while (true) {
    // A set, in which a guest that comes twice is there once.
    SYNCLINE_ASSIGN_OR_RETURN(came, store.Keys(kGuest));
    if (static_cast<int64_t>(came.size()) >= meeting_.size - 1) return absl::OkStatus();
    if (deadline_.Expired()) break;
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
    Exchange();
  }
  std::vector<std::string> missing;
  for (const auto& entry : guests) {
    const std::string key = absl::StrCat(kGuest, absl::BytesToHexString(entry.first));
    if (std::count(came.begin(), came.end(), key) == 0) missing.push_back(Describe(entry.second));
  }
  return TimeoutError(absl::StrCat(
      "these processes of ", Job(), " were heard, but did not connect to ", store.ToString(),
      " within ", absl::FormatDuration(deadline_.timeout()), ": ", absl::StrJoin(missing, ", "),
      "; see whether they still run and reach that address"));
}

absl::StatusOr<OpenedStore> Gathering::Visit(const MulticastAnnouncement& host,
                                             absl::Duration patience) {
  StoreConfig config;
  const size_t colon = host.store.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(host.store.substr(colon + 1), &config.port)) {
    return NetworkError(absl::StrCat("'", Printable(host.store), "' is not host:port"));
  }
  config.host = host.store.substr(0, colon);
  config.timeout = meeting_.store_timeout;
  config.connect_timeout = std::min(deadline_.Remaining(), patience);
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, StoreRegistry::Make("tcp", config));
  SYNCLINE_RETURN_IF_ERROR(store->Wait({}, patience));  // It may be silent, others would wait.
  SYNCLINE_RETURN_IF_ERROR(
      store->Set(absl::StrCat(kGuest, absl::BytesToHexString(self_.id)), self_.peer.Serialize()));
  return OpenedStore{std::move(store), config.host, OpenedStore::Part::kGuest};
}

std::string Gathering::Describe(const Heard& heard) const {
  const MulticastAnnouncement& a = heard.announcement;
  return absl::StrCat(a.rank < 0 ? "a process" : absl::StrCat("rank ", a.rank), " (",
                      Printable(a.peer.ToString()), ", at ", heard.source, ", ",
                      absl::FormatDuration(absl::Trunc(Now() - heard.when, absl::Milliseconds(1))),
                      " ago)");
}

std::string Gathering::Others() const {
  std::vector<std::string> others;
  for (const auto& entry : heard_) others.push_back(Describe(entry.second));
  return others.empty() ? "nobody" : absl::StrJoin(others, ", ");
}

std::vector<int64_t> Gathering::MissingRanks() const {
  std::set<int64_t> present = {self_.rank};
  for (const auto& entry : heard_) present.insert(entry.second.announcement.rank);
  std::vector<int64_t> missing;
  if (present.count(-1) != 0) return missing;
  for (int64_t rank = 0; rank < meeting_.size; ++rank) {
    if (present.count(rank) == 0) missing.push_back(rank);
  }
  return missing;
}

absl::Status Gathering::NotMet() const {
  std::string text =
      absl::StrCat("only ", heard_.size() + 1, " of ", meeting_.size, " processes of ", Job(),
                   " met at multicast address ", meeting_.group, ":", meeting_.port, " within ",
                   absl::FormatDuration(deadline_.timeout()), "; this one, at ",
                   socket_.local_address(), ", has heard ", Others());
  const std::vector<int64_t> missing = MissingRanks();
  if (static_cast<int64_t>(heard_.size()) + 1 == meeting_.size) {
    absl::StrAppend(&text, ", but they have not all heard each other");
  } else if (!missing.empty()) {
    absl::StrAppend(&text, "; missing: rank ", RankRanges(missing));
  }
  if (!other_jobs_.empty()) {
    absl::StrAppend(&text, "; other jobs there: '", absl::StrJoin(other_jobs_, "', '"), "'");
  }
  if (ignored_ > 0) absl::StrAppend(&text, "; ignored ", ignored_, " datagrams, ", last_ignored_);
  if (!last_error_.ok()) absl::StrAppend(&text, "; last error: ", last_error_.message());
  return TimeoutError(absl::StrCat(
      text, ". Were all started, with the same group_name, in one network that passes multicast?"));
}

}  // namespace

absl::StatusOr<OpenedStore> MeetByMulticast(const MulticastOptions& meeting,
                                            const Deadline& deadline) {
  if (meeting.job.size() > kMaxJobName) {
    return ArgumentError(
        absl::StrCat("a group_name may have ", kMaxJobName, " bytes, not ", meeting.job.size()));
  }
  SYNCLINE_ASSIGN_OR_RETURN(MulticastSocket socket,
                            MulticastSocket::Open(meeting.group, meeting.port));
  return Gathering(meeting, std::move(socket), deadline).Run();
}

}  // namespace syncline
