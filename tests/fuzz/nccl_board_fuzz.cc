// What ranks of backend nccl on other hosts tell of their calls through the store.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/nccl/fingerprint_board.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/collective.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/tensor.h"
#include "tests/fuzz/peers.h"

namespace syncline::fuzz {
namespace {

using nccl::Channel;
using nccl::FingerprintBoard;

constexpr int kCalls = 4;

// Memory for a board, as a mapping is: aligned, and zero. There is one for all inputs, since new
// pages for each would take more time than all that is looked for.
char* ZeroMemory() {
  constexpr size_t kPage = 4096;
  static const size_t bytes = (FingerprintBoard::BytesFor(kRanks) + kPage - 1) / kPage * kPage;
  static char* const memory = static_cast<char*>(std::aligned_alloc(kPage, bytes));
  std::memset(memory, 0, bytes);
  return memory;
}

// Publishes a call of each kind, and a message in each direction.
void MakeCalls(FingerprintBoard& board) {
  std::vector<Tensor> tensors, others;
  for (const int64_t size : {2, 3, 4}) {
    tensors.push_back(Tensor::Zeros(DType::kFloat32, {size}));
    others.push_back(Tensor::Zeros(DType::kFloat32, {2}));
  }
  const Collective calls[kCalls] = {
      Collective::AllReduce(tensors[0], ReduceOp::kSum), Collective::AllToAll(tensors, tensors),
      Collective::AllToAll(others, others), Collective::AllGather(tensors, tensors[0])};
  for (uint64_t i = 0; i < kCalls; ++i) {
    CallContext context;
    context.sequence = i;
    context.collective = &calls[i];
    board.Publish(context, {});
  }
  const int peer = board.rank() == 0 ? 1 : 0;
  const Collective send = Collective::Send(tensors[0], peer),
                   recv = Collective::Recv(tensors[0], peer);
  CallContext context;
  context.collective = &send;
  board.Publish(Channel{board.rank(), peer}, context);
  context.collective = &recv;
  board.Publish(Channel{peer, board.rank()}, context);
}

void Look(FingerprintBoard& board) {
  for (uint64_t number = 1; number <= kCalls; ++number) {
    const auto found = board.Compare(number);
    if (!found.has_value()) continue;
    for (const int rank : RanksOf(*found)) {
      Require(rank >= 0 && rank < kRanks, "ranks are the group's");
    }
  }
  for (const Channel channel : {Channel{0, 1}, Channel{1, 0}}) {
    board.Compare(channel, 1);
    board.Requested(channel);
  }
  for (int rank = 1; rank < kRanks; ++rank) {
    board.LeaveReason(rank);
    board.Finished(rank);
  }
  board.HasRoom();
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  FingerprintBoard board(ZeroMemory(), Peers(), MismatchCheck::kOn);
  MakeCalls(board);
  while (!reader.is_empty()) {
    const int rank = 1 + reader.Below(kRanks - 1);
    const absl::Status applied = board.ApplyChanges(rank, reader.Text());
    if (!applied.ok()) Require(RanksOf(applied) == std::vector<int>{rank}, "the sender is named");
    Look(board);
  }
  Require(!board.LastActivity(1).empty(), "a rank has done something");
}

std::vector<std::string> Seeds() {
  // What rank 0 tells is what the others would.
  FingerprintBoard board(ZeroMemory(), Peers(), MismatchCheck::kOn);
  MakeCalls(board);
  const std::string calls = board.TakeChanges();
  board.Finish(2, backends::CallDescription(OpKind::kAllToAll, 1));
  board.Leave("it was destroyed");
  const std::string left = board.TakeChanges();
  const std::string first(1, '\0'), second = "\1";
  std::vector<std::string> seeds = {first + Text(calls), first + Text(calls) + second + Text(calls),
                                    first + Text(calls) + first + Text(left)};
  // One change at a time.
  for (size_t at = 0; at + 16 <= calls.size();) {
    int64_t words = 0;
    std::memcpy(&words, calls.data() + at + 8, sizeof(words));
    const size_t bytes = 16 + 8 * static_cast<size_t>(words);
    seeds.push_back(first + Text(absl::string_view(calls).substr(at, bytes)));
    at += bytes;
  }
  return seeds;
}

}  // namespace syncline::fuzz
