// What the ranks of a rail have called in the last collectives, and how far they may differ.
#ifndef SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_HISTORY_H_
#define SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "backends/common/fingerprint_exchange.h"
#include "backends/common/lifecycle.h"
#include "backends/hierarchical/rail_sockets.h"
#include "backends/hierarchical/topology.h"
#include "syncline/backend.h"
#include "syncline/tensor.h"

namespace syncline::hierarchical {

// The records that this rank and those of other nodes send each other: one for each collective, in
// each direction of each connection, ahead of the data. A rank that needs no data of a node need
// not wait for its record. So records of the last collectives may still be on their way: of at most
// kCalls, on which the contract of Backend rests. What has come is compared in the order of the
// calls, and before any wait fails, since a mismatch explains more than a rank that is late or has
// gone.
//
// Nor need a record go at once to a node that gets no data with it, which would cost a packet for
// each call: it goes along with the records of some later calls, or with data, before this rank
// sleeps in a wait here or sends or receives a message, when it leaves, and when Tell is called, as
// it must be some time after a call for which `has_untold`. So others wait for it only if this rank
// is far behind them. But a wait for the ranks of its own node tells nobody, so a rank that has
// some tells all at once when it gives: nobody else may know that call.
//
// It also bounds what this rank gives to ranks that have not come: by kCalls collectives, and by
// kMaxBytesAhead bytes of data for each.
//
// Errors are those of RailSockets, and MismatchErrors that quote this rank's call and another's.
// After an error the history is of no more use, except WhoIsAwaited. Borrows the topology and the
// rail. Not thread-safe.
class RailHistory {
 public:
  static constexpr uint64_t kCalls = 128;
  // A rank that only gives looks at what others have sent in one call of so many.
  static constexpr uint64_t kLookInterval = 8;

  RailHistory(const Topology& topology, RailSockets& rail);
  RailHistory(const RailHistory&) = delete;
  RailHistory& operator=(const RailHistory&) = delete;

  // Sends `own` to all other nodes, at once unless it goes ahead or relays, and expects theirs. The
  // collective of `call` begins. First waits until fewer than kCalls collectives have records
  // that have not come. Borrows the call while it is under way.
  absl::Status Begin(const backends::FingerprintRecord& own, const CallContext& call);

  // Of the collective that has begun. What a node has sent is valid once it has come.
  const backends::FingerprintRecord& own() const { return CallOf(number_).own; }
  const backends::FingerprintRecord& of(int node) const { return CallOf(number_).of[node]; }

  // For collectives in which ranks meet. First the records of all nodes to earlier collectives must
  // have come, and are compared. Those to this one are awaited, and
  // compared by the caller: Compare is OK if the record of `node`, which has come, is of the same
  // call. At last, if all are, NoteMeeting.
  absl::Status AwaitEarlierRecords();
  absl::Status AwaitRecords();
  bool HasCome(int node) const { return HasRecordCome(number_, node); }
  absl::Status Compare(int node) const { return CompareRecord(number_, node); }
  void NoteMeeting();

  // For collectives in which ranks do not meet. All that wait compare what comes meanwhile, of this
  // collective too. AwaitData waits for the records of `nodes` and the data that this rank expects
  // behind them; AwaitRoom, until this rank may send one of `nodes` the bytes for it, which Give
  // does; End, which mostly need not, until what others may wait for has been sent.
  absl::Status AwaitData(absl::Span<const int> nodes);
  absl::Status AwaitRoom(absl::Span<const int> nodes,
                         absl::FunctionRef<size_t(int node)> bytes_for);
  bool HasRoom(int node, size_t bytes) const;
  void Give(int node, const Tensor& tensor);
  absl::Status End();

  // For collectives in which ranks meet through others. The records of this collective are compared
  // by the caller. Whoever is sent anything waits for it in this call, so there is always room.
  // AwaitRecord waits for the record of `node`, AwaitRelayed for what is expected behind it,
  // TellAll sends the record to all. At last, if this rank has heard of all nodes, and all calls
  // agree, EndRelayed.
  void Relay(int node, const Tensor& tensor);
  absl::Status AwaitRecord(int node);
  absl::Status AwaitRelayed(int node);
  void TellAll() { SendAllRecords(); }
  absl::Status EndRelayed();

  // Between calls, while the history is of use: whether there is something that has not gone yet;
  // and send it, as far as that goes without a wait, or within `limit`.
  bool has_untold() const;
  void Tell();
  void Flush(absl::Duration limit);

  // The ranks that hold up the wait of this rank that is under way, or has failed, and the earlier
  // collective to which they have not come. No ranks if it is in none, or in one for all.
  backends::Lifecycle::Awaited WhoIsAwaited() const;
  // What that means, as a TimeoutError that names them; OK if there are none.
  absl::Status Late() const;

 private:
  struct Call {
    backends::FingerprintRecord own;
    // By node: its record, and the position in the stream from it at which that has come.
    absl::InlinedVector<backends::FingerprintRecord, 4> of;
    absl::InlinedVector<uint64_t, 4> ends;
    // By node: Peer::given when this call began.
    absl::InlinedVector<uint64_t, 4> given;
  };
  // What this rank knows of another node.
  struct Peer {
    uint64_t compared = 0;  // Up to this collective it has made the same calls.
    uint64_t sent = 0;      // Up to this collective it has been sent the records.
    // Bytes of data in collectives in which ranks do not meet: that this rank has given it; up to
    // which it is known to have taken them; and that this rank has taken, or waits for, since it
    // was last sent a record.
    uint64_t given = 0, taken = 0, untold = 0;
  };
  using IsAwaited = absl::FunctionRef<bool(int node)>;

  Call& CallOf(uint64_t number) { return calls_[number % kCalls]; }
  const Call& CallOf(uint64_t number) const { return calls_[number % kCalls]; }
  bool HasRecordCome(uint64_t number, int node) const;
  absl::Status CompareRecord(uint64_t number, int node) const;
  bool HasNews(int node, uint64_t last) const;
  absl::Status CompareWhatHasCome(uint64_t last);

  // Waits until `is_awaited` is true of no other node, and compares meanwhile what comes of
  // collectives up to `last`.
  absl::Status Await(IsAwaited is_awaited, uint64_t last);
  absl::Status AwaitRecordsOf(uint64_t number);
  void TellOfDataFrom(int node);
  void SendRecords(int node);
  void SendAllRecords();
  bool IsAllSent() const;

  const Topology& topology_;
  RailSockets& rail_;
  const size_t max_bytes_ahead_;
  const CallContext* call_ = nullptr;  // The one under way.
  std::array<Call, kCalls> calls_;
  uint64_t number_ = 0;                 // Collectives that have begun.
  uint64_t call_number_ = 0;            // Of call_: the next while it waits to begin.
  bool has_given_ = false;              // Data, in the call under way.
  uint64_t met_ = 0;                    // The last in which ranks have met.
  absl::InlinedVector<Peer, 4> peers_;  // By node. This node's means nothing.
  // By node, for the wait in AwaitData: the position in the stream from it that is awaited.
  absl::InlinedVector<uint64_t, 4> awaited_ends_;
  const IsAwaited* is_awaited_ = nullptr;  // Of the wait under way.
  std::vector<int> late_nodes_;            // Of the wait that has failed.
};

}  // namespace syncline::hierarchical

#endif  // SYNCLINE_BACKENDS_HIERARCHICAL_RAIL_HISTORY_H_
