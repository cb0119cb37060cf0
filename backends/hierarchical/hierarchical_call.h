// One collective of one rank over several nodes: the steps of which the algorithms are made, and
// the comparison of the ranks' calls. docs/internals/hierarchical_protocol.md describes the
// protocol.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_CALL_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_CALL_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/scratch_arena.h"
#include "backends/hierarchical/rail_history.h"
#include "backends/hierarchical/rail_sockets.h"
#include "backends/hierarchical/topology.h"
#include "backends/shm/shm_backend.h"
#include "syncline/backend.h"
#include "syncline/reduce_op.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// How the ranks of a collective meet, that is, wait until all others have come to it.
enum class Meeting {
  kDirect,   // Each leader hears of each other from that itself.
  kRelayed,  // Leaders hear of some others through others.
  kNone,     // Ranks do not meet. The collective has a root, which is the leader of its node.
};

// What a collective of one rank may use. Borrowed.
struct Transports {
  const Topology& topology;
  shm::NodeBackend* shm;  // Among the ranks of this node; null if this rank is alone.
  RailSockets* rail;      // Members are nodes; null if this rank is on no rail.
  RailHistory* history;   // Of the rail.
  backends::ScratchArena& arena;
  Meeting meeting;
};

// Whether a MismatchError, of shared memory, is about a send and the receive that it does not fit.
bool IsMismatchOfMessages(const absl::Status& status);

// Ranks see as follows that all of them have made the same call. In each step within the node its
// ranks meet, and backend shm compares their calls. Then each rank on a rail sends its node's
// fingerprint to the other nodes, ahead of the data: SendFingerprint. Before it takes received data
// as valid, it checks theirs: CheckFingerprints. A rank that has found a difference calls
// AbortPeers, so that ranks that have not found it stop waiting.
//
// In a call in which ranks do not meet (goes_ahead), a rank waits, within its node too, only for
// those whose data it takes. Between the nodes the steps are those of leaders: BeginAhead,
// SendAhead, Receive with AwaitData, and EndAhead. A rank compares its call with those of the ranks
// whose data it takes, and hears later, of backend shm or of RailHistory, of others that have
// called something else.
//
// In a call in which they meet through others (relays), they meet within the node as usual. Between
// the nodes the steps of leaders are BeginRelayed, rounds of Relay, and EndRelayed. With what a
// leader gives in a round it says whether it has heard of calls that differ, from the nodes before
// it in the rounds, so that after all rounds all leaders know: see backends::FingerprintExchange.
//
// Not thread-safe. Borrows the transports and the call's tensors for the duration of the
// collective. Errors of all steps: a MismatchError if the calls differ, which is for the user
// unless has_mismatch(); otherwise those of backend shm, whose ranks may wait for others than those
// that they name, and of RailSockets.
class HierarchicalCall {
 public:
  HierarchicalCall(const Transports& transports, const CallContext& context);

  const Topology& topology() const { return transports_.topology; }
  backends::ScratchArena& arena() { return transports_.arena; }
  bool is_on_rail() const { return transports_.rail != nullptr; }
  // Whether this rank has local rank 0. The leaders of all nodes are on rail 0.
  bool is_leader() const { return topology().local_rank == 0; }
  // Whether this node has other ranks.
  bool has_neighbours() const { return transports_.shm != nullptr; }

  // Within the node: the operations of Backend, where ranks are local ranks. All ranks of the node
  // must call them, in the same order.
  absl::Status Broadcast(const Tensor& tensor, int root);
  absl::Status AllReduce(const Tensor& tensor, ReduceOp op);
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root);
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input);
  absl::Status Gather(absl::Span<const Tensor> outputs, const Tensor& input, int root);
  absl::Status Scatter(const Tensor& output, absl::Span<const Tensor> inputs, int root);
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op);
  absl::Status AllToAll(absl::Span<const Tensor> outputs, absl::Span<const Tensor> inputs);
  absl::Status Barrier();
  // Copies the own part of local rank r to parts[r] of local rank `root`. The parts need not have
  // one size. The root's own part must be there already. Ranks with empty parts are not waited for.
  absl::Status GatherUneven(absl::Span<const Tensor> parts, const Tensor& own, int root);

  // Between the nodes, on this rank's rail, where ranks are nodes; requires is_on_rail().
  // SendFingerprint comes first, once. Sends and receives move when something is awaited.
  absl::Status SendFingerprint();
  absl::Status CheckFingerprints();
  // Of all_to_all: the elements of each part that a node's ranks send and expect, as its leader
  // says; -1 if they differ. That of this node is what this rank knows of itself, until its leader
  // has said more, before SendFingerprint. The others, and whether all are one, are known after
  // CheckFingerprints.
  int64_t even_count(int node) const {
    return node == topology().node ? exchange_.record().even : history().of(node).even;
  }
  void SetEvenCount(int64_t count) { exchange_.SetEvenCount(count); }
  bool all_even() const { return exchange_.all_even(); }
  void Send(int to, const Tensor& tensor);
  void SendToAll(const Tensor& tensor);
  void Receive(int from, const Tensor& tensor);

  // A position in the streams of all connections of the rail.
  struct Progress {
    absl::InlinedVector<uint64_t, 4> sent, received;  // Bytes, by node.
  };
  // The position after all sends and receives so far.
  Progress progress() const;
  absl::Status Await(const Progress& progress);
  absl::Status AwaitAll();
  // Moves what moves without a wait.
  absl::Status MakeProgress();

  // Where ranks do not meet: the first step. The fingerprint goes along with data, or later.
  bool goes_ahead() const { return transports_.meeting == Meeting::kNone; }
  absl::Status BeginAhead();
  // Sends to each of the nodes the tensor for it, once there is room for what that node has not
  // taken yet.
  absl::Status SendAhead(absl::Span<const int> to,
                         absl::FunctionRef<const Tensor&(int node)> tensor_for);
  // Waits for what was expected from nodes, which is valid then, and of the same call; of a node
  // that has left since, too.
  absl::Status AwaitData(absl::Span<const int> from) { return history().AwaitData(from); }
  // The last step: what others may wait for has been sent. Only now may the caller's tensors be
  // written: where it had to wait, it may have found that some rank made another call.
  absl::Status EndAhead() { return history().End(); }

  // Where ranks meet through others. A round is over once what is taken has come; it is undefined
  // if calls differ, which EndRelayed tells, after all rounds.
  bool relays() const { return transports_.meeting == Meeting::kRelayed; }
  absl::Status BeginRelayed();
  absl::Status Relay(int to, const Tensor& given, int from, const Tensor& taken);
  absl::Status EndRelayed();

  // Whether this rank has found that calls differ, and the others will come to exchange them in
  // full.
  bool has_mismatch() const { return has_mismatch_; }
  // Whether it has only found that another rank of its node has called AbortPeers, so that the
  // difference is between nodes.
  bool is_of_other_nodes() const { return is_of_other_nodes_; }
  // The difference that it has seen between two nodes; OK if none.
  const absl::Status& seen_mismatch() const { return seen_mismatch_; }

  // Makes the ranks that this rank was to meet find a mismatch too: those of its rail, by a record,
  // and those of its node. Waits for the latter, until the deadline at most. Afterwards the
  // transports of this rank are of no more use. Returns whether others will come to exchange the
  // calls in full, as far as this rank hears from them in time: ranks of another node may have gone
  // ahead.
  bool AbortPeers();

 private:
  absl::Status DifferentCalls();
  void NoteSentRecords();
  // After a wait for the records of all nodes, or for what one relays: the error of the wait, or
  // what is to be said of calls that differ, as far as records have come.
  absl::Status CompareRecords(const absl::Status& have_come);
  // Whether the leaders of all other nodes have come to this call, within kMeetingTimeout, and none
  // goes ahead.
  bool AllNodesMeet();
  // A step within the node, which has other ranks. Notes whether it has found a mismatch.
  absl::Status RunInNode(const Collective& collective);
  int node_count() const { return topology().node_count(); }
  RailHistory& history() const { return *transports_.history; }

  const Transports transports_;
  const CallContext& context_;
  // For the steps within the node. Its fingerprint hash makes shm compare the calls of this
  // collective, of which the steps themselves may show nothing.
  CallContext local_context_;
  backends::FingerprintExchange exchange_;
  // By node: that in the stream to it at which this node's record has gone.
  absl::InlinedVector<uint64_t, 4> sent_record_ends_;
  bool has_sent_fingerprint_ = false;
  bool has_heard_of_difference_ = false;  // In a relayed call.
  bool has_mismatch_ = false;
  bool is_of_other_nodes_ = false;
  absl::Status seen_mismatch_;
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_HIERARCHICAL_CALL_H_
