#include "backends/tcp/point_to_point.h"

#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/tcp/thresholds.h"
#include "core/base/stall.h"
#include "core/tensor/copy_bytes.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

using backends::Moved;

constexpr uint32_t kMagic = 0x53595034;  // "SYP4".
constexpr size_t kMaxReason = 255;

// So many system calls read one connection before others get their turn.
constexpr int kMaxBursts = 16;

// The network does not make one, so the peer is at fault: not a NetworkError.
absl::Status NoMessage() {
  return BackendError(
      "what is not a message of this protocol: do all ranks run the same version of Syncline?");
}

// What a message takes of kEagerWindow: a short one takes more memory than it has elements.
size_t CostOf(size_t bytes) { return std::max<size_t>(bytes, 512); }

// Tells the twin of a receive, if there is one, while its thread sleeps.
class ScopedSleep {
 public:
  explicit ScopedSleep(backends::TwinReceive* twin) : twin_(twin) {
    if (twin_ != nullptr) twin_->BeginSleep();
  }
  ~ScopedSleep() {
    if (twin_ != nullptr) twin_->EndSleep();
  }
  ScopedSleep(const ScopedSleep&) = delete;
  ScopedSleep& operator=(const ScopedSleep&) = delete;

 private:
  backends::TwinReceive* const twin_;
};

}  // namespace

PointToPoint::PointToPoint(const backends::PeerTable& peers, std::vector<tls::Stream> streams,
                           base::UniqueFd wake)
    : peers_(peers), rank_(peers.rank()), streams_(std::move(streams)), wake_(std::move(wake)) {
  absl::MutexLock lock(&mutex_);
  unexpected_of_.resize(streams_.size());
  for (size_t peer = 0; peer < streams_.size(); ++peer) {
    links_.push_back(std::make_unique<Link>());
    if (static_cast<int>(peer) != rank_) ExpectHeader(*links_.back());
  }
}

absl::Status PointToPoint::Send(const Tensor& tensor, const CallContext& context) {
  const int dst = context.collective->peer;
  absl::MutexLock lock(&mutex_);
  PendingSend send{dst, tensor.data(), tensor.nbytes(), {}};
  Header& header = send.header;
  header.magic = kMagic;
  header.sequence = context.sequence;
  header.count = tensor.numel();
  header.tag = context.collective->tag;
  header.dtype = static_cast<uint32_t>(tensor.dtype());
  Link& link = *links_[dst];
  const auto is_sent = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return send.end > 0 && link.out.moved() >= send.end;
  };
  const absl::Cleanup remove = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sends_.erase(send.header.id);
    // The connection may still hold the elements. It ends with the group, which this call fails.
    if (is_sent()) return;
    is_giving_up_ = true;
    link.out.Clear();
    link.is_closed_for_sends = true;
  };
  SYNCLINE_RETURN_IF_ERROR(CheckUsable());
  const bool is_short = send.bytes <= kEagerBytes;
  const size_t first = is_short ? send.bytes : FirstBytesOf(send);
  const bool has_credit = link.in_flight + CostOf(first) <= kEagerWindow;
  const bool is_eager = has_credit && is_short;
  header.kind = is_eager ? Kind::kEager : Kind::kRequest;
  header.bytes = has_credit ? first : 0;
  header.id = next_id_++;
  if (!is_eager) sends_[header.id] = &send;
  if (!SendFrame(dst, header, send.memory)) return Gone(peers_.Describe(dst));
  if (UsesWindow(header.kind, header.bytes)) link.in_flight += CostOf(header.bytes);
  send.first_end = link.out.given();
  if (is_eager) send.end = send.first_end;
  // As a rule the kernel has all of a short message.
  if (is_sent()) return absl::OkStatus();
  return Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<bool> {
        if (is_sent()) return true;
        if (link.state != Link::State::kOpen || link.is_closed_for_sends) {
          return Gone(peers_.Describe(dst));
        }
        return false;
      },
      context.deadline);
}

// Of a long message so much goes before the receiver has agreed that a short one, which need not
// wait for its receive, finds room behind it: in the window, and in the kernel.
size_t PointToPoint::FirstBytesOf(const PendingSend& send) const {
  const Link& link = *links_[send.dst];
  const int socket = streams_[send.dst].fd();
  int room = 0, used = 0;
  socklen_t length = sizeof(room);
  if (!link.out.is_empty() || getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &room, &length) != 0 ||
      ioctl(socket, SIOCOUTQ, &used) != 0) {
    return 0;
  }
  const size_t free = std::max(room - used, 0);
  const size_t most = std::min({send.bytes, kMaxFirstBytes, free});
  return link.in_flight + most <= kEagerWindow / 2 ? most : std::min(most, kEagerBytes);
}

absl::StatusOr<int> PointToPoint::Recv(const Tensor& tensor, const CallContext& context,
                                       backends::TwinReceive* twin) {
  absl::MutexLock lock(&mutex_);
  PostedReceive receive{
      context.collective->peer, context.collective->tag, static_cast<uint32_t>(tensor.dtype()),
      tensor.numel(),           tensor.data(),           tensor.nbytes()};
  receive.twin = twin;
  bool is_complete = false;
  const absl::Cleanup remove = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    posted_.remove(&receive);
    if (is_complete) return;
    is_giving_up_ = true;
    if (!receive.is_matched) return;
    // The elements may be arriving. The connection ends with the group, which this call fails.
    const int src = receive.message.src;
    granted_.erase(Id(src, receive.message.header.id));
    Link& link = *links_[src];
    if (link.receiver == &receive) {
      link.receiver = nullptr;
      link.in.Clear();
      link.is_ignored = true;
    }
  };
  SYNCLINE_RETURN_IF_ERROR(CheckUsable());
  const auto fits = [&](const Message& message) {
    return message.header.tag == receive.tag &&
           (receive.src == kAnySource || receive.src == message.src);
  };
  // Whichever is asked first is preferred, so they take turns.
  const bool asks_twin_first =
      twin != nullptr && std::exchange(asks_twin_first_, !asks_twin_first_);
  if (asks_twin_first && twin->Post()) {
    is_complete = true;
    return kAnySource;
  }
  MoveAll();
  // A message that an earlier receive could have taken is no longer here.
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), fits);
  if (found != unexpected_.end() && receive.Claim()) {
    receive.message = std::move(*found);
    receive.is_matched = true;
    --unexpected_of_[receive.message.src];
    unexpected_.erase(found);
    Take(receive.message);
  } else {
    posted_.push_back(&receive);
    if (twin != nullptr && !asks_twin_first) twin->Post();
  }
  SYNCLINE_RETURN_IF_ERROR(Await(
      [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<bool> {
        if (receive.is_matched || (twin != nullptr && twin->HasMatched())) return true;
        if (receive.src != kAnySource) {
          if (links_[receive.src]->state != Link::State::kOpen) {
            return Gone(peers_.Describe(receive.src));
          }
          return false;
        }
        for (int peer = 0; peer < peers_.size(); ++peer) {
          if (peer != rank_ && links_[peer]->state == Link::State::kOpen) return false;
        }
        return NetworkError("all other ranks have left");
      },
      context.deadline, twin));
  if (!receive.is_matched) {
    is_complete = true;
    return kAnySource;
  }
  const Header& header = receive.message.header;
  const int src = receive.message.src;
  backends::CallDescription sent{OpKind::kSend, header.sequence, static_cast<DType>(header.dtype),
                                 header.count};
  sent.peer = rank_;
  sent.tag = header.tag;
  SYNCLINE_RETURN_IF_ERROR(
      backends::CheckFits(sent, src, backends::CallDescription(context), rank_));
  if (!receive.is_direct) {
    const std::vector<std::byte>& elements = receive.message.elements;
    const bool is_whole = elements.size() == receive.bytes;
    if (elements.size() > receive.bytes || (header.kind == Kind::kEager && !is_whole)) {
      Violate(src, NoMessage());
      return violation_;
    }
    tensor::CopyBytes(receive.memory, elements.data(), elements.size());
    receive.has_arrived = is_whole;
  }
  if (header.kind == Kind::kRequest && !receive.is_granted) Grant(receive);
  // The sender waits for its grant, also where everything has come with the request; and once this
  // returns, nobody may send what is left of it.
  Link& link = *links_[src];
  const auto is_granted = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return link.out.moved() >= receive.grant_end || link.is_closed_for_sends;
  };
  if (!receive.has_arrived || !is_granted()) {
    SYNCLINE_RETURN_IF_ERROR(Await(
        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::StatusOr<bool> {
          if (receive.has_arrived && is_granted()) return true;
          if (link.state != Link::State::kOpen) return Gone(peers_.Describe(src));
          return false;
        },
        context.deadline));
  }
  is_complete = true;
  return src;
}

absl::Status PointToPoint::Await(absl::FunctionRef<absl::StatusOr<bool>()> is_done,
                                 const Deadline& deadline, backends::TwinReceive* twin) {
  while (true) {
    const bool has_moved = MoveAll();
    if (has_moved) spin_.Restart();
    SYNCLINE_RETURN_IF_ERROR(violation_);
    SYNCLINE_ASSIGN_OR_RETURN(const bool done, is_done());
    if (done) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(CheckUsable());
    // Without the lost peer the group has failed, whichever peer this waits for.
    for (int peer = 0; peer < peers_.size(); ++peer) {
      if (links_[peer]->state == Link::State::kLost) return Gone(peers_.Describe(peer));
    }
    if (has_moved ? !deadline.Expired() : spin_.Continue()) {
      // Others get their turn, Abort among them.
      mutex_.Unlock();
      mutex_.Lock();
      continue;
    }
    if (deadline.Expired()) {
      return TimeoutError(
          absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout())));
    }
    const absl::Duration slice = std::min(deadline.Remaining(), kInterruptInterval);
    {
      const ScopedSleep sleep(twin);
      if (twin != nullptr) {
        SYNCLINE_ASSIGN_OR_RETURN(const bool has_come, is_done());
        if (has_come) return absl::OkStatus();
      }
      if (is_polling_) {
        changed_.WaitWithTimeout(&mutex_, slice);
      } else {
        SleepInPoll(slice);
      }
    }
    mutex_.Unlock();
    base::StallWatch::Look();
    const absl::Status interrupt = CheckInterrupt();
    mutex_.Lock();
    SYNCLINE_RETURN_IF_ERROR(interrupt);
  }
}

void PointToPoint::SleepInPoll(absl::Duration limit) {
  std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}};
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    const Link& link = *links_[peer];
    if (!streams_[peer].valid() || link.state != Link::State::kOpen) continue;
    const int out = link.out.is_empty() || link.is_closed_for_sends ? 0 : POLLOUT;
    entries.push_back({streams_[peer].fd(), static_cast<short>(POLLIN | out), 0});
  }
  is_polling_ = true;
  mutex_.Unlock();
  poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(limit)) + 1);
  if (entries[0].revents != 0) {
    eventfd_t value;
    eventfd_read(wake_.get(), &value);
  }
  mutex_.Lock();
  is_polling_ = false;
  // Another thread that waits takes this one's place if this one has what it wanted.
  changed_.SignalAll();
}

bool PointToPoint::MoveAll(Reading reading) {
  bool has_moved = false;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    Link& link = *links_[peer];
    if (!streams_[peer].valid() || link.state != Link::State::kOpen || is_aborted_) continue;
    if (!link.out.is_empty() && !link.is_closed_for_sends) {
      const Moved moved = link.out.Send(streams_[peer]);
      // What the peer has sent before it went is still read.
      if (moved == Moved::kEnded) link.is_closed_for_sends = true;
      // Of whose Send it was is not known.
      if (moved != Moved::kNothing) has_moved = concerns_others_ = true;
    }
    if (Read(peer, reading)) has_moved = true;
  }
  if (concerns_others_) {
    concerns_others_ = false;
    changed_.SignalAll();
    // The kernel does not wake a thread that polls for what this one has read.
    if (is_polling_) Wake();
  }
  return has_moved;
}

bool PointToPoint::Read(int peer, Reading reading) {
  Link& link = *links_[peer];
  bool has_moved = false;
  // A peer that never ceases to send must not keep the lock.
  int bursts = 0;
  bool is_drained = false;
  for (; bursts < kMaxBursts && !(is_drained && reading == Reading::kWhatIsThere); ++bursts) {
    if (link.state != Link::State::kOpen || link.is_ignored) return has_moved;
    absl::Span<std::byte> ahead = absl::MakeSpan(link.ahead);
    const Moved moved = link.in.ReceiveAhead(streams_[peer], ahead, is_drained);
    if (moved == Moved::kNothing) return has_moved;
    has_moved = true;
    if (moved == Moved::kEnded) {
      if (errno == EPROTO) {
        Violate(peer, NetworkError("what cannot be decrypted: it was changed on its way"));
      }
      link.state = Link::State::kLost;
      concerns_others_ = true;
      return true;
    }
    // TLS may have decrypted more than it has given.
    if (streams_[peer].is_encrypted()) is_drained = false;
    HandleIfComplete(peer);
    // All of these too, as they wake no thread that polls.
    while (!ahead.empty() && link.state == Link::State::kOpen && !link.is_ignored) {
      ahead.remove_prefix(link.in.Fill(ahead.data(), ahead.size()));
      HandleIfComplete(peer);
    }
  }
  // What TLS has decrypted beyond that wakes no thread that polls.
  if (bursts == kMaxBursts && streams_[peer].is_encrypted()) concerns_others_ = true;
  return has_moved;
}

void PointToPoint::HandleIfComplete(int peer) {
  Link& link = *links_[peer];
  if (!link.in.is_empty()) return;
  if (!link.is_in_body) {
    if (!HandleHeader(peer)) Violate(peer, NoMessage());
  } else {
    if (!HandleBody(peer)) Violate(peer, NoMessage());
    ExpectHeader(link);
  }
}

void PointToPoint::ExpectHeader(Link& link) {
  link.is_in_body = false;
  link.in.Add(&link.header, sizeof(link.header));
}

// Checks the length before memory is allocated for it.
bool PointToPoint::HandleHeader(int peer) {
  Link& link = *links_[peer];
  const Header& header = link.header;
  if (header.magic != kMagic) return false;
  const size_t bytes = header.bytes;
  link.is_in_body = true;
  switch (header.kind) {
    case Kind::kEager:
    case Kind::kRequest:
      if (header.dtype >= AllDTypes().size() || header.count < 0 ||
          bytes > (header.kind == Kind::kEager ? kEagerBytes : kMaxFirstBytes) ||
          header.id <= link.last_id || unexpected_of_[peer] >= kMaxUnexpected) {
        return false;
      }
      if (UsesWindow(header.kind, bytes)) {
        link.held += CostOf(bytes);
        if (link.held > kEagerWindow) return false;
      }
      link.last_id = header.id;
      link.receiver = FindReceiver(peer, header);
      if (link.receiver == nullptr) break;
      link.receiver->message = {peer, header, {}};
      link.receiver->is_matched = link.receiver->is_direct = true;
      posted_.remove(link.receiver);
      NoteFor(link.receiver->waiter);
      if (header.kind == Kind::kRequest) Grant(*link.receiver);
      link.in.Add(link.receiver->memory, bytes);
      return true;
    case Kind::kGrant: {
      const auto send = sends_.find(header.id);
      if (bytes != 0) return false;
      if (send == sends_.end() ? !is_giving_up_ : send->second->dst != peer) return false;
      break;
    }
    case Kind::kCredit:
      if (bytes != 0 || header.count < 0 || static_cast<uint64_t>(header.count) > link.in_flight) {
        return false;
      }
      break;
    case Kind::kElements: {
      const auto receive = granted_.find(Id(peer, header.id));
      if (receive == granted_.end() && is_giving_up_) {
        link.is_ignored = true;
        return true;
      }
      if (receive == granted_.end()) return false;
      link.receiver = receive->second;
      const size_t first = link.receiver->message.header.bytes;
      if (link.receiver->bytes - first != bytes) return false;
      link.in.Add(static_cast<std::byte*>(link.receiver->memory) + first, bytes);
      if (bytes > 0) return true;
      if (!HandleBody(peer)) return false;
      ExpectHeader(link);
      return true;
    }
    case Kind::kLeave:
      if (bytes > kMaxReason) return false;
      break;
    case Kind::kBell:
      if (bytes != 0) return false;
      break;
    default:
      return false;
  }
  link.body.resize(bytes);
  link.in.Add(link.body.data(), bytes);
  if (bytes > 0) return true;
  if (!HandleBody(peer)) return false;
  ExpectHeader(link);
  return true;
}

bool PointToPoint::HandleBody(int peer) {
  Link& link = *links_[peer];
  const Header header = link.header;
  switch (header.kind) {
    case Kind::kEager:
    case Kind::kRequest: {
      PostedReceive* receiver = std::exchange(link.receiver, nullptr);
      if (receiver == nullptr) return Deliver({peer, header, std::move(link.body)});
      receiver->has_arrived = header.bytes == receiver->bytes;
      Take(receiver->message);
      NoteFor(receiver->waiter);
      return true;
    }
    case Kind::kGrant: {
      const auto granted = sends_.find(header.id);
      if (granted == sends_.end()) return true;  // Given up.
      PendingSend& send = *granted->second;
      if (send.is_granted) return false;
      send.is_granted = true;
      NoteFor(send.waiter);
      const size_t first = send.header.bytes;
      if (first == send.bytes) {
        send.end = send.first_end;
        return true;
      }
      Header elements = send.header;
      elements.kind = Kind::kElements;
      elements.bytes = send.bytes - first;
      if (SendFrame(peer, elements, static_cast<const std::byte*>(send.memory) + first)) {
        send.end = link.out.given();
      }
      return true;
    }
    case Kind::kCredit:
      link.in_flight -= static_cast<size_t>(header.count);
      return true;
    case Kind::kElements: {
      PostedReceive* receiver = std::exchange(link.receiver, nullptr);
      receiver->has_arrived = true;
      NoteFor(receiver->waiter);
      granted_.erase(Id(peer, header.id));
      return true;
    }
    case Kind::kLeave:
      link.state = Link::State::kLeft;
      concerns_others_ = true;
      link.reason.assign(reinterpret_cast<const char*>(link.body.data()), link.body.size());
      return true;
    case Kind::kBell:
      concerns_others_ = true;
      return true;
  }
  return false;
}

void PointToPoint::NoteFor(std::thread::id waiter) {
  if (waiter != std::this_thread::get_id()) concerns_others_ = true;
}

PointToPoint::PostedReceive* PointToPoint::FindReceiver(int peer, const Header& header) {
  if (header.bytes == 0) return nullptr;
  for (PostedReceive* receive : posted_) {
    if (receive->tag != header.tag) continue;
    if (receive->src != kAnySource && receive->src != peer) continue;
    // Of what does not fit, the receive itself tells the user.
    const bool fits = receive->dtype == header.dtype && receive->count == header.count;
    const bool is_whole = header.bytes == receive->bytes;
    const bool is_first = header.bytes <= receive->bytes;
    if (!fits || !(header.kind == Kind::kEager ? is_whole : is_first)) return nullptr;
    if (receive->Claim()) return receive;
  }
  return nullptr;
}

void PointToPoint::Grant(PostedReceive& receive) {
  const Header& request = receive.message.header;
  receive.is_granted = true;
  if (request.bytes < receive.bytes) granted_[Id(receive.message.src, request.id)] = &receive;
  Header grant = {};
  grant.magic = kMagic;
  grant.kind = Kind::kGrant;
  grant.id = request.id;
  if (SendFrame(receive.message.src, grant, nullptr)) {
    receive.grant_end = links_[receive.message.src]->out.given();
  }
}

bool PointToPoint::UsesWindow(Kind kind, size_t bytes) {
  return kind == Kind::kEager || (kind == Kind::kRequest && bytes > 0);
}

// What came without consent, and a receive gets now, no longer counts.
void PointToPoint::Take(const Message& message) {
  if (!UsesWindow(message.header.kind, message.header.bytes)) return;
  Link& link = *links_[message.src];
  const size_t cost = CostOf(message.header.bytes);
  link.held -= cost;
  link.taken += cost;
  if (link.taken < kEagerWindow / 4) return;
  Header credit = {};
  credit.magic = kMagic;
  credit.kind = Kind::kCredit;
  credit.count = static_cast<int64_t>(link.taken);
  link.taken = 0;
  SendFrame(message.src, credit, nullptr);
}

bool PointToPoint::Deliver(Message message) {
  for (auto posted = posted_.begin(); posted != posted_.end(); ++posted) {
    PostedReceive& receive = **posted;
    if (receive.tag != message.header.tag) continue;
    if (receive.src != kAnySource && receive.src != message.src) continue;
    if (!receive.Claim()) continue;
    receive.message = std::move(message);
    receive.is_matched = true;
    NoteFor(receive.waiter);
    posted_.erase(posted);
    Take(receive.message);
    return true;
  }
  ++unexpected_of_[message.src];
  unexpected_.push_back(std::move(message));
  return true;
}

bool PointToPoint::SendFrame(int peer, const Header& header, const void* body) {
  Link& link = *links_[peer];
  if (link.state != Link::State::kOpen || link.is_closed_for_sends || is_aborted_) return false;
  if (link.out.is_empty()) link.sent_headers.clear();
  link.sent_headers.push_back(header);
  link.out.Add(&link.sent_headers.back(), sizeof(Header));
  // An iovec is not const, but the memory is only read.
  if (header.bytes > 0) link.out.Add(const_cast<void*>(body), header.bytes);
  if (link.out.Send(streams_[peer]) == Moved::kEnded) link.is_closed_for_sends = true;
  // The thread that polls for all must wait until this connection takes the rest.
  if (!link.out.is_empty()) Wake();
  return true;
}

// The peer's connection is read no more, as one that has ended.
void PointToPoint::Violate(int peer, const absl::Status& what) {
  links_[peer]->state = Link::State::kLost;
  concerns_others_ = true;
  if (!violation_.ok()) return;
  violation_ = WithRanks(
      ErrorOfKind(KindOf(what), absl::StrCat(peers_.Describe(peer), " sent ", what.message())),
      {peer});
}

absl::Status PointToPoint::CheckUsable() const {
  if (is_aborted_) return NetworkError("the group's connections were closed");
  return violation_;
}

absl::Status PointToPoint::Gone(const std::string& peer) {
  return NetworkError(absl::StrCat("the connection to ", peer, " has ended"));
}

void PointToPoint::Wake() const {
  if (wake_.valid()) eventfd_write(wake_.get(), 1);
}

// If the connection takes no more now, there is something for the peer to read, which wakes it too.
void PointToPoint::Ring(int peer) {
  if (peer == rank_) return Wake();
  Header bell = {};
  bell.magic = kMagic;
  bell.kind = Kind::kBell;
  absl::MutexLock lock(&mutex_);
  SendFrame(peer, bell, nullptr);
}

void PointToPoint::ReadAll() {
  absl::MutexLock lock(&mutex_);
  MoveAll(Reading::kToEnd);
}

void PointToPoint::Abort() {
  absl::MutexLock lock(&mutex_);
  if (is_aborted_) return;
  MoveAll(Reading::kToEnd);
  is_aborted_ = true;
  changed_.SignalAll();
  Wake();
}

void PointToPoint::SendLeave(absl::string_view reason) {
  absl::MutexLock lock(&mutex_);
  if (is_aborted_) return;
  MoveAll(Reading::kToEnd);
  leave_reason_ = std::string(reason.substr(0, kMaxReason));
  Header header = {};
  header.magic = kMagic;
  header.kind = Kind::kLeave;
  header.bytes = leave_reason_.size();
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (!streams_[peer].valid() || links_[peer]->state != Link::State::kOpen) continue;
    SendFrame(peer, header, leave_reason_.data());
  }
}

void PointToPoint::FinishLeave() {
  absl::MutexLock lock(&mutex_);
  if (is_aborted_) return;
  const Deadline deadline(kLeaveTimeout);
  while (true) {
    std::vector<pollfd> entries;
    for (int peer = 0; peer < peers_.size(); ++peer) {
      const Link& link = *links_[peer];
      if (!streams_[peer].valid() || link.state != Link::State::kOpen) continue;
      if (link.is_closed_for_sends || link.out.is_empty()) continue;
      entries.push_back({streams_[peer].fd(), POLLOUT, 0});
    }
    if (entries.empty() || deadline.Expired()) break;
    poll(entries.data(), entries.size(), 10);
    MoveAll(Reading::kToEnd);
  }
  for (int peer = 0; peer < peers_.size(); ++peer) {
    Link& link = *links_[peer];
    if (!streams_[peer].valid() || link.state != Link::State::kOpen) continue;
    link.out.Clear();
    shutdown(streams_[peer].fd(), SHUT_WR);
  }
  is_aborted_ = true;
}

bool PointToPoint::is_aborted() const {
  absl::MutexLock lock(&mutex_);
  return is_aborted_;
}

absl::Status PointToPoint::violation() const {
  absl::MutexLock lock(&mutex_);
  return violation_;
}

bool PointToPoint::is_open(int peer) const {
  absl::MutexLock lock(&mutex_);
  return links_[peer]->state == Link::State::kOpen;
}

std::map<int, std::string> PointToPoint::left() const {
  absl::MutexLock lock(&mutex_);
  std::map<int, std::string> left;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (links_[peer]->state == Link::State::kLeft) left[peer] = links_[peer]->reason;
  }
  return left;
}

std::vector<int> PointToPoint::lost() const {
  absl::MutexLock lock(&mutex_);
  std::vector<int> lost;
  for (int peer = 0; peer < peers_.size(); ++peer) {
    if (links_[peer]->state == Link::State::kLost) lost.push_back(peer);
  }
  return lost;
}

void PointToPoint::Close() {
  for (tls::Stream& stream : streams_) stream = tls::Stream();
}

}  // namespace syncline::tcp
