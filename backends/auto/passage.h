// The steps of which a collective over several hosts is made.
#ifndef SYNCLINE_BACKENDS_AUTO_PASSAGE_H_
#define SYNCLINE_BACKENDS_AUTO_PASSAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "backends/auto/topology.h"
#include "backends/auto/wires.h"
#include "backends/common/call.h"
#include "backends/common/call_agreement.h"
#include "core/group/backend.h"
#include "core/tensor/reduce_op.h"
#include "core/tensor/tensor.h"

namespace syncline {

// Memory for one call at a time, kept for the next: to get new pages from the kernel takes longer
// than to fill them.
class Memory {
 public:
  void Reset() { next_ = 0; }
  // Until Reset. What is in it is not defined.
  Tensor Take(DType dtype, int64_t count);

 private:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };

  std::vector<Block> blocks_;
  size_t next_ = 0;
};

// What one rank has of its group. Borrowed.
struct Ways {
  const Topology& topology;
  Backend* host;  // shm, among the ranks of this host by their places; null if it is alone.
  Wires* wires;   // Its lane, whose ranks are known by their hosts; null if it is on none.
  Memory& memory;
};

// One collective of one rank.
//
// How ranks see that all have made the same call: the first step within a host compares the calls
// of its ranks (every step does, shared memory being what it is). Then each rank on a lane tells
// the others there what its host's ranks have called, ahead of the data: Greet. So it knows that
// all ranks agree once it has heard from every host. Who finds a difference tells all those who may
// not: Object.
class Passage {
 public:
  Passage(const Ways& ways, const Call& call, const CallContext& context);

  const Topology& topology() const { return ways_.topology; }
  Memory& memory() { return ways_.memory; }
  bool is_on_lane() const { return ways_.wires != nullptr; }
  bool is_leader() const { return ways_.topology.place == 0; }  // Of its host: on the first lane.

  // Within the host: the operations of Backend, where ranks are places. All its ranks take part.
  absl::Status Broadcast(const Tensor& tensor, int root);
  absl::Status Reduce(const Tensor& tensor, ReduceOp op, int root);
  absl::Status AllGather(absl::Span<const Tensor> outputs, const Tensor& input);
  absl::Status ReduceScatter(const Tensor& output, absl::Span<const Tensor> inputs, ReduceOp op);
  absl::Status Barrier();
  // Leaves the parts of all ranks at `root`, where they have places of their own.
  absl::Status Gather(absl::Span<const Tensor> parts, const Tensor& own, int root);

  // Between the hosts, on this rank's lane. Greet comes first, once; then, before anything is
  // overwritten or taken for right, Welcome: a MismatchError if another host made another call.
  void Greet();
  absl::Status Welcome();
  void Send(int to, const Tensor& tensor);
  void SendToAll(const Tensor& tensor);
  void Receive(int from, const Tensor& tensor);
  // What has been given so far, on all connections of the lane.
  struct Mark {
    absl::InlinedVector<uint64_t, 4> sent, received;
  };
  Mark mark() const;
  absl::Status Await(const Mark& mark);
  absl::Status AwaitAll();
  absl::Status Progress();

  // Whether ranks disagree, as far as this one knows; then all are told, and shared memory is
  // of no use any more.
  bool has_mismatch() const { return has_mismatch_; }
  void Object();

 private:
  absl::Status Note(const absl::Status& status);
  int host_count() const { return ways_.topology.host_count(); }

  const Ways ways_;
  // Of the calls within the host: theirs are the same if the ranks' calls are.
  CallContext inside_;
  CallAgreement agreement_;
  absl::InlinedVector<Ballot, 4> greetings_;  // By host. That of this one is what it sends.
  absl::InlinedVector<uint64_t, 4> welcome_;  // When it has come, of all that does from a host.
  bool has_greeted_ = false;
  bool has_mismatch_ = false;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_AUTO_PASSAGE_H_
