#include "backends/hierarchical/rail_sockets.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/rank_acceptor.h"
#include "backends/tcp/silent_hosts.h"
#include "core/base/sockets.h"
#include "syncline/status.h"

namespace syncline::hierarchical {

// A rank connects to the members before it, and then accepts those after it. So no ranks wait for
// each other in a circle: the first one accepts at once.
absl::StatusOr<std::unique_ptr<RailSockets>> RailSockets::Connect(
    const backends::Listener& listener, absl::Span<const Member> members, int own,
    const Deadline& deadline, absl::FunctionRef<absl::Status()> check) {
  SYNCLINE_ASSIGN_OR_RETURN(const absl::Duration silence_limit, tcp::SilenceLimit());
  std::vector<tls::Stream> streams(members.size());
  for (int to = 0; to < own; ++to) {
    auto stream = backends::IntroduceInSlices(members[to].endpoint, own, deadline, check,
                                              listener.tls().get());
    if (!stream.ok()) return Annotate(stream.status(), members[to].name);
    streams[to] = *std::move(stream);
  }
  SYNCLINE_RETURN_IF_ERROR(AcceptMembers(listener, members, own, deadline, check, streams));
  for (const tls::Stream& stream : streams) {
    if (!stream.valid()) continue;
    base::SetNoDelay(stream.fd());
    tcp::KeepAlive(stream.fd(), silence_limit);
  }
  return std::unique_ptr<RailSockets>(new RailSockets(members, std::move(streams)));
}

RailSockets::RailSockets(absl::Span<const Member> members, std::vector<tls::Stream> streams)
    : streams_(
          std::move(streams),
          [members = std::vector<Member>(members.begin(), members.end())](int node) {
            return backends::SocketStreams::Peer{members[node].rank, members[node].name};
          },
          base::UniqueFd()) {}

absl::Status RailSockets::AcceptMembers(const backends::Listener& listener,
                                        absl::Span<const Member> members, int own,
                                        const Deadline& deadline,
                                        absl::FunctionRef<absl::Status()> check,
                                        std::vector<tls::Stream>& streams) {
  const int size = static_cast<int>(members.size());
  const int expected = size - 1 - own;
  backends::RankAcceptor acceptor(listener.socket(), std::string(listener.secret()), expected,
                                  listener.tls());
  for (int connected = 0; connected < expected;) {
    auto connection = backends::AcceptInSlices(acceptor, deadline, check);
    if (KindOf(connection.status()) == ErrorKind::kTimeout) {
      std::vector<std::string> late;
      for (int from = own + 1; from < size; ++from) {
        if (!streams[from].valid()) late.push_back(members[from].name);
      }
      return TimeoutError(absl::StrCat(absl::StrJoin(late, ", "), " did not connect within ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    SYNCLINE_RETURN_IF_ERROR(connection.status());
    // The number comes from the peer. One that cannot be right is dropped with its connection.
    const int from = connection->rank;
    if (from <= own || from >= size || streams[from].valid()) continue;
    SYNCLINE_RETURN_IF_ERROR(Annotate(connection->error, members[from].name));
    streams[from] = std::move(connection->stream);
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

void RailSockets::Abort() {
  streams_.Abort();
  // Only shut down, not closed: the thread in Await may be using the descriptors.
  for (int node = 0; node < streams_.size(); ++node) {
    if (streams_.socket(node) >= 0) shutdown(streams_.socket(node), SHUT_RDWR);
  }
}

}  // namespace syncline::hierarchical
