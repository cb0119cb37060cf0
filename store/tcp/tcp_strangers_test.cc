// A tcp store's server among processes that know its port and not the job's secret: what they can
// take of it, and that those who know the secret get in all the same.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/sockets.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/tcp/handshake.h"
#include "store/tcp/tcp_server.h"
#include "store/tcp/tcp_testing.h"
#include "syncline/deadline.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {
namespace {

constexpr size_t kMostUnproved = 64;
constexpr char kSecret[] = "open sesame, if you please";

std::string Bytes(std::initializer_list<int> bytes) { return {bytes.begin(), bytes.end()}; }

// A client that connects, and then does whatever the test likes.
class Stranger {
 public:
  explicit Stranger(int port) {
    base::SocketAddress address;
    auto* const v4 = reinterpret_cast<sockaddr_in*>(address.get());
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.length = sizeof(*v4);
    absl::StatusOr<base::UniqueFd> connected =
        base::Connect(address, SOCK_STREAM, Deadline(kTimeout));
    EXPECT_TRUE(connected.ok()) << connected.status();
    if (!connected.ok()) return;
    socket_ = *std::move(connected);
    const linger reset = {1, 0};  // Leaves no port behind that is taken for a while.
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  }

  // As much as the server takes; it may close the connection at any time.
  void Send(absl::string_view bytes) {
    base::SendAll(socket_.get(), bytes.data(), bytes.size(), Deadline(kTimeout)).IgnoreError();
  }

  bool IsClosed() const {
    char byte = 0;
    const ssize_t size = recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return size == 0 || (size < 0 && errno == ECONNRESET);
  }

 private:
  base::UniqueFd socket_;
};

size_t NumOpen(const std::vector<Stranger>& strangers) {
  return std::count_if(strangers.begin(), strangers.end(),
                       [](const Stranger& stranger) { return !stranger.IsClosed(); });
}

// An HTTP/2 frame, whose stream and length have less than 17 bits.
std::string Frame(int type, int flags, int stream, const std::string& body) {
  const int length = static_cast<int>(body.size());
  return absl::StrCat(
      Bytes({0, length >> 8, length & 255, type, flags, 0, 0, stream >> 8, stream & 255}), body);
}

// What a gRPC client sends that opens `count` streams to the service.
std::string OpeningOfStreams(int count) {
  const std::string path = "/syncline.wire.StoreService/Connect";
  const std::string headers =
      absl::StrCat(Bytes({0x83, 0x86}), Bytes({0x01, 1}), "x",
                   Bytes({0x04, static_cast<int>(path.size())}), path, Bytes({0x0f, 0x10, 16}),
                   "application/grpc", Bytes({0x00, 2}), "te", Bytes({8}), "trailers");
  std::string bytes = absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(4, 0, 0, ""));
  for (int i = 0; i < count; ++i) absl::StrAppend(&bytes, Frame(1, 4, 2 * i + 1, headers));
  return bytes;
}

// Connects again and again without pause, from a thread of its own; `held` connections are open
// at a time.
class Renewer {
 public:
  Renewer(int port, size_t held)
      : thread_([this, port, held] {
          std::deque<Stranger> strangers;
          while (!stop_) {
            strangers.emplace_back(port);
            if (strangers.size() > held) strangers.pop_front();
          }
        }) {}
  ~Renewer() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST(TCPStrangersTest, WhoHasProvedNothingHoldsAtMostSixtyFourConnections) {
  ServerProcess server(kSecret);
  auto client = Create(Client(server.port(), kSecret));
  const int before = server.NumDescriptors();
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(server.port());
    strangers.back().Send(kHandshakeMagic.substr(0, 1));
  }
  EXPECT_TRUE(Eventually([&] { return NumOpen(strangers) <= kMostUnproved; }));
  EXPECT_LE(server.NumDescriptors(), before + static_cast<int>(kMostUnproved));

  // The oldest went, the newest are still in their time.
  const std::vector<Stranger>::iterator newest = strangers.end() - 10;
  EXPECT_TRUE(std::none_of(newest, strangers.end(),
                           [](const Stranger& stranger) { return stranger.IsClosed(); }));
  auto late = Create(Client(server.port(), kSecret));
  ASSERT_TRUE(late->Set("key", "value").ok());
  EXPECT_EQ(*client->Get("key", kTimeout), "value");
}

TEST(TCPStrangersTest, WhoSaysNothingHoldsNoMoreThanWhoDoes) {
  ServerProcess server(kSecret);
  const int before = server.NumDescriptors();
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(server.port());
  EXPECT_TRUE(Eventually([&] { return NumOpen(strangers) <= kMostUnproved; }));
  EXPECT_LE(server.NumDescriptors(), before + static_cast<int>(kMostUnproved));
}

TEST(TCPStrangersTest, WhoKnowsTheSecretGetsInWhileAStrangerRenewsItsConnections) {
  ServerProcess server(kSecret);
  Renewer stranger(server.port(), 200);
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      for (int j = 0; j < 4; ++j) {
        auto client = Create(Client(server.port(), kSecret));
        ASSERT_NE(client, nullptr);
        EXPECT_TRUE(client->Set(absl::StrCat(i), "here").ok());
      }
    });
  }
  for (std::thread& client : clients) client.join();
}

TEST(TCPStrangersTest, AServerWithFewDescriptorsServesWhoKnowsTheSecret) {
  ServerProcess server(kSecret, /*max_descriptors=*/60);
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(server.port());
  auto client = Create(Client(server.port(), kSecret));
  ASSERT_NE(client, nullptr);
  EXPECT_TRUE(client->Set("key", "value").ok());
}

TEST(TCPStrangersTest, AllStrangersTogetherTakeAtMostSixteenMebibytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep what is freed";
#endif
  ServerProcess server(kSecret);
  auto client = Create(Client(server.port(), kSecret));
  ASSERT_TRUE(client->Set("key", "value").ok());
  const int64_t before = server.MostMemory();
  const std::string streams = OpeningOfStreams(2000);
  const std::string garbage(1 << 20, 'x');
  for (int i = 0; i < 30; ++i) {
    Stranger(server.port()).Send(streams);
    Stranger(server.port()).Send(garbage);
  }
  std::vector<Stranger> silent;
  for (int i = 0; i < 1000; ++i) silent.emplace_back(server.port());
  EXPECT_EQ(*client->Get("key", kTimeout), "value");
  EXPECT_LE(server.MostMemory() - before, int64_t{16} << 20);
}

// Standard error is a pipe that is full and that nobody reads.
class UnreadStandardError {
 public:
  UnreadStandardError() : before_(dup(STDERR_FILENO)) {
    EXPECT_EQ(pipe(ends_), 0);
    fcntl(ends_[1], F_SETFL, O_NONBLOCK);
    const std::string page(4096, 'x');
    while (write(ends_[1], page.data(), page.size()) > 0) {
    }
    fcntl(ends_[1], F_SETFL, 0);
    dup2(ends_[1], STDERR_FILENO);
  }
  ~UnreadStandardError() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(ends_[1]);
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    char page[4096];
    while (read(ends_[0], page, sizeof(page)) > 0) {
    }
    // The other end stays open, for a thread that is still in write().
  }

 private:
  const int before_;
  int ends_[2];
};

TEST(TCPStrangersTest, AStrangerThatIsRefusedHoldsNobodyUpWhileTheLogIsNotRead) {
  TCPServer::Options options;
  options.secret = kSecret;
  auto server = Start(options);
  auto client = Create(Client(server->port(), kSecret));
  {
    UnreadStandardError unread;
    std::vector<Stranger> strangers;
    for (int i = 0; i < 4; ++i) {
      strangers.emplace_back(server->port());
      strangers.back().Send(OpeningOfStreams(1) + Frame(0, 0, 1, std::string(5, 0)));
    }
    EXPECT_TRUE(Eventually([&] { return NumOpen(strangers) == 0; }));
    EXPECT_TRUE(client->Set("key", "value").ok());
    TCPStore::Options late = Client(server->port(), kSecret);
    late.timeout = absl::Seconds(20);
    EXPECT_NE(Create(late), nullptr);
  }
}

}  // namespace
}  // namespace syncline::tcp_store

int main(int argc, char** argv) { return syncline::tcp_store::RunTestsOrServe(argc, argv); }
