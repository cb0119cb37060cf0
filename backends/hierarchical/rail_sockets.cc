#include "backends/hierarchical/rail_sockets.h"

#include <sys/socket.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/rank_acceptor.h"
#include "backends/common/socket_delivery.h"
#include "backends/hierarchical/thresholds.h"
#include "backends/tcp/socket_options.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// Has the kernel keep kMaxBytesAhead and the records for this rank until it takes them: thrice as
// much, see RailSockets::OwnWindow. SO_RCVLOWAT makes room for twice what it says, from Linux 4.18
// on, and leaves the size to the kernel afterwards, which may still enlarge it; SO_RCVBUF would end
// that. A buffer that the user has set stays as it is. What remains smaller is a smaller window, of
// all.
void MakeRoom(int socket) {
  for (const int bytes : {static_cast<int>((kMaxBytesAhead + kRecordBytesAhead) * 3 / 2), 1}) {
    static_cast<void>(setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes)));
  }
}

}  // namespace

// A rank connects to the members before it, and then accepts those after it. So no ranks wait for
// each other in a circle: the first one accepts at once.
absl::StatusOr<std::unique_ptr<RailSockets>> RailSockets::Connect(
    const backends::Listener& listener, absl::Span<const Member> members, int own, int streams,
    const Deadline& deadline, absl::FunctionRef<absl::Status()> check) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto options, tcp::SocketOptions::FromEnvironment());
  Streams all(members.size());
  for (size_t node = 0; node < members.size(); ++node) {
    if (static_cast<int>(node) != own) all[node].resize(streams);
  }
  for (int to = 0; to < own; ++to) {
    for (int number = 0; number < streams; ++number) {
      auto stream = backends::IntroduceInSlices(members[to].endpoint, own * streams + number,
                                                deadline, check, listener.tls().get(), number);
      if (!stream.ok()) return Annotate(stream.status(), members[to].name);
      all[to][number] = *std::move(stream);
    }
  }
  SYNCLINE_RETURN_IF_ERROR(AcceptMembers(listener, members, own, deadline, check, all));
  for (const std::vector<tls::Stream>& of_node : all) {
    for (const tls::Stream& stream : of_node) {
      SYNCLINE_RETURN_IF_ERROR(options.Apply(stream.fd()));
      MakeRoom(stream.fd());
    }
  }
  std::unique_ptr<RailSockets> rail(new RailSockets(members, std::move(all)));
  SYNCLINE_RETURN_IF_ERROR(rail->AgreeOnWindow(deadline, check));
  return rail;
}

RailSockets::RailSockets(absl::Span<const Member> members, Streams streams)
    : members_(members.begin(), members.end()),
      streams_(
          std::move(streams),
          [this](int node) { return backends::SocketStreams::Peer{rank(node), name(node)}; },
          base::UniqueFd()),
      window_(OwnWindow()) {}

absl::Status RailSockets::AcceptMembers(const backends::Listener& listener,
                                        absl::Span<const Member> members, int own,
                                        const Deadline& deadline,
                                        absl::FunctionRef<absl::Status()> check, Streams& streams) {
  const int size = static_cast<int>(members.size());
  if (own == size - 1) return absl::OkStatus();
  const int count = static_cast<int>(streams[own + 1].size());
  const int expected = (size - 1 - own) * count;
  backends::RankAcceptor acceptor(listener.sockets(), std::string(listener.secret()), expected,
                                  listener.tls());
  for (int connected = 0; connected < expected;) {
    auto connection = backends::AcceptInSlices(acceptor, deadline, check);
    if (KindOf(connection.status()) == ErrorKind::kTimeout) {
      std::vector<std::string> late;
      for (int from = own + 1; from < size; ++from) {
        const bool has_come = std::all_of(streams[from].begin(), streams[from].end(),
                                          [](const tls::Stream& stream) { return stream.valid(); });
        if (!has_come) late.push_back(members[from].name);
      }
      return TimeoutError(absl::StrCat(absl::StrJoin(late, ", "), " did not connect within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    SYNCLINE_RETURN_IF_ERROR(connection.status());
    // The number comes from the peer. One that cannot be right is refused, and joining goes on.
    const auto [from, number] = backends::SplitNumber(connection->rank, count);
    absl::string_view why = backends::WhyImpossible(from, own, size);
    if (why.empty() && streams[from][number].valid()) why = "that rank has connected already";
    if (!why.empty()) {
      const bool is_member = from >= 0 && from < size;
      acceptor.LogImpossibleClaim(
          *connection, is_member ? members[from].name : absl::StrCat("of node ", from), why);
      SYNCLINE_RETURN_IF_ERROR(check());  // They may come so fast that no wait gets to it.
      continue;
    }
    SYNCLINE_RETURN_IF_ERROR(Annotate(connection->error, members[from].name));
    streams[from][number] = std::move(connection->stream);
    ++connected;
  }
  return absl::OkStatus();
}

absl::Status RailSockets::AwaitSent(int to, uint64_t bytes, const Deadline& deadline) {
  return streams_.Await([&] { return streams_.bytes_sent(to) >= bytes; }, deadline);
}

absl::Status RailSockets::AwaitReceived(int from, uint64_t bytes, const Deadline& deadline) {
  return streams_.Await([&] { return streams_.bytes_received(from) >= bytes; }, deadline);
}

size_t RailSockets::OwnWindow() const {
  size_t least = std::numeric_limits<size_t>::max();
  for (const int socket : AllSockets()) {
    int bytes = 0;
    socklen_t length = sizeof(bytes);
    if (getsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0) return 0;
    least = std::min(least, static_cast<size_t>(std::max(bytes, 0)) / 3);
  }
  return least;
}

absl::Status RailSockets::AgreeOnWindow(const Deadline& deadline,
                                        absl::FunctionRef<absl::Status()> check) {
  const uint64_t own = window_;
  std::vector<uint64_t> windows(members_.size(), own);
  for (int node = 0; node < streams_.size(); ++node) {
    if (streams_.sockets(node).empty()) continue;  // This one.
    Send(node, &own, sizeof(own));
    Receive(node, &windows[node], sizeof(own));
  }
  const auto have_come = [&] {
    for (int node = 0; node < streams_.size(); ++node) {
      if (bytes_received(node) < bytes_to_receive(node) || !is_sent(node)) return false;
    }
    return true;
  };
  absl::Status checked;
  const absl::Status status =
      Await([&] { return !checked.ok() || have_come(); }, deadline, [&] { checked = check(); });
  SYNCLINE_RETURN_IF_ERROR(checked);
  SYNCLINE_RETURN_IF_ERROR(status);
  window_ = *std::min_element(windows.begin(), windows.end());
  return absl::OkStatus();
}

std::vector<int> RailSockets::AllSockets() const {
  std::vector<int> sockets;
  for (int node = 0; node < streams_.size(); ++node) {
    for (const int socket : streams_.sockets(node)) sockets.push_back(socket);
  }
  return sockets;
}

void RailSockets::AwaitDelivery(absl::Duration timeout) const {
  backends::AwaitDelivery(AllSockets(), timeout);
}

void RailSockets::AcknowledgeNow() const {
  for (const int socket : AllSockets()) backends::AcknowledgeNow(socket);
}

void RailSockets::Abort() {
  streams_.Abort();
  // Only shut down, not closed: the thread in Await may be using the descriptors.
  for (const int socket : AllSockets()) shutdown(socket, SHUT_RDWR);
}

}  // namespace syncline::hierarchical
