#include "backends/gloo/p2p.h"

#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "backends/gloo/slots.h"
#include "core/base/interrupt.h"
#include "core/base/status.h"
#include "gloo/common/error.h"

namespace syncline {
namespace {

using gloo::transport::UnboundBuffer;

std::vector<int> AllBut(int rank, int size) {
  std::vector<int> others;
  for (int other = 0; other < size; ++other) {
    if (other != rank) others.push_back(other);
  }
  return others;
}

// Goes before every message. Plain bytes.
struct Header {
  uint64_t sequence;
  int64_t count;
  uint64_t dtype;
};

// Of each message its own, since a receive from any rank and one from its sender may be under way
// at once. 24 bits of the number are enough: of one pair and tag, one message is sent at a time.
uint64_t ElementsSlot(const Header& header, int tag) {
  return kElementsSlot | (header.sequence & 0xffffff) << 32 | static_cast<uint32_t>(tag);
}

// The call of rank `src`, whose header rank `dst` has received.
absl::StatusOr<Call> SentCall(const Header& header, int src, int dst, int tag) {
  if (header.dtype >= AllDTypes().size()) {
    return MismatchError(absl::StrCat("rank ", src, " sent elements of an unknown type (number ",
                                      header.dtype, "): do all ranks run the same version of ",
                                      "Syncline?"));
  }
  Call sent{OpKind::kSend, header.sequence, static_cast<DType>(header.dtype), header.count};
  sent.peer = dst;
  sent.tag = tag;
  return sent;
}

}  // namespace

void P2p::Send(gloo::Context& gloo, const Tensor& tensor, const Call& call) {
  Header header = {call.sequence, call.count, static_cast<uint64_t>(call.dtype)};
  auto announced = gloo.createUnboundBuffer(&header, sizeof(header));
  auto elements = gloo.createUnboundBuffer(tensor.data(), tensor.nbytes());
  announced->send(call.peer, kHeaderSlot + call.tag);
  elements->send(call.peer, ElementsSlot(header, call.tag));
  announced->waitSend();
  elements->waitSend();
}

absl::StatusOr<int> P2p::Recv(gloo::Context& gloo, const Tensor& tensor, const Call& call,
                              const Deadline& deadline) {
  SYNCLINE_RETURN_IF_ERROR(AwaitTurn(call.tag, deadline));
  Header header = {};
  auto announced = gloo.createUnboundBuffer(&header, sizeof(header));
  int src = call.peer;
  if (src == kAnySource) {
    src = ReceiveFromAny(*announced, AllBut(gloo.rank, gloo.size), call.tag);
  } else {
    announced->recv(src, kHeaderSlot + call.tag);
    announced->waitRecv();
  }
  SYNCLINE_ASSIGN_OR_RETURN(const Call sent, SentCall(header, src, gloo.rank, call.tag));
  SYNCLINE_RETURN_IF_ERROR(CheckFits(sent, src, call, gloo.rank));
  auto elements = gloo.createUnboundBuffer(tensor.data(), tensor.nbytes());
  elements->recv(src, ElementsSlot(header, call.tag));
  elements->waitRecv();
  return src;
}

absl::Status P2p::AwaitTurn(int tag, const Deadline& deadline) {
  absl::MutexLock lock(&mutex_);
  auto free = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return from_any_.count(tag) == 0; };
  if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&free))) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(Interruption());
  return TimeoutError(
      absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
}

int P2p::ReceiveFromAny(UnboundBuffer& buffer, const std::vector<int>& sources, int tag) {
  {
    absl::MutexLock lock(&mutex_);
    if (deserted_) throw gloo::IoException("all other ranks have left");
    from_any_[tag] = &buffer;
  }
  const absl::Cleanup next = [&] {
    absl::MutexLock lock(&mutex_);
    from_any_.erase(tag);
  };
  buffer.recv(sources, kHeaderSlot + tag);
  int src = kAnySource;
  buffer.waitRecv(&src);
  return src;
}

void P2p::EndFromAny() {
  absl::MutexLock lock(&mutex_);
  deserted_ = true;
  for (const auto& [tag, buffer] : from_any_) buffer->abortWaitRecv();
}

}  // namespace syncline
