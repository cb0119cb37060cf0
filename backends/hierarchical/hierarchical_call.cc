#include "backends/hierarchical/hierarchical_call.h"

#include <algorithm>

#include "backends/common/call_description.h"
#include "backends/common/tensor_steps.h"
#include "backends/hierarchical/thresholds.h"
#include "syncline/check.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// Of messages within the node that are steps of a collective. Users' tags are not negative.
constexpr int kPartsTag = -1;

// For the steps within the node. It counts from its first wait, and a copy from its own.
const Deadline& SharedDeadline(const Transports& transports, const CallContext& context) {
  if (transports.shm != nullptr) context.deadline.Expired();
  return context.deadline;
}

}  // namespace

// The operations of messages name the ranks that called them.
bool IsMismatchOfMessages(const absl::Status& status) {
  if (KindOf(status) != ErrorKind::kMismatch) return false;
  const auto origin = OriginOf(status);
  return origin.has_value() && !origin->operations.empty() &&
         origin->operations[0].rank != ErrorOrigin::Operation::kNoRank;
}

namespace {

// Whether a MismatchError, of shared memory, is about the call of `context` itself: not about a
// message, nor about a call before in which ranks did not meet. Another rank's call may have
// another number.
bool IsMismatchOf(const CallContext& context, const absl::Status& status) {
  if (KindOf(status) != ErrorKind::kMismatch || IsMismatchOfMessages(status)) return false;
  const auto origin = OriginOf(status);
  return !origin.has_value() ||
         std::any_of(origin->operations.begin(), origin->operations.end(),
                     [&](const auto& operation) { return operation.sequence == context.sequence; });
}

// Whether a MismatchError of the node is about the same calls: then the other rank has called
// AbortPeers, as the difference is elsewhere. Of sizes by rank, names and user's tensors a quote
// may show nothing.
bool IsAbortOf(const Collective& call, const absl::Status& mismatch) {
  return backends::QuotesLikeCalls(mismatch) && call.user_tensors == nullptr &&
         backends::HasFixedSize(call.kind);
}

}  // namespace

// The exchange is one of a single rank: it only builds the record and compares others with it.
HierarchicalCall::HierarchicalCall(const Transports& transports, const CallContext& context)
    : transports_(transports),
      context_(context),
      local_context_{context.sequence, SharedDeadline(transports, context)},
      exchange_(backends::FingerprintRecord::Of(context), 0, 1),
      sent_record_ends_(transports.topology.node_count()) {
  local_context_.salt = backends::HashOf(exchange_.record());
  local_context_.meets = !goes_ahead();
  transports_.arena.Reset();
}

absl::Status HierarchicalCall::RunInNode(const Collective& collective) {
  local_context_.step_of = IsP2p(collective.kind) ? nullptr : context_.collective;
  const absl::Status status = RunAndWait(*transports_.shm, collective, local_context_).status();
  // In other cases some rank has gone on, and will not come to exchange the calls in full.
  if (IsMismatchOf(context_, status) && !goes_ahead() && transports_.shm->AllMeet()) {
    has_mismatch_ = true;
    is_of_other_nodes_ = IsAbortOf(*context_.collective, status);
  }
  return status;
}

// A rank that is alone on its node has no steps within it, except the copies that they would make.
absl::Status HierarchicalCall::Broadcast(const Tensor& tensor, int root) {
  if (transports_.shm == nullptr) return absl::OkStatus();
  return RunInNode(Collective::Broadcast(tensor, root));
}

absl::Status HierarchicalCall::AllReduce(const Tensor& tensor, ReduceOp op) {
  if (transports_.shm == nullptr) return absl::OkStatus();
  return RunInNode(Collective::AllReduce(tensor, op));
}

absl::Status HierarchicalCall::Reduce(const Tensor& tensor, ReduceOp op, int root) {
  if (transports_.shm == nullptr) return absl::OkStatus();
  return RunInNode(Collective::Reduce(tensor, op, root));
}

absl::Status HierarchicalCall::AllGather(absl::Span<const Tensor> outputs, const Tensor& input) {
  if (transports_.shm != nullptr) return RunInNode(Collective::AllGather(outputs, input));
  backends::CopyElements(input, outputs[0]);
  return absl::OkStatus();
}

absl::Status HierarchicalCall::Gather(absl::Span<const Tensor> outputs, const Tensor& input,
                                      int root) {
  if (transports_.shm != nullptr) return RunInNode(Collective::Gather(outputs, input, root));
  backends::CopyElements(input, outputs[0]);
  return absl::OkStatus();
}

absl::Status HierarchicalCall::Scatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                       int root) {
  if (transports_.shm != nullptr) return RunInNode(Collective::Scatter(output, inputs, root));
  backends::CopyElements(inputs[0], output);
  return absl::OkStatus();
}

absl::Status HierarchicalCall::ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs,
                                             ReduceOp op) {
  if (transports_.shm != nullptr) return RunInNode(Collective::ReduceScatter(output, inputs, op));
  backends::CopyElements(inputs[0], output);
  return absl::OkStatus();
}

absl::Status HierarchicalCall::AllToAll(absl::Span<const Tensor> outputs,
                                        absl::Span<const Tensor> inputs) {
  if (transports_.shm != nullptr) return RunInNode(Collective::AllToAll(outputs, inputs));
  backends::CopyElements(inputs[0], outputs[0]);
  return absl::OkStatus();
}

absl::Status HierarchicalCall::Barrier() {
  if (transports_.shm == nullptr) return absl::OkStatus();
  return RunInNode(Collective::Barrier());
}

// By messages, not as shm's gather, whose parts all have one size.
absl::Status HierarchicalCall::GatherUneven(absl::Span<const Tensor> parts, const Tensor& own,
                                            int root) {
  if (topology().local_rank != root) {
    if (own.numel() == 0) return absl::OkStatus();
    return RunInNode(Collective::Send(own, root, kPartsTag));
  }
  for (int from = 0; from < static_cast<int>(parts.size()); ++from) {
    if (from == root || parts[from].numel() == 0) continue;
    SYNCLINE_RETURN_IF_ERROR(RunInNode(Collective::Recv(parts[from], from, kPartsTag)));
  }
  return absl::OkStatus();
}

absl::Status HierarchicalCall::SendFingerprint() {
  SYNCLINE_DCHECK(is_on_rail());
  SYNCLINE_RETURN_IF_ERROR(history().Begin(exchange_.record(), context_));
  NoteSentRecords();
  return absl::OkStatus();
}

void HierarchicalCall::NoteSentRecords() {
  has_sent_fingerprint_ = true;
  for (int node = 0; node < node_count(); ++node) {
    sent_record_ends_[node] = transports_.rail->bytes_to_send(node);
  }
}

// Data may have come behind the records by now, but only as much as this rank has posted receives
// for; if calls differ, it is garbage in memory of this collective, whose contents are undefined
// after an error.
absl::Status HierarchicalCall::CheckFingerprints() {
  SYNCLINE_DCHECK(is_on_rail());
  absl::Status have_come = history().AwaitEarlierRecords();
  if (have_come.ok()) have_come = history().AwaitRecords();
  SYNCLINE_RETURN_IF_ERROR(CompareRecords(have_come));
  history().NoteMeeting();
  return absl::OkStatus();
}

// A mismatch with those that have come explains more than that another has not.
absl::Status HierarchicalCall::CompareRecords(const absl::Status& have_come) {
  if (KindOf(have_come) == ErrorKind::kMismatch) return have_come;  // Of an earlier call.
  // Whoever has ended the group says why. But if this rank's time is up too, it takes that for what
  // it waited for, though it may have seen more.
  const bool is_ended = transports_.rail->is_aborted() && !context_.deadline.Expired();
  if (!have_come.ok() && is_ended) return have_come;
  absl::Status mismatch;  // That two records show.
  bool are_same = true, all_meet = true;
  for (int node = 0; node < node_count(); ++node) {
    if (node == topology().node || !history().HasCome(node)) continue;
    const backends::FingerprintRecord& record = history().of(node);
    exchange_.Merge(record);
    const absl::Status same = history().Compare(node);
    are_same = are_same && same.ok();
    all_meet = all_meet && !record.goes_ahead();
    // Ranks of a node that differ among themselves quote what they have called. The record of one
    // that is in the same call as this rank shows nothing of it.
    const bool shows_nothing = record.is_rejected() && record.call == exchange_.record().call;
    if (!shows_nothing) mismatch.Update(same);
  }
  if (are_same) return have_come;
  seen_mismatch_ = mismatch;
  if (have_come.ok() && (all_meet || mismatch.ok())) return DifferentCalls();
  // If not all ranks will come to exchange the calls in full, this one says what it knows.
  return mismatch.ok() ? have_come : mismatch;
}

absl::Status HierarchicalCall::DifferentCalls() {
  has_mismatch_ = true;
  return MismatchError("nodes made different calls");
}

absl::Status HierarchicalCall::BeginRelayed() {
  SYNCLINE_DCHECK(relays() && is_leader());
  backends::FingerprintRecord record = exchange_.record();
  record.SetRelays();
  SYNCLINE_RETURN_IF_ERROR(history().Begin(record, context_));
  has_sent_fingerprint_ = true;  // As far as anybody waits for it.
  return absl::OkStatus();
}

// A record alone does not speak for those of whom its sender has yet to hear: it may have come
// early.
absl::Status HierarchicalCall::Relay(int to, const Tensor& given, int from, const Tensor& taken) {
  const Tensor words = arena().Allocate(DType::kInt64, 2);
  auto* const differs = words.data_as<int64_t>();  // As this rank says, and as the other does.
  differs[0] = has_heard_of_difference_ ? 1 : 0;
  differs[1] = 0;
  history().Relay(to, words.Slice(0, 1));
  Send(to, given);
  Receive(from, words.Slice(1, 1));
  Receive(from, taken);
  absl::Status come = history().AwaitRecord(from);
  if (!come.ok()) return CompareRecords(come);
  const absl::Status same = history().Compare(from);
  // One that goes ahead will not come to exchange the calls in full.
  if (!same.ok() && history().of(from).goes_ahead()) return same;
  if (same.ok()) come = history().AwaitRelayed(from);
  if (!come.ok()) return CompareRecords(come);
  has_heard_of_difference_ = has_heard_of_difference_ || !same.ok() || differs[1] != 0;
  return absl::OkStatus();
}

// All come to exchange the calls in full once all have come to this one. Until then the rail is
// served: others may need what this rank has sent them.
absl::Status HierarchicalCall::EndRelayed() {
  if (!has_heard_of_difference_) return history().EndRelayed();
  history().TellAll();
  NoteSentRecords();
  SYNCLINE_RETURN_IF_ERROR(CompareRecords(history().AwaitRecords()));
  return DifferentCalls();
}

absl::Status HierarchicalCall::BeginAhead() {
  SYNCLINE_DCHECK(goes_ahead() && is_leader());
  backends::FingerprintRecord record = exchange_.record();
  record.SetGoesAhead();
  return history().Begin(record, context_);
}

// A node that has not come must not keep the others from getting theirs.
absl::Status HierarchicalCall::SendAhead(absl::Span<const int> to,
                                         absl::FunctionRef<const Tensor&(int)> tensor_for) {
  absl::InlinedVector<int, 4> waiting(to.begin(), to.end());
  while (true) {
    const auto give = [&](int node) {
      const Tensor& tensor = tensor_for(node);
      if (!history().HasRoom(node, tensor.nbytes())) return false;
      history().Give(node, tensor);
      return true;
    };
    waiting.erase(std::remove_if(waiting.begin(), waiting.end(), give), waiting.end());
    if (waiting.empty()) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(
        history().AwaitRoom(waiting, [&](int node) { return tensor_for(node).nbytes(); }));
  }
}

void HierarchicalCall::Send(int to, const Tensor& tensor) {
  SYNCLINE_DCHECK(is_on_rail());
  transports_.rail->Send(to, tensor.data(), tensor.nbytes());
}

void HierarchicalCall::SendToAll(const Tensor& tensor) {
  for (int distance = 1; distance < node_count(); ++distance) {
    Send(topology().NodeAt(distance), tensor);
  }
}

void HierarchicalCall::Receive(int from, const Tensor& tensor) {
  SYNCLINE_DCHECK(is_on_rail());
  transports_.rail->Receive(from, tensor.data(), tensor.nbytes());
}

HierarchicalCall::Progress HierarchicalCall::progress() const {
  SYNCLINE_DCHECK(is_on_rail());
  Progress progress;
  for (int node = 0; node < node_count(); ++node) {
    progress.sent.push_back(transports_.rail->bytes_to_send(node));
    progress.received.push_back(transports_.rail->bytes_to_receive(node));
  }
  return progress;
}

absl::Status HierarchicalCall::Await(const Progress& progress) {
  SYNCLINE_DCHECK(is_on_rail());
  for (int node = 0; node < node_count(); ++node) {
    SYNCLINE_RETURN_IF_ERROR(
        transports_.rail->AwaitReceived(node, progress.received[node], context_.deadline));
    SYNCLINE_RETURN_IF_ERROR(
        transports_.rail->AwaitSent(node, progress.sent[node], context_.deadline));
  }
  return absl::OkStatus();
}

absl::Status HierarchicalCall::AwaitAll() {
  SYNCLINE_DCHECK(is_on_rail());
  return transports_.rail->AwaitAll(context_.deadline);
}

absl::Status HierarchicalCall::MakeProgress() {
  SYNCLINE_DCHECK(is_on_rail());
  return transports_.rail->MakeProgress();
}

bool HierarchicalCall::AbortPeers() {
  bool all_meet = true;
  // A fingerprint that this rank has sent shows the other nodes that their calls differ from this
  // node's, if they do. If it has sent none, the difference is within the node, so this rank's own
  // call may be the same as theirs: only a rejected record tells them.
  if (is_on_rail()) {
    if (!has_sent_fingerprint_) {
      exchange_.Reject();
      all_meet = SendFingerprint().ok() && AllNodesMeet();
    }
    // It may still wait for room, and from here on nobody serves the rail.
    const Deadline soon(std::min(context_.deadline.Remaining(), kAbortPeersTimeout));
    for (int node = 0; node < node_count(); ++node) {
      if (transports_.rail->AwaitSent(node, sent_record_ends_[node], soon).ok()) continue;
      transports_.rail->Abort();  // Whoever has not got it need not wait for it.
      break;
    }
  }
  // A call that no rank of the node makes: shm finds the mismatch, which fails its group and so
  // ends every wait in it.
  if (transports_.shm == nullptr) return all_meet;
  local_context_.salt = ~local_context_.salt;
  local_context_.meets = true;
  RunAndWait(*transports_.shm, Collective::Barrier(), local_context_).status().IgnoreError();
  return all_meet;
}

bool HierarchicalCall::AllNodesMeet() {
  const auto is_clear = [&] {
    bool all_have_come = true;
    for (int node = 0; node < node_count(); ++node) {
      if (node == topology().node) continue;
      if (history().HasCome(node) && history().of(node).goes_ahead()) return true;
      all_have_come = all_have_come && history().HasCome(node);
    }
    return all_have_come;
  };
  const Deadline soon(std::min(context_.deadline.Remaining(), kMeetingTimeout));
  if (!transports_.rail->Await(is_clear, soon).ok()) return false;
  for (int node = 0; node < node_count(); ++node) {
    if (node != topology().node && history().of(node).goes_ahead()) return false;
  }
  return true;
}

}  // namespace syncline::hierarchical
