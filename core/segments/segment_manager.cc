#include "core/segments/segment_manager.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/base/liveness.h"
#include "core/base/sockets.h"
#include "core/segments/protocol.h"
#include "core/segments/segment_name.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::segments {
namespace {

// Between two looks at whether the job's process lives.
constexpr absl::Duration kInterval = absl::Milliseconds(250);
// Requests of one client, before the next client's.
constexpr int kMostAtOnce = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentManager>> SegmentManager::Listen(const Peer& self) {
  const base::SocketAddress address = ManagerAddress(ManagerName(self));
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd socket, base::OpenSocket(AF_UNIX, SOCK_SEQPACKET));
  if (bind(socket.get(), address.get(), address.length) != 0 ||
      listen(socket.get(), SOMAXCONN) != 0) {
    return BackendError(absl::StrCat("cannot listen for clients: ", std::strerror(errno)));
  }
  return std::unique_ptr<SegmentManager>(new SegmentManager(self, std::move(socket)));
}

SegmentManager::SegmentManager(const Peer& self, base::UniqueFd listener)
    : self_(self),
      name_(ManagerName(self)),
      listener_(std::move(listener)),
      ledger_([name = name_](const SegmentKey& segment) {
        const SegmentName segment_name{name, segment.pid, segment.maker, segment.number};
        unlink(absl::StrCat(kFolder, "/", segment_name.ToString()).c_str());
      }) {}

void SegmentManager::Serve(const Peer& job, int stop) {
  Deadline grace(kGrace);
  Deadline next_look(absl::ZeroDuration());
  bool job_has_ended = false;
  std::vector<pollfd> entries;
  while (true) {
    entries = {{stop, POLLIN, 0}, {listens_ ? listener_.get() : -1, POLLIN, 0}};
    for (const Client& client : clients_) entries.push_back({client.connection.get(), POLLIN, 0});
    // A time that passes without an event is no error.
    static_cast<void>(base::Poll(absl::MakeSpan(entries), Deadline(kInterval)));
    if (entries[0].revents != 0) break;
    listens_ = true;
    if (entries[1].revents != 0) Accept();
    // What a client that has ended has sent to others is in their requests, which are read first.
    std::vector<ClientId> ended;
    for (size_t i = 2; i < entries.size(); ++i) {
      const Client& client = clients_[i - 2];
      if (entries[i].revents != 0 && !Read(client.connection.get(), client.id)) {
        ended.push_back(client.id);
      }
    }
    if (!ended.empty()) {
      for (const Client& client : clients_) {
        if (std::count(ended.begin(), ended.end(), client.id) != 0) continue;
        static_cast<void>(Read(client.connection.get(), client.id));
      }
      for (const ClientId id : ended) ledger_.End(id);
      clients_.erase(std::remove_if(clients_.begin(), clients_.end(),
                                    [&](const Client& client) {
                                      return std::count(ended.begin(), ended.end(), client.id) != 0;
                                    }),
                     clients_.end());
    }
    if (!job_has_ended && next_look.Expired()) {
      job_has_ended = base::LivenessOf(self_, job) == base::Liveness::kDead;
      next_look = Deadline(kInterval);
    }
    if (!job_has_ended || !clients_.empty()) {
      grace = Deadline(kGrace);
    } else if (grace.Expired()) {
      break;
    }
  }
  listener_.reset();
  clients_.clear();
  ledger_.FreeAll();
  SweepManager(name_);  // What a client had not told of when it was killed.
}

void SegmentManager::Accept() {
  while (true) {
    absl::StatusOr<base::UniqueFd> connection = base::TryAccept(listener_.get());
    if (!connection.ok()) listens_ = false;  // For want of descriptors: it would be tried at once.
    if (!connection.ok() || !connection->valid()) return;
    if (!IsOwnUser(connection->get())) continue;
    Greeting greeting;
    greeting.client = ledger_.Join();
    if (send(connection->get(), &greeting, sizeof greeting, MSG_DONTWAIT | MSG_NOSIGNAL) !=
        sizeof greeting) {
      continue;
    }
    clients_.push_back({*std::move(connection), greeting.client});
  }
}

bool SegmentManager::Read(int connection, ClientId client) {
  for (int count = 0; count < kMostAtOnce; ++count) {
    Request request;
    const ssize_t size = recv(connection, &request, sizeof request, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size != sizeof request) return false;
    switch (request.kind) {
      case Request::kCarry:
        ledger_.Carry(client, request.segment, 1);
        break;
      case Request::kDrop:
        ledger_.Carry(client, request.segment, -1);
        break;
      case Request::kUse:
        ledger_.Use(client, request.segment, 1);
        break;
      case Request::kClaim:
        ledger_.Use(client, request.segment, 1);
        ledger_.Carry(request.sender, request.segment, -1);
        break;
      case Request::kDiscard:
        ledger_.Carry(request.sender, request.segment, -1);
        break;
      case Request::kRelease:
        ledger_.Use(client, request.segment, -1);
        break;
      case Request::kAdopt: {
        const char answer = ledger_.Has(request.segment) ? 1 : 0;
        if (answer != 0) ledger_.Use(client, request.segment, 1);
        if (send(connection, &answer, 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) return false;
        break;
      }
      case Request::kLeave:
        ledger_.Leave(client);
        break;
      default:
        return false;
    }
  }
  return true;
}

}  // namespace syncline::segments
