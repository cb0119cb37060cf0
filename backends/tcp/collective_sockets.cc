#include "backends/tcp/collective_sockets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::tcp {
namespace {

constexpr uint32_t kMagic = 0x53594e43;  // "SYNC".

}  // namespace

// A set of messages is complete once the queues of all its connections have moved as far as they
// were when its last message was added.
class TcpMessages final : public backends::Messages {
 public:
  TcpMessages(CollectiveSockets& sockets, int size, const Deadline& deadline)
      : sockets_(sockets), deadline_(deadline), marks_(size) {}

  void Send(int to, const void* data, size_t nbytes) override {
    if (nbytes == 0) return;
    sockets_.Send(to, data, nbytes);
    marks_[to].out = sockets_.streams_.bytes_to_send(to);
  }

  void Receive(int from, void* data, size_t nbytes) override {
    if (nbytes == 0) return;
    sockets_.Receive(from, data, nbytes);
    marks_[from].in = sockets_.streams_.bytes_to_receive(from);
  }

  absl::Status Wait() override {
    const backends::SocketStreams& streams = sockets_.streams_;
    const auto is_done = [&] {
      for (int peer = 0; peer < streams.size(); ++peer) {
        if (streams.bytes_sent(peer) < marks_[peer].out) return false;
        if (streams.bytes_received(peer) < marks_[peer].in) return false;
      }
      return true;
    };
    return sockets_.streams_.Await(is_done, deadline_);
  }

 private:
  struct Mark {
    uint64_t out = 0, in = 0;
  };
  CollectiveSockets& sockets_;
  const Deadline& deadline_;
  std::vector<Mark> marks_;
};

std::unique_ptr<backends::Messages> TcpTransport::NewMessages() {
  return std::make_unique<TcpMessages>(sockets_, size(), deadline_);
}

CollectiveSockets::CollectiveSockets(const backends::PeerTable& peers,
                                     std::vector<std::vector<tls::Stream>> streams,
                                     base::UniqueFd abort_event)
    : peers_(peers),
      streams_(
          std::move(streams),
          [&peers](int peer) { return backends::SocketStreams::Peer{peer, peers.Describe(peer)}; },
          std::move(abort_event), [this](int peer) { return CheckHeaders(peer); }),
      links_(streams_.size()) {}

void CollectiveSockets::Send(int to, const void* data, size_t nbytes) {
  Link& link = links_[to];
  if (streams_.bytes_sent(to) == streams_.bytes_to_send(to)) link.sent_headers.clear();
  link.sent_headers.push_back({kMagic, 0, nbytes});
  streams_.Send(to, &link.sent_headers.back(), sizeof(Header));
  streams_.Send(to, data, nbytes);
}

void CollectiveSockets::Receive(int from, void* data, size_t nbytes) {
  Link& link = links_[from];
  link.expectations.push_back({{}, nbytes, streams_.bytes_to_receive(from)});
  streams_.Receive(from, &link.expectations.back().header, sizeof(Header));
  streams_.Receive(from, data, nbytes);
}

absl::Status CollectiveSockets::CheckHeaders(int peer) {
  Link& link = links_[peer];
  while (!link.expectations.empty()) {
    const Expected& expected = link.expectations.front();
    if (streams_.bytes_received(peer) < expected.begin + sizeof(Header)) break;
    if (expected.header.magic != kMagic || expected.header.bytes != expected.bytes) {
      return WithRanks(
          MismatchError(absl::StrCat(peers_.Describe(peer), " sent ", expected.header.bytes,
                                     " bytes where ", expected.bytes,
                                     " were expected: all ranks must make the same calls in the "
                                     "same order, and run the same version of Syncline")),
          {peer});
    }
    link.expectations.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace syncline::tcp
