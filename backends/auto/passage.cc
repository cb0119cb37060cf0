#include "backends/auto/passage.h"

#include <algorithm>
#include <cstring>

#include "core/base/status.h"

namespace syncline {
namespace {

// How long who objects may take to tell the other hosts; they are likely to be listening.
constexpr absl::Duration kObjecting = absl::Seconds(1);

// FNV-1a, a word at a time, of what two ballots must have in common.
uint64_t Hash(const Ballot& ballot) {
  uint64_t hash = 14695981039346656037u;
  for (const uint64_t word : {ballot.sequence, static_cast<uint64_t>(ballot.count), ballot.lists,
                              static_cast<uint64_t>(ballot.peer), uint64_t{ballot.kind},
                              uint64_t{ballot.dtype}, uint64_t{ballot.op}}) {
    hash = (hash ^ word) * 1099511628211u;
    hash ^= hash >> 32;
  }
  return hash;
}

void Copy(const Tensor& from, const Tensor& to) {
  if (from.numel() > 0 && from.data() != to.data()) {
    std::memcpy(to.data(), from.data(), from.nbytes());
  }
}

}  // namespace

Tensor Memory::Take(DType dtype, int64_t count) {
  if (next_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[next_++];
  const size_t size = count * SizeOf(dtype);
  if (block.size < size) {
    block.bytes.reset();  // First, so that there is never twice as much.
    block.bytes.reset(new std::byte[size]);
    block.size = size;
  }
  return Tensor(block.bytes.get(), dtype, {count});
}

Passage::Passage(const Ways& ways, const Call& call, const CallContext& context)
    : ways_(ways),
      inside_{context.sequence, context.deadline},
      agreement_(call, 0, 1),
      greetings_(ways.topology.host_count()),
      welcome_(ways.topology.host_count()) {
  inside_.form.hash = Hash(agreement_.ballot());
  ways_.memory.Reset();
}

absl::Status Passage::Note(const absl::Status& status) {
  if (!status.ok() && KindOf(status) == ErrorKind::kMismatch) has_mismatch_ = true;
  return status;
}

absl::Status Passage::Broadcast(const Tensor& tensor, int root) {
  if (ways_.host == nullptr) return absl::OkStatus();
  return Note(ways_.host->Broadcast(tensor, root, inside_));
}

absl::Status Passage::Reduce(const Tensor& tensor, ReduceOp op, int root) {
  if (ways_.host == nullptr) return absl::OkStatus();
  return Note(ways_.host->Reduce(tensor, op, root, inside_));
}

absl::Status Passage::AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
  if (ways_.host != nullptr) return Note(ways_.host->AllGather(outputs, input, inside_));
  Copy(input, outputs[0]);
  return absl::OkStatus();
}

absl::Status Passage::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                    ReduceOp op) {
  if (ways_.host != nullptr) return Note(ways_.host->ReduceScatter(output, inputs, op, inside_));
  Copy(inputs[0], output);
  return absl::OkStatus();
}

absl::Status Passage::Barrier() {
  return ways_.host == nullptr ? absl::OkStatus() : Note(ways_.host->Barrier(inside_));
}

absl::Status Passage::Gather(absl::Span<const Tensor> parts, const Tensor& own, int root) {
  if (topology().place != root) {
    return own.numel() == 0 ? absl::OkStatus() : Note(ways_.host->Send(own, root, inside_));
  }
  for (int from = 0; from < static_cast<int>(parts.size()); ++from) {
    if (from == root || parts[from].numel() == 0) continue;
    SYNCLINE_RETURN_IF_ERROR(Note(ways_.host->Recv(parts[from], from, inside_).status()));
  }
  return absl::OkStatus();
}

void Passage::Greet() {
  has_greeted_ = true;
  const int own = topology().host;
  greetings_[own] = agreement_.ballot();
  for (int h = 0; h < host_count(); ++h) {
    if (h == own) continue;
    ways_.wires->Send(h, &greetings_[own], sizeof(Ballot));
    ways_.wires->Receive(h, &greetings_[h], sizeof(Ballot));
    welcome_[h] = ways_.wires->to_receive(h);
  }
}

absl::Status Passage::Welcome() {
  for (int h = 0; h < host_count(); ++h) {
    if (h == topology().host) continue;
    SYNCLINE_RETURN_IF_ERROR(ways_.wires->AwaitReceived(h, welcome_[h], inside_.deadline));
    agreement_.Merge(greetings_[h]);
    if (agreement_.agreed()) continue;
    has_mismatch_ = true;
    return MismatchError("hosts made different calls");
  }
  return absl::OkStatus();
}

void Passage::Send(int to, const Tensor& tensor) {
  ways_.wires->Send(to, tensor.data(), tensor.nbytes());
}

void Passage::SendToAll(const Tensor& tensor) {
  for (int distance = 1; distance < host_count(); ++distance) {
    Send(topology().HostAt(distance), tensor);
  }
}

void Passage::Receive(int from, const Tensor& tensor) {
  ways_.wires->Receive(from, tensor.data(), tensor.nbytes());
}

Passage::Mark Passage::mark() const {
  Mark mark;
  for (int h = 0; h < host_count(); ++h) {
    mark.sent.push_back(ways_.wires->to_send(h));
    mark.received.push_back(ways_.wires->to_receive(h));
  }
  return mark;
}

absl::Status Passage::Await(const Mark& mark) {
  for (int h = 0; h < host_count(); ++h) {
    SYNCLINE_RETURN_IF_ERROR(ways_.wires->AwaitReceived(h, mark.received[h], inside_.deadline));
    SYNCLINE_RETURN_IF_ERROR(ways_.wires->AwaitSent(h, mark.sent[h], inside_.deadline));
  }
  return absl::OkStatus();
}

absl::Status Passage::AwaitAll() { return ways_.wires->AwaitAll(inside_.deadline); }

absl::Status Passage::Progress() { return ways_.wires->Progress(); }

// To other ranks of the host, by another call than theirs: as a mismatch, it ends every wait there.
void Passage::Object() {
  if (is_on_lane() && !has_greeted_) {
    agreement_.Object();
    Greet();
    const Mark greeted = mark();
    const Deadline soon(std::min(inside_.deadline.Remaining(), kObjecting));
    for (int h = 0; h < host_count(); ++h) {
      ways_.wires->AwaitSent(h, greeted.sent[h], soon).IgnoreError();
    }
  }
  if (ways_.host == nullptr) return;
  inside_.form.hash = ~inside_.form.hash;
  ways_.host->Barrier(inside_).IgnoreError();
}

}  // namespace syncline
