// The cases of send and recv, and of several operations or groups at once. See conformance_data.h.
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "syncline/status.h"
#include "tests/backends/conformance_data.h"
#include "tests/support/operations.h"
#include "tests/support/values.h"

namespace syncline {
namespace {

CallContext Message(uint64_t sequence) { return {sequence, Deadline(kTimeout)}; }

absl::Status Wrong(absl::string_view what, const Member& member) {
  return absl::InternalError(absl::StrCat(what, " on rank ", member.rank(), " of ", member.size()));
}

// Runs `other` on a thread of its own beside `body`; the first error of the two.
absl::Status Beside(absl::FunctionRef<absl::Status()> other,
                    absl::FunctionRef<absl::Status()> body) {
  absl::Status others;
  std::thread thread([&] { others = other(); });
  absl::Status status = body();
  thread.join();
  status.Update(others);
  return status;
}

absl::Status Receive(Member& member, const Tensor& tensor, int src, const CallContext& context,
                     int tag = 0) {
  SYNCLINE_ASSIGN_OR_RETURN(
      const int source, RunAndWait(member.backend(), Collective::Recv(tensor, src, tag), context));
  if (source == src) return absl::OkStatus();
  return Wrong(absl::StrCat("recv from rank ", src, " says it was rank ", source), member);
}

// Every type and size goes to the next rank while another comes from the previous one.
absl::Status RunRing(Member& member) {
  const int size = member.size(), rank = member.rank();
  if (size == 1) return absl::OkStatus();
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  uint64_t sequence = 0;
  for (DType dtype : member.capabilities().move_dtypes) {
    for (int64_t count : {0, 1, 7, 1000, 1 << 20}) {
      const Tensor out = Bytes(dtype, count, rank);
      const Tensor in = Tensor::Zeros(dtype, {count});
      const CallContext context = Message(sequence++);
      SYNCLINE_RETURN_IF_ERROR(Beside(
          [&] {
            return RunAndWait(member.backend(), Collective::Send(out, next), context).status();
          },
          [&] { return Receive(member, in, previous, context); }));
      if (!SameBytes(in, Bytes(dtype, count, previous))) return Wrong(in.ToString(), member);
      if (!SameBytes(out, Bytes(dtype, count, rank))) return Wrong("what was sent", member);
    }
  }
  return absl::OkStatus();
}

// Long messages that are issued together do not wait for each other, whatever their order in the
// list, and those of one pair and tag keep their order.
absl::Status RunTogether(Member& member) {
  const int size = member.size(), rank = member.rank();
  if (size == 1) return absl::OkStatus();
  constexpr int kMessages = 3;
  constexpr int64_t kCount = 1 << 19;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  std::vector<Tensor> out, in;
  for (int i = 0; i < kMessages; ++i) {
    out.push_back(Bytes(DType::kInt32, kCount, 10 * rank + i));
    in.push_back(Tensor::Zeros(DType::kInt32, {kCount}));
  }
  std::vector<Collective> calls;
  for (const Tensor& tensor : out) calls.push_back(Collective::Send(tensor, next, member.Tag(3)));
  for (const Tensor& tensor : in)
    calls.push_back(Collective::Recv(tensor, previous, member.Tag(3)));
  const CallContext context = Message(0);
  SYNCLINE_ASSIGN_OR_RETURN(const Completion completion, member.backend().Run(calls, context));
  SYNCLINE_RETURN_IF_ERROR(WaitFor(completion, calls[0], context.deadline).status());
  for (int i = 0; i < kMessages; ++i) {
    if (!SameBytes(in[i], Bytes(DType::kInt32, kCount, 10 * previous + i))) {
      return Wrong(absl::StrCat("message ", i, " of a group"), member);
    }
  }
  return absl::OkStatus();
}

// Messages of one pair and tag keep their order.
absl::Status RunOrder(Member& member) {
  if (member.size() == 1 || member.rank() > 1) return absl::OkStatus();
  for (int i = 0; i < 100; ++i) {
    const Tensor tensor = Bytes(DType::kInt32, 100, member.rank() == 0 ? i : -1);
    SYNCLINE_RETURN_IF_ERROR(
        member.rank() == 0
            ? RunAndWait(member.backend(), Collective::Send(tensor, 1, member.Tag(5)), Message(i))
                  .status()
            : Receive(member, tensor, 0, Message(i), member.Tag(5)));
    if (!SameBytes(tensor, Bytes(DType::kInt32, 100, i))) {
      return Wrong(absl::StrCat("message ", i), member);
    }
  }
  return absl::OkStatus();
}

// Tags are kept apart, and those received first need not have been sent first.
absl::Status RunTags(Member& member) {
  constexpr int kTags[] = {0, 1, 2147483647};
  if (member.size() == 1 || member.rank() > 1) return absl::OkStatus();
  std::vector<absl::Status> statuses(3);
  std::vector<std::thread> senders;
  for (int i = 0; i < 3 && member.rank() == 0; ++i) {
    senders.emplace_back([&, i] {
      statuses[i] =
          RunAndWait(member.backend(), Collective::Send(Bytes(DType::kInt64, 100, i), 1, kTags[i]),
                     Message(0))
              .status();
    });
  }
  for (std::thread& sender : senders) sender.join();
  for (const absl::Status& status : statuses) SYNCLINE_RETURN_IF_ERROR(status);
  if (member.rank() == 0) return absl::OkStatus();
  for (int i : {2, 0, 1}) {
    const Tensor tensor = Tensor::Zeros(DType::kInt64, {100});
    SYNCLINE_RETURN_IF_ERROR(Receive(member, tensor, 0, Message(0), kTags[i]));
    if (!SameBytes(tensor, Bytes(DType::kInt64, 100, i))) {
      return Wrong(absl::StrCat("tag ", kTags[i]), member);
    }
  }
  return absl::OkStatus();
}

// What rank `from` sends as its message number `i` in the cases below.
Tensor Payload(DType dtype, int from, int i) { return Bytes(dtype, 300, 100 * from + i); }

absl::Status SendPayloads(Member& member, DType dtype, int payloads) {
  for (int i = 0; i < payloads; ++i) {
    SYNCLINE_RETURN_IF_ERROR(RunAndWait(member.backend(),
                                        Collective::Send(Payload(dtype, member.rank(), i), 0, 9),
                                        Message(i))
                                 .status());
  }
  return absl::OkStatus();
}

// Receives the next payload from `src`, which may be any; `next` counts those of each rank.
absl::Status ReceiveLetter(Member& member, DType dtype, int src, std::vector<int>& next) {
  const Tensor tensor = Tensor::Zeros(dtype, {300});
  SYNCLINE_ASSIGN_OR_RETURN(
      const int source, RunAndWait(member.backend(), Collective::Recv(tensor, src, 9), Message(0)));
  if (source < 1 || source >= member.size() || (src != kAnySource && source != src)) {
    return Wrong(absl::StrCat("source ", source, " of ", src), member);
  }
  if (SameBytes(tensor, Payload(dtype, source, next[source]++))) return absl::OkStatus();
  return Wrong(absl::StrCat("a message from rank ", source, " out of order"), member);
}

// Rank 0 takes what all others send, from whichever comes first.
absl::Status RunAnySource(Member& member) {
  constexpr int kLetters = 5;
  if (member.size() == 1) return absl::OkStatus();
  for (DType dtype : member.capabilities().move_dtypes) {
    if (member.rank() > 0) {
      SYNCLINE_RETURN_IF_ERROR(SendPayloads(member, dtype, kLetters));
    } else {
      std::vector<int> next(member.size());
      for (int i = 0; i < kLetters * (member.size() - 1); ++i) {
        SYNCLINE_RETURN_IF_ERROR(ReceiveLetter(member, dtype, kAnySource, next));
      }
    }
    // So that no rank is a type ahead.
    SYNCLINE_RETURN_IF_ERROR(
        RunAndWait(member.backend(), Collective::Barrier(), member.Next()).status());
  }
  return absl::OkStatus();
}

// The same with receives from certain ranks between: each sender's messages keep their order.
absl::Status RunAnySourceBetweenOthers(Member& member) {
  constexpr int kLetters = 20;
  const int size = member.size();
  if (size == 1) return absl::OkStatus();
  if (member.rank() > 0) return SendPayloads(member, DType::kUInt16, kLetters);
  std::vector<int> next(size);
  for (int i = 0; i < kLetters * (size - 1); ++i) {
    int src = kAnySource;
    if (i % 2 == 1) {  // Whoever has most left.
      src = 1;
      for (int r = 2; r < size; ++r) {
        if (next[r] < next[src]) src = r;
      }
    }
    SYNCLINE_RETURN_IF_ERROR(ReceiveLetter(member, DType::kUInt16, src, next));
  }
  return absl::OkStatus();
}

// A receive from any rank and one from rank 1 wait at once: of two messages each gets one.
absl::Status RunAnySourceBesideAnother(Member& member) {
  if (member.size() == 1 || member.rank() > 1) return absl::OkStatus();
  for (int round = 0; round < 20; ++round) {
    if (member.rank() == 1) {
      SYNCLINE_RETURN_IF_ERROR(SendPayloads(member, DType::kInt8, 2));
      continue;
    }
    const Tensor a = Tensor::Zeros(DType::kInt8, {300}), b = Tensor::Zeros(DType::kInt8, {300});
    SYNCLINE_RETURN_IF_ERROR(Beside(
        [&] {
          return RunAndWait(member.backend(), Collective::Recv(a, kAnySource, 9), Message(round))
              .status();
        },
        [&] { return Receive(member, b, 1, Message(round), 9); }));
    const Tensor first = Payload(DType::kInt8, 1, 0), second = Payload(DType::kInt8, 1, 1);
    const bool right = (SameBytes(a, first) && SameBytes(b, second)) ||
                       (SameBytes(a, second) && SameBytes(b, first));
    if (!right) return Wrong("two receives at once", member);
  }
  return absl::OkStatus();
}

// Both directions between pairs, and collectives beside them.
absl::Status RunTwoInFlight(Member& member) {
  constexpr int64_t kElements = 1 << 20;  // 4 MiB
  const int rank = member.rank(), peer = rank ^ 1;
  const Tensor out = Bytes(DType::kInt32, kElements, rank);
  const Tensor in = Tensor::Zeros(DType::kInt32, {kElements});
  auto collectives = [&]() -> absl::Status {
    for (OpKind kind : CollectiveKinds()) {
      const Spec spec = {kind, DType::kFloat32, kElements / 8};
      const Collective operation = Build(spec, rank, member.size());
      SYNCLINE_RETURN_IF_ERROR(member.Run(operation));
      SYNCLINE_RETURN_IF_ERROR(CheckDone(spec, operation, rank, member.size()));
    }
    return absl::OkStatus();
  };
  if (peer >= member.size()) return collectives();
  auto messages = [&] {
    return Beside(
        [&] {
          return RunAndWait(member.backend(), Collective::Send(out, peer), Message(0)).status();
        },
        [&] { return Receive(member, in, peer, Message(0)); });
  };
  SYNCLINE_RETURN_IF_ERROR(Beside(messages, collectives));
  return SameBytes(in, Bytes(DType::kInt32, kElements, peer)) ? absl::OkStatus()
                                                              : Wrong("a message", member);
}

absl::Status ReduceIn(Member& group, int64_t count) {
  const Spec spec = {OpKind::kAllReduce, DType::kFloat32, count};
  const Collective operation = Build(spec, group.rank(), group.size());
  SYNCLINE_RETURN_IF_ERROR(group.Run(operation));
  return CheckDone(spec, operation, group.rank(), group.size());
}

// Groups that share ranks do not disturb each other: one after another on one thread, and at once.
absl::Status RunOverlappingGroups(Member& member) {
  std::vector<int> all = Upto(member.size()), reversed(all.rbegin(), all.rend()), front = all;
  if (front.size() > 1) front.pop_back();
  SYNCLINE_ASSIGN_OR_RETURN(auto backward, member.Group("reversed", reversed));
  SYNCLINE_ASSIGN_OR_RETURN(auto smaller, member.Group("front", front));
  for (int i = 0; i < 10; ++i) {
    SYNCLINE_RETURN_IF_ERROR(ReduceIn(member, 100 + i));
    if (smaller != nullptr) SYNCLINE_RETURN_IF_ERROR(ReduceIn(*smaller, 200 + i));
    SYNCLINE_RETURN_IF_ERROR(ReduceIn(*backward, 300 + i));
  }
  auto often = [](Member* group) -> absl::Status {
    for (int i = 0; i < 30 && group != nullptr; ++i) {
      SYNCLINE_RETURN_IF_ERROR(ReduceIn(*group, 10000 + i));
    }
    return absl::OkStatus();
  };
  SYNCLINE_RETURN_IF_ERROR(
      Beside([&] { return often(smaller.get()); }, [&] { return often(backward.get()); }));
  return RunAndWait(member.backend(), Collective::Barrier(), member.Next())
      .status();  // Nobody leaves while others talk.
}

}  // namespace

std::vector<DataCase> P2pCases() {
  return {
      {"ring", {OpKind::kSend, OpKind::kRecv}, &RunRing},
      {"order", {}, &RunOrder},
      {"together", {}, &RunTogether},
      {"tags", {}, &RunTags, true},
      {"any_source", {}, &RunAnySource, true},
      {"any_source_between_others", {}, &RunAnySourceBetweenOthers, true},
      {"any_source_beside_another", {}, &RunAnySourceBesideAnother, true},
      {"two_in_flight", {}, &RunTwoInFlight},
      {"overlapping_groups", {}, &RunOverlappingGroups},
  };
}

}  // namespace syncline
