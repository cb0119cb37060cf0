#include "backends/mpi/mpi_p2p.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "backends/common/call_description.h"
#include "backends/mpi/mpi_requests.h"
#include "backends/mpi/thresholds.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

// Elements of one pair that follow a header are numbered, since a receive from any rank and one
// from the message's sender may be under way at once. Tag 0 is that of collectives.
int ElementsTag(const MpiConnections& connections, uint64_t sequence) {
  return 1 + static_cast<int>(sequence % static_cast<uint64_t>(connections.tag_upper_bound()));
}

// Rebuilds the call of rank `src` from the header that this rank has received.
absl::StatusOr<backends::CallDescription> SentCall(const MessageHeader& header, int src, int dst) {
  if (header.dtype >= AllDTypes().size()) {
    return WithRanks(MismatchError(absl::StrCat(
                         "rank ", src, " sent elements of an unknown type (number ", header.dtype,
                         "): do all ranks run the same version of Syncline?")),
                     {src});
  }
  backends::CallDescription sent{OpKind::kSend, header.sequence, static_cast<DType>(header.dtype),
                                 header.count};
  sent.peer = dst;
  sent.tag = static_cast<int>(header.tag);
  return sent;
}

}  // namespace

absl::Status MpiP2p::Send(const Tensor& tensor, const CallContext& context) {
  const int dst = context.collective->peer;
  const int64_t tag = context.collective->tag;
  const bool is_eager = tensor.nbytes() <= kEagerMessageMaxBytes;
  const std::shared_ptr<Message> message(new Message);  // Not initialized.
  message->header = {connections_.nonce(), context.sequence, tag, tensor.numel(),
                     static_cast<uint64_t>(tensor.dtype())};
  if (is_eager && tensor.nbytes() > 0) {
    std::memcpy(message->elements, tensor.data(), tensor.nbytes());
  }
  MpiRequests requests(connections_, context);
  requests.Keep(message);
  requests.Send(connections_.messages(), dst,
                static_cast<int>(std::min<int64_t>(tag, connections_.tag_upper_bound())),
                message.get(), sizeof(MessageHeader) + (is_eager ? tensor.nbytes() : 0));
  if (!is_eager) {
    requests.Send(connections_.collectives(), dst, ElementsTag(connections_, context.sequence),
                  tensor.data(), tensor.nbytes());
  }
  return requests.Wait();
}

absl::Status MpiP2p::ReceiveMessage(const CallContext& context,
                                    const std::shared_ptr<Message>& message, int& source) {
  const Collective& call = *context.collective;
  const int from = call.peer == kAnySource ? kMpiAnySource : call.peer;
  if (call.tag >= connections_.tag_upper_bound()) {
    return matcher_.Receive(from, call.tag, context.deadline, *message, source);
  }
  MpiMessage received;
  do {
    MpiRequests requests(connections_, context);
    requests.Keep(message);
    requests.Receive(connections_.messages(), from, static_cast<int>(call.tag), message.get(),
                     sizeof(Message), &received);
    SYNCLINE_RETURN_IF_ERROR(requests.Wait());
  } while (message->header.nonce != connections_.nonce());
  source = received.source;
  return absl::OkStatus();
}

absl::StatusOr<int> MpiP2p::Recv(const Tensor& tensor, const CallContext& context) {
  const std::shared_ptr<Message> message(new Message);  // Not initialized.
  int src = 0;
  SYNCLINE_RETURN_IF_ERROR(ReceiveMessage(context, message, src));
  const int rank = connections_.peers().rank();
  SYNCLINE_ASSIGN_OR_RETURN(const backends::CallDescription sent,
                            SentCall(message->header, src, rank));
  SYNCLINE_RETURN_IF_ERROR(
      backends::CheckFits(sent, src, backends::CallDescription(context), rank));
  if (tensor.nbytes() <= kEagerMessageMaxBytes) {
    if (tensor.nbytes() > 0) std::memcpy(tensor.data(), message->elements, tensor.nbytes());
    return src;
  }
  MpiRequests requests(connections_, context);
  requests.Receive(connections_.collectives(), src,
                   ElementsTag(connections_, message->header.sequence), tensor.data(),
                   tensor.nbytes());
  SYNCLINE_RETURN_IF_ERROR(requests.Wait());
  return src;
}

}  // namespace syncline::mpi
