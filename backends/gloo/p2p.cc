#include "backends/gloo/p2p.h"

#include <cstdint>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "backends/common/call_description.h"
#include "backends/common/message_transport.h"
#include "backends/gloo/slots.h"
#include "gloo/common/error.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::gloo_backend {
namespace {

using gloo::transport::UnboundBuffer;

// The message that goes before the elements of every Send. Plain bytes.
struct MessageHeader {
  uint64_t sequence;
  int64_t count;
  uint64_t dtype;
};

// Each message has a slot of its own, because a receive from any rank and one from the message's
// sender may be under way at once. 24 bits of the number are enough: of one pair and tag, one
// message is sent at a time.
uint64_t ElementsSlot(const MessageHeader& header, int tag) {
  return kElementsSlot | (header.sequence & 0xffffff) << 32 | static_cast<uint32_t>(tag);
}

// Rebuilds the call of rank `src` from the header that rank `dst` has received.
absl::StatusOr<backends::CallDescription> SentCall(const MessageHeader& header, int src, int dst,
                                                   int tag) {
  if (header.dtype >= AllDTypes().size()) {
    return WithRanks(MismatchError(absl::StrCat(
                         "rank ", src, " sent elements of an unknown type (number ", header.dtype,
                         "): do all ranks run the same version of ", "Syncline?")),
                     {src});
  }
  backends::CallDescription sent{OpKind::kSend, header.sequence, static_cast<DType>(header.dtype),
                                 header.count};
  sent.peer = dst;
  sent.tag = tag;
  return sent;
}

}  // namespace

void P2p::Send(gloo::Context& gloo, const Tensor& tensor, const CallContext& context) {
  const int dst = context.collective->peer;
  const int tag = static_cast<int>(context.collective->tag);
  MessageHeader header = {context.sequence, tensor.numel(), static_cast<uint64_t>(tensor.dtype())};
  auto announced = gloo.createUnboundBuffer(&header, sizeof(header));
  auto elements = gloo.createUnboundBuffer(tensor.data(), tensor.nbytes());
  announced->send(dst, kHeaderSlot + tag);
  // Gloo sends these bytes only once the peer has posted a receive for them, which it does after it
  // has checked the header.
  elements->send(dst, ElementsSlot(header, tag));
  announced->waitSend();
  elements->waitSend();
}

absl::StatusOr<int> P2p::Recv(gloo::Context& gloo, const Tensor& tensor,
                              const CallContext& context) {
  const int tag = static_cast<int>(context.collective->tag);
  SYNCLINE_RETURN_IF_ERROR(AwaitTurn(tag, context.deadline));
  MessageHeader header = {};
  auto announced = gloo.createUnboundBuffer(&header, sizeof(header));
  int src = context.collective->peer;
  if (src == kAnySource) {
    src = ReceiveFromAny(*announced, backends::OtherRanks(gloo.rank, gloo.size), tag);
  } else {
    announced->recv(src, kHeaderSlot + tag);
    announced->waitRecv();
  }
  SYNCLINE_ASSIGN_OR_RETURN(const backends::CallDescription sent,
                            SentCall(header, src, gloo.rank, tag));
  SYNCLINE_RETURN_IF_ERROR(
      backends::CheckFits(sent, src, backends::CallDescription(context), gloo.rank));
  auto elements = gloo.createUnboundBuffer(tensor.data(), tensor.nbytes());
  elements->recv(src, ElementsSlot(header, tag));
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
    if (all_have_left_) throw gloo::IoException("all other ranks have left");
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

void P2p::FailAnySourceReceives() {
  absl::MutexLock lock(&mutex_);
  all_have_left_ = true;
  for (const auto& [tag, buffer] : from_any_) buffer->abortWaitRecv();
}

}  // namespace syncline::gloo_backend
