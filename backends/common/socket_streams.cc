#include "backends/common/socket_streams.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/stall.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

// After a peer's connection has ended, what it sent over its others is awaited for so long.
constexpr absl::Duration kLastBytesGrace = absl::Seconds(1);

// A system call that is to receive at most so many bytes takes as many as the buffer has room for:
// a peer that is some calls ahead costs one system call for all of them. To copy these costs less.
constexpr size_t kFewBytes = 4 << 10;
constexpr size_t kAheadBytes = 16 << 10;

}  // namespace

SocketStreams::SocketStreams(std::vector<std::vector<tls::Stream>> streams, PeerOf peer_of,
                             base::UniqueFd abort_event, OnReceived on_received)
    : peer_of_(std::move(peer_of)),
      on_received_(std::move(on_received)),
      links_(streams.size()),
      abort_event_(std::move(abort_event)) {
  for (size_t peer = 0; peer < streams.size(); ++peer) {
    for (tls::Stream& stream : streams[peer]) links_[peer].lanes.push_back({std::move(stream)});
  }
}

bool SocketStreams::Link::is_receiving() const {
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return !lane.in.is_empty(); });
}

void SocketStreams::Add(Link& link, ByteQueue Lane::* queue, uint64_t& given, void* data,
                        size_t bytes) {
  const size_t count = link.lanes.size();
  for (char* next = static_cast<char*>(data); bytes > 0;) {
    const uint64_t left = count == 1 ? bytes : kStripeBytes - given % kStripeBytes;
    const size_t part = std::min<uint64_t>(bytes, left);
    (link.lanes[given / kStripeBytes % count].*queue).Add(next, part);
    given += part;
    next += part;
    bytes -= part;
  }
}

// The first byte that has not moved is the next one of some lane.
uint64_t SocketStreams::MovedOfSeveral(const Link& link, ByteQueue Lane::* queue, uint64_t given) {
  const size_t count = link.lanes.size();
  uint64_t first = given;
  for (size_t lane = 0; lane < count; ++lane) {
    const uint64_t moved = (link.lanes[lane].*queue).moved();
    const uint64_t stripe = moved / kStripeBytes * count + lane;
    first = std::min(first, stripe * kStripeBytes + moved % kStripeBytes);
  }
  return first;
}

void SocketStreams::Send(int to, const void* data, size_t bytes) {
  // An iovec is not const, but the memory is only read.
  Add(links_[to], &Lane::out, links_[to].to_send, const_cast<void*>(data), bytes);
}

void SocketStreams::Receive(int from, void* data, size_t bytes) {
  Link& link = links_[from];
  Add(link, &Lane::in, link.to_receive, data, bytes);
  for (Lane& lane : link.lanes) {
    if (lane.ahead_begin == lane.ahead_end) continue;
    lane.ahead_begin +=
        lane.in.Fill(lane.ahead.data() + lane.ahead_begin, lane.ahead_end - lane.ahead_begin);
  }
}

Moved SocketStreams::Receive(Lane& lane) {
  if (on_received_ != nullptr || lane.in.given() - lane.in.moved() > kFewBytes) {
    const Moved received = lane.in.Receive(lane.stream);
    lane.may_have_come = received == Moved::kSome;
    return received;
  }
  lane.ahead.resize(kAheadBytes);
  const iovec room = {lane.ahead.data(), lane.ahead.size()};
  const ssize_t received = lane.stream.Receive(&room, 1);
  // TLS may have decrypted more than it has given.
  lane.may_have_come =
      received > 0 && (lane.stream.is_encrypted() || received == static_cast<ssize_t>(kAheadBytes));
  if (received < 0) return ByteQueue::WhyNot();
  lane.ahead_end = static_cast<size_t>(received);
  lane.ahead_begin = lane.in.Fill(lane.ahead.data(), lane.ahead_end);
  return Moved::kSome;
}

std::vector<int> SocketStreams::sockets(int peer) const {
  std::vector<int> sockets;
  for (const Lane& lane : links_[peer].lanes) sockets.push_back(lane.stream.fd());
  return sockets;
}

bool SocketStreams::is_sent(int to) const {
  const std::vector<Lane>& lanes = links_[to].lanes;
  return std::all_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return lane.out.is_empty() || lane.out_error != 0; });
}

void SocketStreams::Abort() {
  is_aborted_.store(true);
  // Never read, so it stays readable and ends every poll(2) from now on.
  if (abort_event_.valid()) eventfd_write(abort_event_.get(), 1);
}

void SocketStreams::Close() {
  for (Link& link : links_) {
    for (Lane& lane : link.lanes) lane.stream = tls::Stream();
  }
}

absl::Status SocketStreams::AwaitAll(const Deadline& deadline) {
  return Await(
      [&] {
        return std::all_of(links_.begin(), links_.end(), [](const Link& link) {
          return std::all_of(link.lanes.begin(), link.lanes.end(), [](const Lane& lane) {
            return lane.in.is_empty() && lane.out.is_empty();
          });
        });
      },
      deadline);
}

void SocketStreams::SendNow() {
  for (Link& link : links_) {
    for (Lane& lane : link.lanes) Send(lane);
  }
}

absl::Status SocketStreams::MakeProgress() {
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved, MoveAll(Unsendable::kFail));
    if (!has_moved) return absl::OkStatus();
  }
}

// All connections move, not only the awaited ones: the peer may have to get its bytes to this rank
// before it gets to send the awaited ones.
absl::Status SocketStreams::Await(absl::FunctionRef<bool()> is_done, const Deadline& deadline,
                                  Unsendable unsendable, absl::FunctionRef<void()> before_sleep) {
  if (has_out_error_) {
    // What a peer has sent before it went may be long ago, and still be there.
    for (Link& link : links_) {
      for (Lane& lane : link.lanes) lane.out_ended = absl::Now();
    }
  }
  const bool was_aborted = is_aborted_.load();
  while (!is_done()) {
    const absl::StatusOr<bool> moved = MoveAll(unsendable);
    // By another rank whose time was up a moment before, perhaps: this one has waited as long.
    const bool is_aborted_now = !was_aborted && is_aborted_.load();
    if (is_aborted_now && RanksOf(Late(deadline)).empty()) late_ = absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(moved.status());
    if (is_aborted_.load()) return NetworkError("the connections were closed");
    const bool has_moved = *moved;
    if (has_moved) spin_.Restart();
    if (has_moved ? !deadline.Expired() : spin_.Continue()) continue;
    if (deadline.Expired()) return is_done() ? absl::OkStatus() : Late(deadline);
    before_sleep();
    // In slices, since nothing wakes poll(2) when this thread is interrupted or stalls.
    Poll(std::min(deadline.Remaining(), kInterruptInterval));
    base::StallWatch::Look();
    SYNCLINE_RETURN_IF_ERROR(CheckInterrupt());
  }
  return absl::OkStatus();
}

// A connection alone is not asked: to receive nothing from it takes no longer. Nor is one from
// which something came last time, so that of an encrypted one nothing can be left that poll(2) does
// not see.
void SocketStreams::LookForWhatHasCome() {
  absl::InlinedVector<pollfd, 8> entries;
  absl::InlinedVector<Lane*, 8> lanes;
  for (Link& link : links_) {
    for (Lane& lane : link.lanes) {
      if (lane.in.is_empty() || lane.may_have_come) continue;
      entries.push_back({lane.stream.fd(), POLLIN, 0});
      lanes.push_back(&lane);
    }
  }
  if (lanes.size() > 1) poll(entries.data(), entries.size(), 0);
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes[i]->may_have_come = lanes.size() == 1 || entries[i].revents != 0;
  }
}

absl::StatusOr<bool> SocketStreams::MoveAll(Unsendable unsendable) {
  bool has_moved = false;
  LookForWhatHasCome();
  for (int peer = 0; peer < size(); ++peer) {
    for (Lane& lane : links_[peer].lanes) {
      if (lane.out.is_empty() && lane.in.is_empty()) continue;
      SYNCLINE_ASSIGN_OR_RETURN(const bool has_moved_here, Move(peer, lane, unsendable));
      has_moved = has_moved || has_moved_here;
    }
  }
  return has_moved;
}

bool SocketStreams::Send(Lane& lane) {
  if (lane.out.is_empty() || lane.out_error != 0) return false;
  const Moved sent = lane.out.Send(lane.stream);
  if (sent == Moved::kEnded) {
    lane.out_error = errno == 0 ? EPIPE : errno;
    lane.out_ended = absl::Now();
    has_out_error_ = true;
  }
  return sent == Moved::kSome;
}

absl::StatusOr<bool> SocketStreams::Move(int peer, Lane& lane, Unsendable unsendable) {
  bool has_moved = false;
  if (!lane.out.is_empty()) {
    has_moved = Send(lane);
    // What the peer sent before it went may still be what this rank needs. But other connections of
    // a peer that is there do not end with this one.
    const bool is_receiving = lane.out_error != 0 && links_[peer].is_receiving();
    if (lane.out_error != 0 && (is_receiving ? absl::Now() - lane.out_ended > kLastBytesGrace
                                             : unsendable == Unsendable::kFail)) {
      errno = lane.out_error;
      return Ended(peer);
    }
  }
  if (!lane.in.is_empty() && lane.may_have_come) {
    const Moved received = Receive(lane);
    if (received == Moved::kEnded) return Ended(peer);
    if (received == Moved::kSome) {
      has_moved = true;
      if (on_received_ != nullptr) SYNCLINE_RETURN_IF_ERROR(on_received_(peer));
    }
  }
  return has_moved;
}

absl::Status SocketStreams::Ended(int peer) {
  const int error = errno;
  // Pairs with the store in Abort, which comes before the shutdown that ended the connection. So an
  // aborted rank never blames the peer.
  if (is_aborted_.load()) return NetworkError("the connections were closed");
  links_[peer].has_ended.store(true);
  const Peer other = peer_of_(peer);
  ended_ = WithRanks(
      NetworkError(absl::StrCat("the connection to ", other.name, " has ended: ",
                                error == EPROTO ? "what came cannot be decrypted, so it was "
                                                  "changed on its way"
                                                : std::strerror(error))),
      {other.rank});
  return ended_;
}

absl::Status SocketStreams::Late(const Deadline& deadline) {
  std::vector<int> ranks;
  std::vector<std::string> what;
  for (int peer = 0; peer < size(); ++peer) {
    const uint64_t to_come = bytes_to_receive(peer) - bytes_received(peer);
    const uint64_t to_go = bytes_to_send(peer) - bytes_sent(peer);
    if (to_come == 0 && to_go == 0) continue;
    const Peer other = peer_of_(peer);
    ranks.push_back(other.rank);
    what.push_back(to_come > 0 ? absl::StrCat(to_come, " bytes of ", other.name, " have not come")
                               : absl::StrCat(other.name, " has not taken ", to_go, " bytes"));
  }
  late_ = WithRanks(
      TimeoutError(absl::StrCat("not complete after ", absl::FormatDuration(deadline.timeout()),
                                ": ", absl::StrJoin(what, "; "))),
      std::move(ranks));
  return late_;
}

void SocketStreams::Poll(absl::Duration limit) const {
  absl::InlinedVector<pollfd, 9> entries = {{abort_event_.get(), POLLIN, 0}};
  for (const Link& link : links_) {
    for (const Lane& lane : link.lanes) {
      const int out = lane.out.is_empty() || lane.out_error != 0 ? 0 : POLLOUT;
      const int in = lane.in.is_empty() ? 0 : POLLIN;
      if ((out | in) != 0) entries.push_back({lane.stream.fd(), static_cast<short>(out | in), 0});
    }
  }
  const absl::Duration bounded = std::min(limit, kInterruptInterval);
  poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(bounded)) + 1);
}

}  // namespace syncline::backends
