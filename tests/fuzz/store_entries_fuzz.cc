// What other ranks leave in a group's store, beside reports of failures: their entries in the table
// of ranks, where they listen, why they have given up, that their connections have ended, what they
// say that all must say, and in which operations they wait.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/disconnect_watch.h"
#include "backends/common/giving_up.h"
#include "backends/common/listener.h"
#include "backends/common/peer_table.h"
#include "backends/common/rank_handshake.h"
#include "backends/common/stall_reporter.h"
#include "core/store/check_same.h"
#include "core/testing/forwarding_store.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/peer.h"
#include "syncline/status.h"

namespace syncline::fuzz {
namespace {

using backends::PeerTable;

constexpr int kSize = 2;  // This rank is 0.

// As that of a job, which sees connections end.
class WatchingStore final : public ForwardingStore {
 public:
  WatchingStore() : ForwardingStore(std::make_shared<HashStore>()) {}

  absl::Status SetOnDisconnect(absl::string_view, absl::string_view) override {
    return absl::OkStatus();
  }
};

// An entry of rank 1.
std::string Entry(absl::string_view payload) {
  static const std::string* const entry = [] {
    HashStore store;
    const auto peers = PeerTable::Join(store, 0, 1, "", Deadline(absl::Minutes(1)));
    Require(peers.ok(), "a rank joins alone");
    return new std::string(store.Get("member/0", absl::ZeroDuration()).value());
  }();
  return absl::StrCat(*entry, payload);
}

absl::StatusOr<PeerTable> JoinWith(absl::string_view entry) {
  HashStore store;
  store.Set("member/1", entry).IgnoreError();
  return PeerTable::Join(store, 0, kSize, "", Deadline(absl::Minutes(1)));
}

// Rank 1 is on another host.
const PeerTable& Peers() {
  static const PeerTable* const peers = [] {
    Peer elsewhere;
    elsewhere.host = "elsewhere";
    elsewhere.identity = "elsewhere";
    elsewhere.pid = 1;
    const std::string entry = Entry("");
    auto table = JoinWith(absl::StrCat(elsewhere.Serialize(), entry.substr(entry.find('\n'))));
    Require(table.ok(), "two ranks join");
    return new PeerTable(*std::move(table));
  }();
  return *peers;
}

void CheckRanks(const absl::Status& status) {
  for (const int rank : RanksOf(status))
    Require(rank >= 0 && rank < kSize, "ranks are the group's");
}

void ReadEntry(absl::string_view entry) {
  const auto peers = JoinWith(entry);
  CheckRanks(peers.status());
  if (!peers.ok()) return;
  Require(!peers->Describe(1).empty(), "a rank has a name");
  peers->LivenessOf(1);
  CheckRanks(peers->CheckAlive());
}

// Not where it listens if it says so: that would be connected to.
void ReadEndpoint(absl::string_view endpoint) {
  const std::vector<absl::string_view> words = absl::StrSplit(endpoint, ' ');
  int port = 0;
  const bool says_where = words.size() >= 3 && words.size() % 2 == 1 &&
                          words[2].size() == backends::kHelloSecretSize &&
                          absl::SimpleAtoi(words[1], &port);
  if (says_where) return;
  const auto caller =
      backends::ConnectToListener(std::string(endpoint), 0, Deadline(absl::ZeroDuration()));
  Require(!caller.ok(), "what is no endpoint is refused");
}

void ReadGivingUp(absl::string_view why) {
  const auto store = std::make_shared<HashStore>();
  store->Set("gave up/1", why).IgnoreError();
  const backends::GivingUp giving_up(store, Peers());
  const absl::Status told = giving_up.Tell(WithRanks(NetworkError("it does not answer"), {1}));
  Require(!told.ok(), "who gives up fails");
  CheckRanks(told);
}

void ReadDisconnects(Reader& reader) {
  const auto store = std::make_shared<WatchingStore>();
  store->Set("any gone", "").IgnoreError();
  while (!reader.is_empty()) store->Set(absl::StrCat("gone/", reader.Text()), "").IgnoreError();
  backends::DisconnectWatch watch(store, Peers(), /*hosting_rank=*/-1);
  const absl::Status gone = watch.Check([](int rank) {
    Require(rank >= 0 && rank < kSize, "ranks are the group's");
    return true;
  });
  CheckRanks(gone);
}

void ReadOutcome(Reader& reader) {
  HashStore store;
  for (const char* key : {"came/1", "first", "outcome"}) {
    const absl::string_view value = reader.Text();
    if (!value.empty()) store.Set(key, value).IgnoreError();
  }
  store::CheckSameOptions options;
  options.call = "split";
  options.value = "value";
  options.ranks = {0, 1};
  CheckRanks(store::CheckSameOnAllRanks(store, options, Deadline(absl::ZeroDuration())));
  store::HasCheckExpired(store).status().IgnoreError();
}

void ReadWaits(Reader& reader) {
  HashStore store;
  while (!reader.is_empty()) {
    const std::string key = absl::StrCat("stall/", reader.Text());
    store.Set(key, reader.Text()).IgnoreError();
  }
  const auto waits = backends::ReadWaits(store, Peers().size());
  Require(waits.ok(), "a store that answers is read");
  backends::StallReporter::Wait wait;
  wait.name = "barrier #4";
  wait.operation = "barrier #4";
  wait.awaited = {1};
  const auto found = backends::FindMissing(Peers(), wait, absl::Seconds(10), *waits);
  const auto entry = waits->find(1);
  const bool has_come = entry != waits->end() && entry->second.name == wait.name;
  if (!has_come) {
    Require(found.stall.missing == std::vector<int>{1}, "who waits elsewhere is missing");
  } else if (entry->second.awaited.empty()) {
    Require(found.stall.missing.empty(), "who waits here for all has come");
  }
  for (const int rank : found.stall.missing) {
    Require(rank > 0 && rank < Peers().size(), "another rank of the group is missing");
  }
  Require(found.is_lowest, "rank 0 is the lowest");
  Require(found.stall.text.size() < 1024, "a warning has a bounded size");
  Require(!absl::StrContains(found.stall.text, '\n'), "a warning is one line");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(6)) {
    case 0:
      return ReadEntry(reader.rest());
    case 1:
      return ReadEndpoint(reader.rest());
    case 2:
      return ReadGivingUp(reader.rest());
    case 3:
      return ReadDisconnects(reader);
    case 4:
      return ReadOutcome(reader);
    default:
      return ReadWaits(reader);
  }
}

std::vector<std::string> Seeds() {
  const std::string zero(1, '\0');
  return {
      absl::StrCat(zero, Entry("127.0.0.1 29500 secret")),
      absl::StrCat("\1", "127.0.0.1 29500"),
      absl::StrCat("\1", "127.0.0.1 -5x ", std::string(backends::kHelloSecretSize, 's')),
      absl::StrCat("\2", "1  cannot connect to rank 0"),
      // A negative rank was once one that had gone.
      absl::StrCat("\3", Text("1"), Text("-1"), Text("7")),
      absl::StrCat("\4", Text(Entry("")), Text("1 value"), Text("same")),
      absl::StrCat("\4", Text(Entry("")), Text("-5 another value")),
      absl::StrCat("\5", Text("1"), Text("barrier #4")),
      absl::StrCat("\5", Text("1"), Text("all_reduce #5"), Text("-1"), Text("barrier #4")),
      // A line that another process had broken was logged as two.
      absl::StrCat("\5", Text("1"), Text("all_reduce\n#5"), Text("rank 1"), Text("")),
  };
}

}  // namespace syncline::fuzz
