// Strangers on the ports at which ranks of backend tcp wait for each other, callers that know the
// group's secret and take a place which is not theirs, and a rank that sends what is no message.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/listener.h"
#include "backends/common/rank_acceptor.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/testing/forwarding_store.h"
#include "core/testing/log_lines.h"
#include "core/tls/context.h"
#include "core/tls/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/backend_registry.h"
#include "syncline/collective.h"
#include "syncline/error_origin.h"
#include "syncline/hash_store.h"
#include "syncline/status.h"
#include "tests/backends/strangers.h"
#include "tests/support/backend_config.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace syncline {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;

constexpr int kRanks = 2;
constexpr absl::Duration kTimeout = absl::Seconds(60);

absl::StatusOr<std::shared_ptr<Backend>> Join(std::shared_ptr<Store> store, int rank,
                                              int size = kRanks) {
  return BackendRegistry::Make("tcp", OnLoopback(std::move(store), rank, size, kTimeout));
}

CallContext Within(uint64_t sequence, absl::Duration timeout = kTimeout) {
  CallContext context;
  context.sequence = sequence;
  context.deadline = Deadline(timeout);
  return context;
}

// Connects to each port at which ranks listen, while they join.
TEST(TcpStrangersTest, RanksFindEachOtherWhoeverElseConnects) {
  std::vector<base::UniqueFd> strangers;
  for (const Deadline deadline(kTimeout); strangers.size() < 300 && !deadline.Expired();) {
    const auto store = std::make_shared<HashStore>();
    absl::StatusOr<std::shared_ptr<Backend>> ranks[] = {absl::UnavailableError("not made"),
                                                        absl::UnavailableError("not made")};
    std::atomic<int> joined{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ranks[rank] = Join(store, rank);
        ++joined;
      });
    }
    while (joined < kRanks) {
      for (const int port : ListeningPorts()) {
        for (const std::string& text :
             {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"),
              std::string(32, '0') + std::string(4, '\1'), std::string(100'000, 'x')}) {
          base::UniqueFd stranger = TryToConnect(port);
          if (!stranger.valid()) continue;
          SendText(stranger, text);
          strangers.push_back(std::move(stranger));
        }
      }
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(ranks[0].ok() && ranks[1].ok()) << ranks[0].status() << ranks[1].status();
    absl::Status barrier;
    std::thread other(
        [&] { barrier = (*ranks[0])->RunAndWait(Collective::Barrier(), Within(0)).status(); });
    EXPECT_TRUE((*ranks[1])->RunAndWait(Collective::Barrier(), Within(0)).ok());
    other.join();
    EXPECT_TRUE(barrier.ok()) << barrier;
  }
  EXPECT_GE(strangers.size(), 300u);
}

// The store of one rank. Where the rank listens, as it says under keys that contain the name of a
// table, can be read here. What others say in `table` it reads once it may.
class TableStore final : public ForwardingStore {
 public:
  explicit TableStore(std::shared_ptr<Store> store, std::string table = "")
      : ForwardingStore(std::move(store)), table_(std::move(table)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    const size_t at = value.find("127.0.0.1 ");
    if (at != value.npos) {
      absl::MutexLock lock(&mutex_);
      endpoints_[std::string(key)] = std::string(value.substr(at));
    }
    return store().Set(key, value);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override {
    if (!table_.empty() && absl::StrContains(keys[0], table_)) {
      if (!has_come_.HasBeenNotified()) has_come_.Notify();
      may_read_.WaitForNotification();
    }
    return store().MultiGet(keys, timeout);
  }

  void LetRead() { may_read_.Notify(); }
  // Once the rank has said it.
  std::string AwaitEndpoint() const {
    has_come_.WaitForNotification();
    return EndpointIn(table_);
  }
  // What it has said in another table.
  std::string EndpointIn(absl::string_view table) const {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, endpoint] : endpoints_) {
      if (absl::StrContains(key, table)) return endpoint;
    }
    return "";
  }

 private:
  const std::string table_;
  absl::Notification has_come_, may_read_;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::string> endpoints_ ABSL_GUARDED_BY(mutex_);
};

// A caller that knows the secret, and names the connection with this number. Returns once the
// listener has taken its proof.
absl::StatusOr<tls::Stream> Call(const std::string& endpoint, int number) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto tls, tls::Context::FromEnvironment());
  const Deadline deadline(kTimeout);
  SYNCLINE_ASSIGN_OR_RETURN(auto caller,
                            backends::ConnectToListener(endpoint, number, deadline, tls.get()));
  SYNCLINE_RETURN_IF_ERROR(caller.Finish(deadline));
  return caller.TakeStream();
}

// Whether the other side ends it in time.
bool AwaitEnd(const tls::Stream& stream) {
  const Deadline deadline(kTimeout);
  char byte;
  while (base::ReceiveAll(stream.fd(), &byte, 1, deadline).ok()) {
  }
  return !deadline.Expired();
}

size_t Count(absl::string_view text, const std::string& part) {
  return std::vector<std::string>(absl::StrSplit(text, part)).size() - 1;
}

struct Claim {
  int rank;
  const char* why;
};

// At the listeners of both kinds of connections: those of all ranks, whose pairs have two, and the
// rails, whose pairs have one.
TEST(TcpStrangersTest, ACallerWithTheSecretAndAPlaceThatIsNotItsIsLoggedAndJoiningGoesOn) {
  constexpr int kThree = 3;
  for (const auto& [table, connections] : {std::pair("tcp/member/", 2), {"rails/member/", 1}}) {
    for (const Claim& claim :
         {Claim{-3, "there is no such rank"}, Claim{0, "this rank is that one"},
          Claim{1, "that rank has connected already"}, Claim{7, "there is no such rank"}}) {
      SCOPED_TRACE(absl::StrCat(table, ", rank ", claim.rank));
      const LogLines lines;
      const auto shared = std::make_shared<HashStore>();
      std::vector<std::shared_ptr<TableStore>> stores;
      for (int rank = 0; rank < kThree; ++rank) {
        stores.push_back(std::make_shared<TableStore>(shared, table));
      }
      std::vector<absl::Status> outcomes;
      std::thread ranks([&] {
        outcomes = RunRanks(kThree, [&](int rank) -> absl::Status {
          SYNCLINE_ASSIGN_OR_RETURN(const auto backend, Join(stores[rank], rank, kThree));
          std::vector<int32_t> values(1000, rank);
          const Tensor tensor = Tensor::Of(values);
          SYNCLINE_RETURN_IF_ERROR(
              backend->RunAndWait(Collective::AllReduce(tensor, ReduceOp::kSum), Within(0))
                  .status());
          EXPECT_EQ(values, std::vector<int32_t>(1000, 3));
          return absl::OkStatus();
        });
      });
      const std::string first = stores[0]->AwaitEndpoint(), second = stores[1]->AwaitEndpoint();
      stores[2]->AwaitEndpoint();
      stores[0]->LetRead();
      stores[1]->LetRead();
      // Rank 1 accepts once it has connected to rank 0, and says that it does that itself.
      const auto early = Call(second, 0);
      EXPECT_TRUE(early.ok() && AwaitEnd(*early)) << early.status();
      EXPECT_TRUE(lines.Await("this rank connects to that one itself", Deadline(kTimeout)));
      for (int i = 0; i < 3; ++i) {
        const auto impostor = Call(first, claim.rank * connections);
        EXPECT_TRUE(impostor.ok() && AwaitEnd(*impostor)) << impostor.status();
      }
      EXPECT_TRUE(lines.Await(claim.why, Deadline(kTimeout)));
      stores[2]->LetRead();
      ranks.join();
      for (const absl::Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome;
      const std::string text = lines.text();
      EXPECT_THAT(text, ContainsRegex(absl::StrCat(
                            "has refused 127\\.0\\.0\\.1 \\(port [0-9]+\\), which knows "
                            "the secret of this group, but says that it is [a-z ]*",
                            claim.rank, "[: ].*", claim.why)));
      EXPECT_EQ(Count(text, "has refused"), 2u) << text;  // One of each listener.
    }
  }
}

// Both ends of each connection are in this process, so the test can write to that of rank 1 what
// rank 1 never would.
TEST(TcpStrangersTest, WhatIsNoMessageEndsTheGroupWithTheNameOfItsSender) {
  for (const std::string& garbage :
       {std::string(4096, 'x'), std::string(64, '\0'), std::string(56, '\xff')}) {
    const auto store = std::make_shared<HashStore>();
    const auto before = OwnSockets();
    absl::StatusOr<std::shared_ptr<Backend>> first = absl::UnavailableError("not made");
    std::thread thread([&] { first = Join(store, 0); });
    const auto second = Join(store, 1);
    thread.join();
    ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
    // From both ends of each connection, so that it reaches rank 0 and rank 1 alike.
    EXPECT_GE(WriteToNewSockets(before, garbage), 4);
    const Tensor tensor = Tensor::Zeros(DType::kInt32, {10});
    const absl::Status received =
        (*first)->RunAndWait(Collective::Recv(tensor, 1), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(received.ok());
    EXPECT_THAT(RanksOf(received), Contains(1)) << received;
    const absl::Status later =
        (*second)->RunAndWait(Collective::Barrier(), Within(1, absl::Seconds(10))).status();
    EXPECT_FALSE(later.ok());
    EXPECT_FALSE(RanksOf(later).empty()) << later;
  }
}

bool IsEncrypted() { return tls::Context::FromEnvironment().value() != nullptr; }

// What ranks call after a lie.
enum class Op { kSend, kRecv, kAllReduce, kBarrier, kBroadcast, kGather };
struct LateCall {
  const char* name;
  Op op;
  size_t count;
};
constexpr size_t kFew = 10, kMany = 1'000'000;
constexpr LateCall kMessages[] = {{"short send", Op::kSend, kFew},
                                  {"long send", Op::kSend, kMany},
                                  {"short recv", Op::kRecv, kFew},
                                  {"long recv", Op::kRecv, kMany}};
constexpr LateCall kCollectives[] = {{"short all_reduce", Op::kAllReduce, kFew},
                                     {"long all_reduce", Op::kAllReduce, kMany},
                                     {"barrier", Op::kBarrier, 0},
                                     {"broadcast", Op::kBroadcast, kFew},
                                     {"gather", Op::kGather, kFew}};

// Messages go to rank 0, or come from it.
absl::Status Make(const LateCall& call, Backend& backend, int rank, int size, uint64_t sequence,
                  absl::Duration timeout) {
  std::vector<int32_t> values(call.count), gathered(size * call.count);
  const Tensor tensor = Tensor::Of(values), all = Tensor::Of(gathered);
  std::vector<Tensor> parts;
  for (int r = 0; r < size && rank == 1; ++r) {
    parts.push_back(all.Slice(r * call.count, call.count));
  }
  const auto run = [&](const Collective& collective) {
    return backend.RunAndWait(collective, Within(sequence, timeout)).status();
  };
  switch (call.op) {
    case Op::kSend:
      return run(Collective::Send(tensor, 0));
    case Op::kRecv:
      return run(Collective::Recv(tensor, 0));
    case Op::kAllReduce:
      return run(Collective::AllReduce(tensor, ReduceOp::kSum));
    case Op::kBarrier:
      return run(Collective::Barrier());
    case Op::kBroadcast:
      return run(Collective::Broadcast(tensor, 0));
    case Op::kGather:
      return run(Collective::Gather(parts, tensor, 1));
  }
  return absl::InternalError("no such operation");
}

// Rank 0 sends `lie` over the connections that its listener of `table` has accepted, and makes no
// call. Returns how the calls of the others end, of which the first may succeed. With `hosts`,
// ranks take each other for those of so many hosts in turns.
std::vector<absl::Status> CallAfterLie(const std::string& table, const std::string& lie,
                                       const LateCall& call, absl::Duration timeout,
                                       const std::string& backend_name = "tcp", int size = 3,
                                       int hosts = 0) {
  const auto shared = std::make_shared<HashStore>();
  const auto liars = std::make_shared<TableStore>(shared);
  Countdown joined(size), lied(1), over(size - 1);
  std::vector<absl::Status> statuses = RunRanks(size, [&](int rank) -> absl::Status {
    std::shared_ptr<Store> store = shared;
    if (rank == 0) store = liars;
    if (hosts > 0) {
      store = std::make_shared<StoreOnHost>(store, absl::StrCat("host_", rank % hosts));
    }
    SYNCLINE_ASSIGN_OR_RETURN(
        const auto backend,
        BackendRegistry::Make(backend_name, OnLoopback(store, rank, size, kTimeout)));
    joined.StepAndWait();
    if (rank == 0) {
      const std::vector<std::string> words = absl::StrSplit(liars->EndpointIn(table), ' ');
      EXPECT_GE(WriteToAccepted(std::stoi(words.at(1)), lie), 1);
      lied.Step();
      over.Wait();
      return absl::OkStatus();
    }
    lied.Wait();
    absl::Status status;
    // The first short messages go where nobody looks at what comes.
    for (uint64_t number = 1; number < 10'000 && status.ok(); ++number) {
      status = Make(call, *backend, rank, size, number, timeout);
    }
    over.Step();
    return status;
  });
  EXPECT_TRUE(statuses[0].ok()) << statuses[0];
  statuses.erase(statuses.begin());
  return statuses;
}

// As PointToPoint's own, which is private. A wrong copy makes other lies, no wrong test.
enum FrameKind : uint32_t { kEager = 1, kRequest, kGrant, kElements, kCredit, kLeave };
std::string Frame(FrameKind kind, uint64_t id, int64_t count, uint64_t bytes) {
  struct {
    uint32_t magic = 0x53595034, kind = 0;
    uint64_t id = 0, sequence = 0;
    int64_t count = 0, tag = 0;
    uint32_t dtype = static_cast<uint32_t>(DType::kInt32), reserved = 0;
    uint64_t bytes = 0;
  } header;
  header.kind = kind;
  header.id = id;
  header.count = count;
  header.bytes = bytes;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

// Sets a variable of the environment for the life of the object.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* const name_;
};

TEST(TcpStrangersTest, AFrameThatIsNoneNamesItsSenderInEveryOperation) {
  // In a collective the watch reads the messages of a peer, every eighth of this.
  const ScopedVariable keepalive("SYNCLINE_TCP_KEEPALIVE", "2");
  std::map<std::string, std::string> lies = {{"no frame", std::string(4096, 'x')}};
  // Encryption leaves nothing of what they are.
  if (!IsEncrypted()) {
    lies["a length beyond all bounds"] = Frame(kEager, 1, 10, uint64_t{1} << 40);
    lies["a message twice"] = Frame(kEager, 5, 0, 0) + Frame(kEager, 5, 0, 0);
    lies["elements that were not asked for"] = Frame(kElements, 1, 0, 40);
    lies["consent to no send"] = Frame(kGrant, 1 << 20, 0, 0);
    lies["credit for more than was sent"] = Frame(kCredit, 1, int64_t{1} << 40, 0);
    lies["a long reason to leave"] = Frame(kLeave, 1, 0, 4096);
  }
  for (const auto& [name, lie] : lies) {
    for (const auto& calls : {absl::MakeConstSpan(kMessages), absl::MakeConstSpan(kCollectives)}) {
      for (const LateCall& call : calls) {
        SCOPED_TRACE(absl::StrCat(name, ", ", call.name));
        for (const absl::Status& status :
             CallAfterLie("tcp/member/", lie, call, absl::Seconds(30))) {
          EXPECT_FALSE(status.ok());
          EXPECT_THAT(RanksOf(status), Contains(0)) << status;
          if (IsEncrypted()) continue;  // The network may have changed it.
          EXPECT_EQ(RanksOf(status), std::vector<int>{0}) << status;
          EXPECT_THAT(std::string(status.message()), ContainsRegex("rank 0 .*sent what is not"));
        }
      }
    }
  }
}

// Where ranks meet they wait for the liar, to quote its call in full.
TEST(TcpStrangersTest, ARecordThatIsNoneOfTheCallNamesItsSenderOnARail) {
  const auto record_of = [](const Collective& call, uint64_t sequence) {
    CallContext context = Within(sequence);
    context.collective = &call;
    const auto record = backends::FingerprintRecord::Of(context);
    return std::string(reinterpret_cast<const char*>(&record), sizeof(record));
  };
  const Tensor tensor = Tensor::Zeros(DType::kFloat64, {7});
  const std::map<std::string, std::string> lies = {
      {"no record", std::string(4096, 'x')},
      {"a call that comes later", record_of(Collective::Barrier(), 77)},
      {"another root", record_of(Collective::Broadcast(tensor, 1 << 20), 1)}};
  for (const auto& [name, lie] : lies) {
    for (const LateCall& call : kCollectives) {
      SCOPED_TRACE(absl::StrCat(name, ", ", call.name));
      for (const absl::Status& status :
           CallAfterLie("rails/member/", lie, call, absl::Seconds(1.5))) {
        EXPECT_FALSE(status.ok());
        EXPECT_THAT(RanksOf(status), Contains(0)) << status;
      }
      if (IsEncrypted()) break;
    }
  }
}

// Rank 0 lies to rank 1, which has another host. Those of its own host wait for it, and rank 3
// hears from rank 1 alone that nodes have made different calls.
TEST(TcpStrangersTest, ALeaderThatLiesOnARailIsNamedByTheRanksOfBothHosts) {
  const auto expect_named = [](const LateCall& call, absl::Duration timeout) {
    SCOPED_TRACE(absl::StrCat(call.name, " for ", absl::FormatDuration(timeout)));
    for (const absl::Status& status : CallAfterLie("rails/member/", std::string(4096, 'x'), call,
                                                   timeout, "auto", 4, /*hosts=*/2)) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(RanksOf(status), Contains(0)) << status;
    }
  };
  for (const LateCall& call : kCollectives) expect_named(call, absl::Seconds(2));
  // Rank 3 gives up waiting for those of the other host before its time is up.
  expect_named(kCollectives[0], absl::Seconds(20));
}

}  // namespace
}  // namespace syncline
