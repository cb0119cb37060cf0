// Sends and receives of one rank, and the news that a peer has left or was lost: one connection to
// each peer, which is always read.
#ifndef SYNCLINE_BACKENDS_TCP_POINT_TO_POINT_H_
#define SYNCLINE_BACKENDS_TCP_POINT_TO_POINT_H_

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "backends/common/byte_queue.h"
#include "backends/common/peer_table.h"
#include "backends/common/socket_spin.h"
#include "backends/common/twin_receive.h"
#include "backends/tcp/thresholds.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "syncline/backend.h"
#include "syncline/deadline.h"
#include "syncline/tensor.h"

namespace syncline::tcp {

// A frame is a header of fixed size and as many bytes as its kind allows. A Send of at most
// kEagerBytes is one frame, and done once the kernel has it; a larger one sends a request with at
// most kMaxFirstBytes, and is done, or sends the rest, when the receiver has found that it fits:
// the grant travels while those first bytes do. What a peer has sent eagerly and no receive has
// taken is bounded by kEagerWindow: the receiver gives credit for what it has taken, and a Send
// without credit sends a request without elements, so that a message which a receive waits for
// always gets through. Requests are bounded by the peer's threads. A message that a receive waits
// for already when its header comes goes straight into the receive's memory.
//
// A bell is a frame that says nothing: whoever waits for a message, here or in the twin of a
// receive, looks again.
//
// The calling threads move the bytes themselves: one of those that wait sleeps in poll(2) for all,
// the others wait for it. Nothing in a frame makes a reader wait, so a connection is always read as
// soon as a thread looks at it.
//
// Thread-safe. Owns the sockets. `peers` must outlive it.
class PointToPoint {
 public:
  // `streams` has one for each rank, except this one. `wake` is an eventfd.
  PointToPoint(const backends::PeerTable& peers, std::vector<tls::Stream> streams,
               base::UniqueFd wake);

  absl::Status Send(const Tensor& tensor, const CallContext& context);

  // Returns the rank that sent. A MismatchError if what it sends does not fit. With `twin`, returns
  // kAnySource if that has got a message instead.
  absl::StatusOr<int> Recv(const Tensor& tensor, const CallContext& context,
                           backends::TwinReceive* twin = nullptr);

  // Wakes what sleeps in a receive of `peer` which has a twin; of this rank, without a lock.
  void Ring(int peer);

  // For the watch: reads what has come on all connections, without a wait.
  void ReadAll();

  // Ends all waits, now and later, and keeps left() and lost() as they are.
  void Abort();

  // Sends `reason` on all open connections, as far as they take it at once.
  void SendLeave(absl::string_view reason);
  // After that: sends the rest, for kLeaveTimeout at most where a connection is full of messages
  // that its peer has not read, and the end of the stream. A peer that does not get the reason
  // takes this rank for lost.
  void FinishLeave();

  bool is_aborted() const;
  bool is_open(int peer) const;
  // The error that names the first peer which has sent what is no frame of this protocol, or what
  // cannot be decrypted; OK if none has. Such a peer is lost.
  absl::Status violation() const;
  std::map<int, std::string> left() const;
  std::vector<int> lost() const;

  // -1 for this rank.
  int socket(int peer) const { return streams_[peer].fd(); }
  // Requires that no operation is under way.
  void Close();

 private:
  enum class Kind : uint32_t { kEager = 1, kRequest, kGrant, kElements, kCredit, kLeave, kBell };
  struct Header {
    uint32_t magic;
    Kind kind;
    uint64_t id;        // Of a Send: numbered by the sender.
    uint64_t sequence;  // The next four describe the sender's call.
    int64_t count;      // Of a credit: how much of kEagerWindow is free again.
    int64_t tag;
    uint32_t dtype;
    uint32_t reserved;
    uint64_t bytes;  // That follow the header: of a request, the message's first.
  };
  static_assert(sizeof(Header) == 56, "has no padding");

  // One that has come from `src` and that no receive has got.
  struct Message {
    int src = 0;
    Header header = {};
    std::vector<std::byte> elements;  // Those that came with the header.
  };
  struct PostedReceive {
    int src = 0;
    int64_t tag = 0;
    uint32_t dtype = 0;
    int64_t count = 0;
    void* memory = nullptr;
    size_t bytes = 0;
    std::thread::id waiter = std::this_thread::get_id();
    bool is_matched = false;
    Message message = {};
    // What came with the header goes, or has gone, straight into `memory`.
    bool is_direct = false;
    bool is_granted = false;  // The sender of a request is told that it fits.
    uint64_t grant_end = 0;   // Where in the stream to it that ends.
    bool has_arrived = false;
    backends::TwinReceive* twin = nullptr;  // Which must be claimed before a match.

    bool Claim() const { return twin == nullptr || twin->Claim(); }
  };
  struct PendingSend {
    int dst;
    const void* memory;
    size_t bytes;
    Header header;
    std::thread::id waiter = std::this_thread::get_id();
    bool is_granted = false;
    // Where in the stream to `dst` the first frame ends, and once the receiver has agreed, the
    // elements; 0 before.
    uint64_t first_end = 0, end = 0;
  };
  struct Link {
    enum class State { kOpen, kLeft, kLost } state = State::kOpen;
    bool is_closed_for_sends = false;
    std::string reason;
    backends::ByteQueue out, in;
    // Of what comes after `in`, as much as this is read with it: a message that is short takes one
    // system call.
    std::array<std::byte, kReadAheadBytes> ahead;
    std::deque<Header> sent_headers;
    Header header = {};
    bool is_in_body = false;
    bool is_ignored = false;  // Elements come that nobody waits for any more.
    // Whose memory the body that is coming goes to; null: `body`, or it is no receive's.
    PostedReceive* receiver = nullptr;
    uint64_t last_id = 0;  // Of the peer's sends.
    // Parts of kEagerWindow: of what this rank has sent and the peer has not given credit for; of
    // what has come and was not taken; and of what was taken and not given credit for.
    size_t in_flight = 0, held = 0, taken = 0;
    std::vector<std::byte> body;
  };
  using Id = std::pair<int, uint64_t>;  // The peer, and its number of a Send.

  absl::Status Await(absl::FunctionRef<absl::StatusOr<bool>()> is_done, const Deadline& deadline,
                     backends::TwinReceive* twin = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SleepInPoll(absl::Duration limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A read that gets less than there is room for has got all that is there; only the next one sees
  // the end of the connection.
  enum class Reading { kWhatIsThere, kToEnd };
  bool MoveAll(Reading reading = Reading::kWhatIsThere) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Read(int peer, Reading reading) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The header or the body that is coming.
  void HandleIfComplete(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t FirstBytesOf(const PendingSend& send) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the frame is on its way; otherwise the connection takes no more.
  bool SendFrame(int peer, const Header& header, const void* body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A false result: the peer does not follow the protocol.
  bool HandleHeader(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HandleBody(int peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The receive that waits for the message, and whose memory it fits; otherwise null.
  PostedReceive* FindReceiver(int peer, const Header& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Grant(PostedReceive& receive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether such a frame counts for kEagerWindow.
  static bool UsesWindow(Kind kind, size_t bytes);
  // What `waiter` waits for may have come.
  void NoteFor(std::thread::id waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Take(const Message& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Deliver(Message message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Violate(int peer, const absl::Status& what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpectHeader(Link& link) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status Gone(const std::string& peer);
  void Wake() const;

  const backends::PeerTable& peers_;
  const int rank_;
  std::vector<tls::Stream> streams_;  // By rank. Used with the lock, except their descriptors.
  const base::UniqueFd wake_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  backends::SocketSpin spin_ ABSL_GUARDED_BY(mutex_);
  bool is_polling_ ABSL_GUARDED_BY(mutex_) = false;  // A thread sleeps in poll(2) for all.
  bool is_aborted_ ABSL_GUARDED_BY(mutex_) = false;
  std::string leave_reason_ ABSL_GUARDED_BY(mutex_);     // While it is sent.
  bool asks_twin_first_ ABSL_GUARDED_BY(mutex_) = true;  // The next receive that has one.
  // MoveAll has come upon what a thread other than its own may wait for.
  bool concerns_others_ ABSL_GUARDED_BY(mutex_) = false;
  // An operation has ended with an error, so the group will: what still comes for it is no fault of
  // the peer.
  bool is_giving_up_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status violation_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);
  std::list<PostedReceive*> posted_ ABSL_GUARDED_BY(mutex_);  // In order, not matched yet.
  std::list<Message> unexpected_ ABSL_GUARDED_BY(mutex_);     // In the order of arrival.
  std::vector<size_t> unexpected_of_ ABSL_GUARDED_BY(mutex_);
  std::map<Id, PostedReceive*> granted_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, PendingSend*> sends_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace syncline::tcp

#endif  // SYNCLINE_BACKENDS_TCP_POINT_TO_POINT_H_
