// Sends and receives over connections that the test holds the other ends of.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/peer_table.h"
#include "backends/tcp/point_to_point.h"
#include "core/base/unique_fd.h"
#include "core/tls/stream.h"
#include "gtest/gtest.h"
#include "syncline/collective.h"
#include "syncline/deadline.h"
#include "syncline/hash_store.h"
#include "syncline/tensor.h"

namespace syncline::tcp {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

// Of rank 0 of two ranks, which are threads here.
backends::PeerTable JoinTable() {
  HashStore store;
  std::vector<absl::StatusOr<backends::PeerTable>> tables(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      tables[rank] =
          backends::PeerTable::Join(store, rank, 2, std::string("here"), Deadline(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::move(tables[0]);
}

// A rank with one peer, of which the test is the other end.
class Rank {
 public:
  explicit Rank(const backends::PeerTable& peers) {
    int pair[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    other_end_ = base::UniqueFd(pair[1]);
    own_end_ = base::UniqueFd(dup(pair[0]));
    std::vector<tls::Stream> streams(2);
    streams[1] = tls::Stream(base::UniqueFd(pair[0]));
    messages_ = std::make_unique<PointToPoint>(
        peers, std::move(streams), base::UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)));
  }

  absl::Status Run(const Collective& call) {
    CallContext context;
    context.collective = &call;
    context.deadline = Deadline(kTimeout);
    if (call.kind == OpKind::kSend) return messages_->Send(*call.tensor, context);
    return messages_->Recv(*call.tensor, context).status();
  }

  int own_end() const { return own_end_.get(); }
  int other_end() const { return other_end_.get(); }

 private:
  base::UniqueFd own_end_, other_end_;
  std::unique_ptr<PointToPoint> messages_;
};

// Reads so many bytes.
std::string Take(int socket, size_t bytes) {
  std::string all(bytes, '\0');
  for (size_t done = 0; done < bytes;) {
    const ssize_t size = recv(socket, all.data() + done, bytes - done, MSG_DONTWAIT);
    if (size > 0) {
      done += static_cast<size_t>(size);
      continue;
    }
    pollfd entry = {socket, POLLIN, 0};
    if (poll(&entry, 1, 10'000) != 1) return all.substr(0, done);
  }
  return all;
}

// The message may have come whole, and still its sender waits for the grant; the caller may not
// call anything for a long time then.
TEST(TcpPointToPointTest, AReceiveReturnsOnceItsSenderWillLearnOfIt) {
  constexpr int64_t kCount = 20 << 10;  // 80 KiB: a request that brings everything.
  constexpr size_t kHeader = 56;
  const backends::PeerTable peers = JoinTable();
  Rank sender(peers), receiver(peers);
  std::vector<int32_t> sent(kCount), received(kCount, -1);
  for (int64_t i = 0; i < kCount; ++i) sent[i] = static_cast<int32_t>(i);
  const Tensor source(sent.data(), DType::kInt32, {kCount});
  const Tensor target(received.data(), DType::kInt32, {kCount});

  // The kernel takes nothing more of the receiver.
  const std::string filler(512, 'x');
  size_t filled = 0;
  for (size_t piece : {filler.size(), size_t{1}}) {
    ssize_t size;
    while ((size = send(receiver.own_end(), filler.data(), piece, MSG_DONTWAIT)) > 0) {
      filled += static_cast<size_t>(size);
    }
    ASSERT_EQ(errno, EAGAIN);
  }

  std::atomic<bool> has_sent{false}, has_received{false};
  std::thread sends([&] {
    const absl::Status status = sender.Run(Collective::Send(source, 1));
    EXPECT_TRUE(status.ok()) << status;
    has_sent = true;
  });
  const size_t whole = kHeader + sent.size() * sizeof(int32_t);
  const std::string request = Take(sender.other_end(), whole);
  ASSERT_EQ(request.size(), whole);
  ASSERT_EQ(send(receiver.other_end(), request.data(), whole, 0), static_cast<ssize_t>(whole));
  std::thread receives([&] {
    const absl::Status status = receiver.Run(Collective::Recv(target, 1));
    EXPECT_TRUE(status.ok()) << status;
    has_received = true;
  });
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_FALSE(has_received);
  EXPECT_FALSE(has_sent);

  EXPECT_EQ(Take(receiver.other_end(), filled).size(), filled);
  receives.join();
  const std::string grant = Take(receiver.other_end(), kHeader);
  ASSERT_EQ(grant.size(), kHeader);
  ASSERT_EQ(send(sender.other_end(), grant.data(), kHeader, 0), static_cast<ssize_t>(kHeader));
  sends.join();
  EXPECT_EQ(received, sent);
}

}  // namespace
}  // namespace syncline::tcp
