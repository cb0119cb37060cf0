// Sends and receives of backend auto over several hosts, between ranks of one host above all: these
// go through shared memory, while a receive from any rank waits for ranks of other hosts too.
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/status.h"
#include "tests/backends/auto_workers.h"
#include "tests/support/hosts.h"

namespace syncline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CallContext Call(uint64_t sequence, absl::Duration timeout = absl::Seconds(60)) {
  return {sequence, Deadline(timeout)};
}

absl::Status Send(Backend& backend, const Tensor& tensor, int dst, int64_t tag, uint64_t sequence) {
  return RunAndWait(backend, Collective::Send(tensor, dst, tag), Call(sequence)).status();
}

absl::StatusOr<int> Recv(Backend& backend, const Tensor& tensor, int src, int64_t tag,
                         uint64_t sequence) {
  return RunAndWait(backend, Collective::Recv(tensor, src, tag), Call(sequence));
}

void Print(const absl::Status& status) { std::printf("%s\n", status.ToString().c_str()); }

// ---- Messages from any rank.

constexpr int kMessages = 150;  // Of each sender, with each tag.

// In shared memory: inline, eager and by rendezvous; over TCP: eager, and after a request.
int64_t CountOf(int i) {
  constexpr int64_t kCounts[] = {1, 700, 9, 70000, 0, 16, 5000, 300000};
  return kCounts[i % 8];
}

int32_t ValueOf(int from, int64_t tag, int i) {
  return static_cast<int32_t>(1000000 * from + 100000 * tag + i);
}

Tensor Filled(int64_t count, int32_t value) {
  Tensor tensor = Tensor::Zeros(DType::kInt32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.data_as<int32_t>()[i] = value;
  return tensor;
}

// Takes message i of all senders, in whatever order they come, before any sends the next: their
// sizes differ.
absl::Status ReceiveAll(Backend& backend, int size, int64_t tag) {
  for (int i = 0; i < kMessages; ++i) {
    std::vector<bool> has_come(size);
    for (int n = 1; n < size; ++n) {
      const Tensor tensor = Filled(CountOf(i), -1);
      SYNCLINE_ASSIGN_OR_RETURN(const int src,
                                Recv(backend, tensor, kAnySource, tag, static_cast<uint64_t>(i)));
      if (src < 1 || src >= size || has_come[src]) {
        return BackendError(absl::StrCat("message ", i, " of tag ", tag, " came from ", src));
      }
      has_come[src] = true;
      for (int64_t at = 0; at < tensor.numel(); ++at) {
        if (tensor.data_as<int32_t>()[at] == ValueOf(src, tag, i)) continue;
        return BackendError(absl::StrCat("element ", at, " of message ", i, " of rank ", src,
                                         " is ", tensor.data_as<int32_t>()[at]));
      }
    }
    // The senders may go on.
    for (int dst = 1; dst < size; ++dst) {
      SYNCLINE_RETURN_IF_ERROR(
          Send(backend, Filled(1, i), dst, 100 + tag, static_cast<uint64_t>(i)));
    }
  }
  return absl::OkStatus();
}

// With pauses, so that the receiver sleeps now and then, also while another sends.
absl::Status SendInStep(Backend& backend, int rank, int64_t tag) {
  for (int i = 0; i < kMessages; ++i) {
    if (i % 10 == rank) absl::SleepFor(absl::Milliseconds(2));
    SYNCLINE_RETURN_IF_ERROR(
        Send(backend, Filled(CountOf(i), ValueOf(rank, tag, i)), 0, tag, static_cast<uint64_t>(i)));
    const Tensor go_on = Filled(1, -1);
    SYNCLINE_RETURN_IF_ERROR(Recv(backend, go_on, 0, 100 + tag, static_cast<uint64_t>(i)).status());
  }
  return absl::OkStatus();
}

// Two tags at once, each on a thread of its own, beside collectives.
void ExchangeWithAny(const Worker& worker) {
  auto backend = worker.Join("auto", "group");
  if (!backend.ok()) return Print(backend.status());
  Backend& group = **backend;
  absl::Status statuses[3];
  std::vector<std::thread> threads;
  for (int64_t tag = 0; tag < 2; ++tag) {
    threads.emplace_back([&, tag] {
      statuses[tag] = worker.rank == 0 ? ReceiveAll(group, worker.size, tag)
                                       : SendInStep(group, worker.rank, tag);
    });
  }
  for (uint64_t i = 0; i < 100 && statuses[2].ok(); ++i) {
    const Tensor sum = Filled(1000, worker.rank);
    statuses[2] = RunAndWait(group, Collective::AllReduce(sum, ReduceOp::kSum), Call(i)).status();
    const int32_t expected = worker.size * (worker.size - 1) / 2;
    if (statuses[2].ok() && sum.data_as<int32_t>()[999] != expected) {
      statuses[2] = BackendError("a sum is wrong");
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) Print(status);
}

class AutoMessagesTest : public testing::TestWithParam<std::vector<int>> {};

INSTANTIATE_TEST_SUITE_P(Hosts, AutoMessagesTest,
                         testing::Values(std::vector<int>{0, 0, 1}, std::vector<int>{0, 1, 1, 0},
                                         std::vector<int>{1, 0, 1, 1}),
                         [](const auto& info) { return absl::StrCat("case_", info.index); });

TEST_P(AutoMessagesTest, AReceiveFromAnyRankTakesThoseOfAllHostsEachOnceAndInOrder) {
  Workers workers(GetParam(), "any", "");
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_EQ(workers.Output(rank), "OK\nOK\nOK\n") << "rank " << rank;
  }
}

// ---- What one thing must not do to another. Ranks 0 and 1 share a host.

// Rank 0 has sent rank 1 all that it may when both reduce a large tensor to rank 1, which is when
// steps of collectives go from one to the other too.
absl::Status ReduceBehindMessages(Backend& backend, int rank) {
  constexpr int kMany = 3000;
  absl::Status sent;
  std::thread sender;
  if (rank == 0) {
    sender = std::thread([&] {
      for (int i = 0; i < kMany && sent.ok(); ++i) {
        sent = Send(backend, Filled(1, i), 1, 5, static_cast<uint64_t>(i));
      }
    });
    absl::SleepFor(absl::Milliseconds(300));
  }
  const Tensor tensor = Filled(1 << 20, 1);
  const absl::Status reduced =
      RunAndWait(backend, Collective::Reduce(tensor, ReduceOp::kSum, 1), Call(0)).status();
  absl::Status received = reduced;
  for (int i = 0; i < kMany && rank == 1 && received.ok(); ++i) {
    const Tensor message = Filled(1, -1);
    received = Recv(backend, message, 0, 5, static_cast<uint64_t>(i)).status();
    if (received.ok() && message.data_as<int32_t>()[0] != i) received = BackendError("no order");
  }
  if (!received.ok()) backend.Abort(received);
  if (sender.joinable()) sender.join();
  return received.ok() ? sent : received;
}

// Rank 1 sends without a pause; the one message of rank 2, from another host, is there too.
absl::Status TakeTurns(Backend& backend, const Worker& worker) {
  constexpr int kMany = 400;
  for (int i = 0; i < (worker.rank == 1 ? kMany : 1) && worker.rank != 0; ++i) {
    SYNCLINE_RETURN_IF_ERROR(Send(backend, Filled(1, worker.rank), 0, 5, static_cast<uint64_t>(i)));
  }
  SYNCLINE_RETURN_IF_ERROR(RunAndWait(backend, Collective::Barrier(), Call(0)).status());
  if (worker.rank != 0) return absl::OkStatus();
  int of_rank_2 = -1;
  for (int i = 0; i < kMany + 1; ++i) {
    SYNCLINE_ASSIGN_OR_RETURN(const int src, Recv(backend, Filled(1, -1), kAnySource, 5, i));
    if (src == 2) of_rank_2 = i;
  }
  return of_rank_2 <= 1 ? absl::OkStatus()
                        : BackendError(absl::StrCat("rank 2 came as number ", of_rank_2));
}

void RunBeside(const Worker& worker) {
  auto backend = worker.Join("auto", "group");
  if (!backend.ok()) return Print(backend.status());
  Print(worker.argument == "turns" ? TakeTurns(**backend, worker)
                                   : ReduceBehindMessages(**backend, worker.rank));
  RunAndWait(**backend, Collective::Barrier(), Call(1)).status().IgnoreError();
}

TEST(AutoMessagesBesideTest, AReductionPassesMessagesThatNobodyHasReceivedYet) {
  Workers workers({0, 0, 1, 1}, "beside", "reduce");
  for (int rank = 0; rank < workers.size(); ++rank) EXPECT_EQ(workers.Output(rank), "OK\n");
}

TEST(AutoMessagesBesideTest, ARankOfAnotherHostIsNotStarvedByAFastOneOfThisHost) {
  Workers workers({0, 0, 1}, "beside", "turns");
  for (int rank = 0; rank < workers.size(); ++rank) EXPECT_EQ(workers.Output(rank), "OK\n");
}

// Ranks 0 and 1 find at once that they have called different collectives, and a receive of rank 0
// waits meanwhile; rank 2 comes later to hear of it.
void DifferBesideAReceive(const Worker& worker) {
  auto backend = worker.Join("auto", "group");
  if (!backend.ok()) return Print(backend.status());
  absl::Status received;
  std::thread receiver;
  if (worker.rank == 0) {
    receiver = std::thread([&] { received = Recv(**backend, Filled(5, 0), 1, 7, 0).status(); });
    absl::SleepFor(absl::Milliseconds(100));
  }
  if (worker.rank == 2) absl::SleepFor(absl::Seconds(1));
  const Tensor tensor = Filled(worker.rank == 1 ? 11 : 12, 1);
  Print(RunAndWait(**backend, Collective::AllReduce(tensor, ReduceOp::kSum), Call(0)).status());
  if (!receiver.joinable()) return;
  receiver.join();
  Print(received);
}

TEST(AutoMessagesBesideTest, AMismatchIsToldInFullThoughAReceiveWaits) {
  Workers workers({0, 0, 1}, "differ", "");
  for (int rank = 0; rank < workers.size(); ++rank) {
    const std::vector<std::string> lines =
        absl::StrSplit(workers.Output(rank), '\n', absl::SkipEmpty());
    ASSERT_EQ(lines.size(), rank == 0 ? 2u : 1u);
    for (const std::string& line : lines) {
      EXPECT_THAT(line, AllOf(HasSubstr("FAILED_PRECONDITION"),
                              HasSubstr("rank 0 called all_reduce #0 (int32, 12 elements"),
                              HasSubstr("rank 1 called all_reduce #0 (int32, 11 elements")))
          << "rank " << rank;
    }
  }
}

// ---- Failures. The last two ranks share a host, rank 0 has one of its own.

constexpr int kReceiver = 1, kSender = 2;
const std::vector<int> kHosts = {0, 1, 1};

// The receiver waits for the sender, or for any rank, which does what `argument` says; rank 0 waits
// for both in a collective, for longer.
void WaitForMessage(const Worker& worker) {
  const std::vector<std::string> words = absl::StrSplit(worker.argument, ' ');
  const std::string& what = words[0];
  auto backend = worker.Join("auto", "group");
  if (!backend.ok()) return Print(backend.status());
  // All have arrived, and everything has been connected.
  const absl::Status met = RunAndWait(**backend, Collective::Barrier(), Call(0)).status();
  if (!met.ok()) return Print(met);
  worker.store->Set(absl::StrCat("under way/", worker.rank), "").IgnoreError();
  if (worker.rank == 0) {
    return Print(RunAndWait(**backend, Collective::Barrier(), Call(1)).status());
  }
  const int src = words[1] == "any" ? kAnySource : kSender;
  if (worker.rank == kReceiver) {
    const Tensor tensor = Filled(5, 0);
    const bool is_timeout =
        what == "stop" || what == "barrier" || (what == "leave" && src == kAnySource);
    const CallContext context = Call(3, absl::Seconds(is_timeout ? 2 : 60));
    return Print(RunAndWait(**backend, Collective::Recv(tensor, src, 7), context).status());
  }
  // What fails before would fail the barrier for who is still in it.
  worker.store->Wait({"under way/0", "under way/1", "under way/2"}, absl::Seconds(60))
      .IgnoreError();
  if (what == "misfit") return Print(Send(**backend, Filled(500000, 1), kReceiver, 7, 3));
  if (what == "leave") backend->reset();
  if (what == "barrier") {
    return Print(RunAndWait(**backend, Collective::Barrier(), Call(1)).status());
  }
  pause();
}

class AutoMessageFailureTest : public testing::TestWithParam<const char*> {
 protected:
  static void AwaitAll(Workers& workers) {
    EXPECT_TRUE(workers.store()
                    .Wait({"under way/0", "under way/1", "under way/2"}, absl::Seconds(60))
                    .ok());
    absl::SleepFor(absl::Milliseconds(200));  // So that the receiver sleeps, as a rule.
  }
  static std::string Argument(const std::string& what) {
    return absl::StrCat(what, " ", GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(From, AutoMessageFailureTest, testing::Values("sender", "any"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AutoMessageFailureTest, AKilledSenderIsNamedOnEveryRank) {
  Workers workers(kHosts, "wait", Argument("die"));
  AwaitAll(workers);
  workers.Signal(kSender, SIGKILL);
  for (int rank : {0, kReceiver}) {
    EXPECT_THAT(workers.Output(rank),
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr(workers.Describe(kSender))))
        << "rank " << rank;
  }
}

TEST_P(AutoMessageFailureTest, AStoppedSenderIsATimeoutOfTheReceiverOnEveryRank) {
  Workers workers(kHosts, "wait", Argument("stop"));
  AwaitAll(workers);
  workers.Signal(kSender, SIGSTOP);
  for (int rank : {0, kReceiver}) {
    EXPECT_THAT(workers.Output(rank),
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("recv #3"), HasSubstr("after 2s"),
                      HasSubstr(workers.Describe(kSender))))
        << "rank " << rank;
  }
}

TEST_P(AutoMessageFailureTest, ASenderThatIsInACollectiveIsATimeoutOfTheReceiverOnEveryRank) {
  Workers workers(kHosts, "wait", Argument("barrier"));
  AwaitAll(workers);
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_THAT(workers.Output(rank),
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("recv #3"), HasSubstr("after 2s")))
        << "rank " << rank;
  }
}

TEST_P(AutoMessageFailureTest, AMessageThatDoesNotFitQuotesBothCallsOnEveryRank) {
  Workers workers(kHosts, "wait", Argument("misfit"));
  AwaitAll(workers);
  for (int rank = 0; rank < workers.size(); ++rank) {
    EXPECT_THAT(workers.Output(rank), AllOf(HasSubstr("FAILED_PRECONDITION"),
                                            HasSubstr("rank 2 called send #3 to rank 1"),
                                            HasSubstr("rank 1 called recv #3"),
                                            HasSubstr("500000 elements"), HasSubstr("5 elements")))
        << "rank " << rank;
  }
}

// The kernel, or shared memory, would take it.
void SendToOneThatHasLeft(const Worker& worker) {
  auto backend = worker.Join("auto", "group");
  if (!backend.ok()) return Print(backend.status());
  if (worker.rank != 0) return;  // Leaves.
  absl::Status sent;
  const Deadline deadline(absl::Seconds(60));
  for (int i = 0; sent.ok() && !deadline.Expired(); ++i) {
    sent = Send(**backend, Filled(1, i), std::stoi(worker.argument), 7, static_cast<uint64_t>(i));
    absl::SleepFor(absl::Milliseconds(10));
  }
  Print(sent);
}

TEST(AutoMessagesBesideTest, ASendToARankThatHasLeftSaysSo) {
  for (const int peer : {1, 2}) {
    Workers workers({0, 0, 1}, "send_left", absl::StrCat(peer));
    EXPECT_THAT(workers.Output(0),
                AllOf(HasSubstr("send #"), HasSubstr(absl::StrCat("rank ", peer)),
                      HasSubstr("has left the group: the backend was destroyed")));
  }
}

// Of a receive from any rank, the one on the other host may still send.
TEST_P(AutoMessageFailureTest, ASenderThatHasLeftIsNamedAtOnceIfNoOtherCanSend) {
  Workers workers(kHosts, "wait", Argument("leave"));
  const std::string kind =
      GetParam() == std::string("any") ? "DEADLINE_EXCEEDED" : "has left the group";
  EXPECT_THAT(workers.Output(kReceiver),
              AllOf(HasSubstr(kind), HasSubstr("rank "), HasSubstr("recv #3")));
  workers.Signal(0, SIGKILL);
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  using namespace syncline;
  return RunTestsOnHosts(argc, argv,
                         {{"any", &ExchangeWithAny},
                          {"beside", &RunBeside},
                          {"differ", &DifferBesideAReceive},
                          {"send_left", &SendToOneThatHasLeft},
                          {"wait", &WaitForMessage}});
}
