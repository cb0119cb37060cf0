#include "backends/nccl/testing/fake_nccl/operations.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "backends/nccl/testing/fake_nccl/elements.h"

namespace fake_nccl {
namespace {

bool TakesGarbage() {
  const char* const value = std::getenv("FAKE_NCCL_MISMATCH");
  return value != nullptr && std::strcmp(value, "garbage") == 0;
}

// What garbage is, where nothing came.
constexpr unsigned char kGarbage = 0xa5;

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace

void Transfers::Send(int peer, Kind kind, int root, const void* data, size_t bytes) {
  // Sends only read.
  auto* const bytes_of = static_cast<unsigned char*>(const_cast<void*>(data));
  sends_[peer].push_back({{kind, root, bytes}, bytes_of});
}

void Transfers::Receive(int peer, Kind kind, int root, void* data, size_t bytes) {
  receives_[peer].push_back({{kind, root, bytes}, static_cast<unsigned char*>(data)});
}

bool Transfers::IsSent(const Message& message) {
  return message.header_done == sizeof(Header) && message.done == message.header.bytes;
}

bool Transfers::ProgressSend(Ring& ring, Message& message) {
  size_t moved = 0;
  if (message.header_done < sizeof(Header)) {
    moved = ring.Write(reinterpret_cast<const char*>(&message.header) + message.header_done,
                       sizeof(Header) - message.header_done);
    message.header_done += moved;
    if (message.header_done < sizeof(Header)) return moved > 0;
  }
  const size_t more = ring.Write(message.data + message.done, message.header.bytes - message.done);
  message.done += more;
  return moved + more > 0;
}

bool Transfers::IsReceived(const Message& message) {
  return message.header_done == sizeof(Header) && !message.is_stuck &&
         message.done == message.header.bytes &&
         message.done + message.discarded >= message.sent.bytes;
}

bool Transfers::ProgressReceive(Ring& ring, Message& message) {
  if (message.is_stuck) return false;
  size_t moved = 0;
  if (message.header_done < sizeof(Header)) {
    moved = ring.Read(reinterpret_cast<char*>(&message.sent) + message.header_done,
                      sizeof(Header) - message.header_done);
    message.header_done += moved;
    if (message.header_done < sizeof(Header)) return moved > 0;
    const bool fits = message.sent.kind == message.header.kind &&
                      message.sent.root == message.header.root &&
                      message.sent.bytes == message.header.bytes;
    if (!fits && !TakesGarbage()) {
      message.is_stuck = true;
      return true;
    }
    // The end of the buffer, for which nothing comes.
    if (message.sent.bytes < message.header.bytes) {
      std::memset(message.data + message.sent.bytes, kGarbage,
                  message.header.bytes - message.sent.bytes);
    }
  }
  const size_t wanted = std::min(message.sent.bytes, message.header.bytes);
  if (message.done < wanted) {
    const size_t count = ring.Read(message.data + message.done, wanted - message.done);
    message.done += count;
    moved += count;
  }
  if (message.done == wanted) {
    // What is sent too much.
    while (wanted + message.discarded < message.sent.bytes) {
      unsigned char rest[4096];
      const size_t count =
          ring.Read(rest, std::min(sizeof rest, message.sent.bytes - wanted - message.discarded));
      if (count == 0) break;
      message.discarded += count;
      moved += count;
    }
    if (wanted + message.discarded == message.sent.bytes) message.done = message.header.bytes;
  }
  return moved > 0;
}

bool Transfers::Progress() {
  bool has_moved = false;
  const auto progress = [&](std::map<int, std::deque<Message>>& queues, bool is_send) {
    for (auto queue = queues.begin(); queue != queues.end();) {
      auto& [peer, messages] = *queue;
      Ring& ring =
          is_send ? segment_.RingOf(channel_, rank_, peer) : segment_.RingOf(channel_, peer, rank_);
      bool rings = false;
      while (!messages.empty()) {
        Message& message = messages.front();
        const bool moved = is_send ? ProgressSend(ring, message) : ProgressReceive(ring, message);
        rings = rings || moved;
        if (!(is_send ? IsSent(message) : IsReceived(message))) break;
        messages.pop_front();
        has_moved = true;
      }
      if (rings) {
        has_moved = true;
        segment_.RingDoorbell(peer);
      }
      queue = messages.empty() ? queues.erase(queue) : std::next(queue);
    }
  };
  progress(sends_, true);
  progress(receives_, false);
  return has_moved;
}

Collective::Collective(Segment& segment, int rank, int ranks, const Operation& operation)
    : rank_(rank),
      ranks_(ranks),
      operation_(operation),
      size_(SizeOf(operation.dtype)),
      transfers_(segment, Channel::kCollective, rank) {}

bool Collective::Progress() {
  bool has_moved = false;
  while (!is_done_) {
    if (!transfers_.IsDone()) {
      has_moved = transfers_.Progress() || has_moved;
      if (!transfers_.IsDone()) break;
    }
    is_done_ = !BeginStep();
    ++step_;
    has_moved = true;
  }
  return has_moved;
}

size_t Collective::BlockOf(int rank) const {
  const auto ranks = static_cast<size_t>(ranks_);
  const auto index = static_cast<size_t>(rank);
  return operation_.count / ranks * index + std::min(operation_.count % ranks, index);
}

void Collective::SendTo(int peer, const unsigned char* data, size_t bytes) {
  transfers_.Send(peer, operation_.kind, operation_.root, data, bytes);
}

void Collective::ReceiveFrom(int peer, unsigned char* data, size_t bytes) {
  transfers_.Receive(peer, operation_.kind, operation_.root, data, bytes);
}

void Collective::ReceiveParts(size_t count) {
  parts_.resize(Bytes(count) * static_cast<size_t>(ranks_));
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer != rank_) ReceiveFrom(peer, parts_.data() + Bytes(count) * peer, Bytes(count));
  }
}

void Collective::ReduceParts(size_t begin, size_t count, unsigned char* to) {
  if (ranks_ == 1) return Copy(to, source_, Bytes(count));
  std::vector<const void*> inputs;
  for (int peer = 0; peer < ranks_; ++peer) {
    inputs.push_back(peer == rank_ ? source_ + Bytes(begin) : parts_.data() + Bytes(count) * peer);
  }
  Reduce(operation_.dtype, operation_.op, to, inputs, count);
}

void Collective::PrepareSource() {
  source_ = static_cast<const unsigned char*>(operation_.send);
  const bool has_parts =
      operation_.kind == Kind::kReduceScatter || operation_.kind == Kind::kAllToAll;
  const size_t count = operation_.count * (has_parts ? static_cast<size_t>(ranks_) : 1);
  if (operation_.scalar != nullptr) {
    const Scalar& scalar = *operation_.scalar;
    copy_.resize(Bytes(count));
    Scale(operation_.dtype, scalar.address == nullptr ? scalar.value : scalar.address, copy_.data(),
          source_, count);
    source_ = copy_.data();
  } else if (operation_.kind == Kind::kAllToAll && operation_.send == operation_.receive) {
    copy_.assign(source_, source_ + Bytes(count));
    source_ = copy_.data();
  }
}

bool Collective::BeginStep() {
  auto* const receive = static_cast<unsigned char*>(operation_.receive);
  const size_t count = operation_.count;
  const size_t bytes = Bytes(count);
  const bool is_root = rank_ == operation_.root;
  if (step_ == 0) PrepareSource();
  const auto each_peer = [&](const auto& function) {
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer != rank_) function(peer, bytes * static_cast<size_t>(peer));
    }
  };
  const size_t own = bytes * static_cast<size_t>(rank_);
  switch (operation_.kind) {
    case Kind::kAllReduce: {
      const size_t begin = BlockOf(rank_);
      const size_t length = BlockOf(rank_ + 1) - begin;
      const auto bytes_of = [&](int peer) { return Bytes(BlockOf(peer + 1) - BlockOf(peer)); };
      if (step_ == 0) {
        each_peer([&](int peer, size_t) {
          SendTo(peer, source_ + Bytes(BlockOf(peer)), bytes_of(peer));
        });
        ReceiveParts(length);
        return true;
      }
      if (step_ == 1) {
        ReduceParts(begin, length, receive + Bytes(begin));
        each_peer([&](int peer, size_t) {
          SendTo(peer, receive + Bytes(begin), Bytes(length));
          ReceiveFrom(peer, receive + Bytes(BlockOf(peer)), bytes_of(peer));
        });
        return true;
      }
      return false;
    }
    case Kind::kReduceScatter:
      if (step_ == 0) {
        each_peer([&](int peer, size_t offset) { SendTo(peer, source_ + offset, bytes); });
        ReceiveParts(count);
        return true;
      }
      ReduceParts(count * static_cast<size_t>(rank_), count, receive);
      return false;
    case Kind::kReduce:
      if (step_ == 0) {
        if (is_root) {
          ReceiveParts(count);
        } else {
          SendTo(operation_.root, source_, bytes);
        }
        return true;
      }
      if (is_root) ReduceParts(0, count, receive);
      return false;
    case Kind::kBroadcast:
      if (step_ > 0) return false;
      if (is_root) {
        Copy(receive, source_, bytes);
        each_peer([&](int peer, size_t) { SendTo(peer, source_, bytes); });
      } else {
        ReceiveFrom(operation_.root, receive, bytes);
      }
      return true;
    case Kind::kAllGather:
      if (step_ > 0) return false;
      Copy(receive + own, source_, bytes);
      each_peer([&](int peer, size_t offset) {
        SendTo(peer, receive + own, bytes);
        ReceiveFrom(peer, receive + offset, bytes);
      });
      return true;
    case Kind::kAllToAll:
      if (step_ > 0) return false;
      Copy(receive + own, source_ + own, bytes);
      each_peer([&](int peer, size_t offset) {
        SendTo(peer, source_ + offset, bytes);
        ReceiveFrom(peer, receive + offset, bytes);
      });
      return true;
    case Kind::kGather:
      if (step_ > 0) return false;
      if (is_root) {
        Copy(receive + own, source_, bytes);
        each_peer([&](int peer, size_t offset) { ReceiveFrom(peer, receive + offset, bytes); });
      } else {
        SendTo(operation_.root, source_, bytes);
      }
      return true;
    case Kind::kScatter:
      if (step_ > 0) return false;
      if (is_root) {
        Copy(receive, source_ + own, bytes);
        each_peer([&](int peer, size_t offset) { SendTo(peer, source_ + offset, bytes); });
      } else {
        ReceiveFrom(operation_.root, receive, bytes);
      }
      return true;
    case Kind::kSend:
    case Kind::kReceive:
    case Kind::kControl:
      break;
  }
  return false;
}

Execution::Execution(Segment& segment, int rank, int ranks,
                     const std::vector<Operation>& operations)
    : messages_(segment, Channel::kPointToPoint, rank) {
  for (const Operation& operation : operations) {
    const size_t bytes = operation.count * SizeOf(operation.dtype);
    if (operation.kind == Kind::kSend) {
      messages_.Send(operation.root, Kind::kSend, 0, operation.send, bytes);
    } else if (operation.kind == Kind::kReceive) {
      messages_.Receive(operation.root, Kind::kSend, 0, operation.receive, bytes);
    } else {
      collectives_.emplace_back(segment, rank, ranks, operation);
    }
  }
}

bool Execution::Progress() {
  bool has_moved = messages_.Progress();
  while (!collectives_.empty()) {
    has_moved = collectives_.front().Progress() || has_moved;
    if (!collectives_.front().IsDone()) break;
    collectives_.pop_front();
  }
  return has_moved;
}

}  // namespace fake_nccl
