#include "core/base/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/errno_payload.h"
#include "core/testing/no_descriptors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline(absl::Milliseconds(50)); }
Deadline Later() { return Deadline(absl::Seconds(60)); }
Deadline Passed() { return Deadline(absl::ZeroDuration()); }

// A listener on loopback that nobody else knows, and its address.
struct Listener {
  static Listener Open(int family, int backlog = SOMAXCONN) {
    Listener listener;
    listener.address.storage.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
      auto* const in = reinterpret_cast<sockaddr_in*>(listener.address.get());
      in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      listener.address.length = sizeof(sockaddr_in);
    } else {
      listener.address.length = sizeof(sa_family_t);  // The kernel picks an abstract name.
    }
    listener.fd = OpenSocket(family, SOCK_STREAM).value();
    EXPECT_EQ(bind(listener.fd.get(), listener.address.get(), listener.address.length), 0);
    EXPECT_EQ(listen(listener.fd.get(), backlog), 0);
    listener.address.length = sizeof(listener.address.storage);
    EXPECT_EQ(getsockname(listener.fd.get(), listener.address.get(), &listener.address.length), 0);
    return listener;
  }

  UniqueFd Connect() const { return base::Connect(address, SOCK_STREAM, Later()).value(); }

  UniqueFd fd;
  SocketAddress address;
};

// Both ends of a connection.
std::pair<UniqueFd, UniqueFd> Connected(int family = AF_INET) {
  const Listener listener = Listener::Open(family);
  UniqueFd client = listener.Connect();
  UniqueFd server = Accept(listener.fd.get(), Later()).value();
  return {std::move(client), std::move(server)};
}

class SocketsTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Families, SocketsTest, testing::Values(AF_INET, AF_UNIX),
                         [](const auto& info) { return info.param == AF_INET ? "Inet" : "Unix"; });

TEST_P(SocketsTest, WhatIsSentIsReceived) {
  const auto [client, server] = Connected(GetParam());
  const std::string sent(1 << 20, 'x');  // More than the kernel buffers: both sides wait.
  std::string received(sent.size(), '\0');
  std::thread sender([&, client = client.get()] {
    EXPECT_TRUE(SendAll(client, sent.data(), sent.size(), Later()).ok());
  });
  EXPECT_TRUE(ReceiveAll(server.get(), &received[0], received.size(), Later()).ok());
  sender.join();
  EXPECT_EQ(received, sent);
}

TEST_P(SocketsTest, SocketsAreNonBlockingAndClosedOnExec) {
  const auto [client, server] = Connected(GetParam());
  for (const UniqueFd* fd : {&client, &server}) {
    EXPECT_NE(fcntl(fd->get(), F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_P(SocketsTest, EveryWaitEndsAtItsDeadline) {
  const Listener listener = Listener::Open(GetParam());
  EXPECT_EQ(KindOf(Accept(listener.fd.get(), Soon()).status()), ErrorKind::kTimeout);
  const auto [client, server] = Connected(GetParam());
  EXPECT_EQ(KindOf(WaitReadable(server.get(), Soon())), ErrorKind::kTimeout);
  pollfd entries[] = {{server.get(), POLLIN, 0}, {client.get(), POLLIN, 0}};
  EXPECT_EQ(KindOf(Poll(absl::MakeSpan(entries), Soon())), ErrorKind::kTimeout);

  char byte = 'x';
  absl::Status status = ReceiveAll(server.get(), &byte, 1, Soon());
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 of 1 bytes came within 50ms"));

  const std::string more_than_fits(64 << 20, 'x');
  status = SendAll(client.get(), more_than_fits.data(), more_than_fits.size(), Soon());
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_EQ(KindOf(WaitWritable(client.get(), Passed())), ErrorKind::kTimeout);
}

TEST_P(SocketsTest, APassedDeadlineStillFindsWhatIsReady) {
  const auto [client, server] = Connected(GetParam());
  const char byte = 'x';
  ASSERT_TRUE(SendAll(client.get(), &byte, 1, Passed()).ok());
  ASSERT_TRUE(WaitReadable(server.get(), Later()).ok());
  EXPECT_TRUE(WaitReadable(server.get(), Passed()).ok());
  EXPECT_TRUE(WaitWritable(server.get(), Passed()).ok());
  pollfd entry = {server.get(), POLLIN, 0};
  EXPECT_TRUE(Poll(absl::MakeSpan(&entry, 1), Passed()).ok());
  EXPECT_EQ(entry.revents, POLLIN);
}

TEST_P(SocketsTest, StrangersDoNotStretchTheDeadlineOfALoopOfAccepts) {
  const Listener listener = Listener::Open(GetParam());
  std::atomic<bool> is_over{false};
  std::thread strangers([&] {
    while (!is_over) Connect(listener.address, SOCK_STREAM, Soon()).IgnoreError();
  });
  ASSERT_TRUE(WaitReadable(listener.fd.get(), Later()).ok());  // One has come.
  const Deadline deadline(absl::Milliseconds(200));
  absl::Status status;
  int accepted = 0;
  while (status.ok()) {
    const auto connection = Accept(listener.fd.get(), deadline);
    status = connection.status();
    if (connection.ok()) ++accepted;
  }
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_GT(accepted, 0);
  is_over = true;
  strangers.join();
}

TEST_P(SocketsTest, ALackOfDescriptorsIsAnErrorAtOnceThatSaysWhatToRaise) {
  const Listener listener = Listener::Open(GetParam());
  const UniqueFd client = listener.Connect();
  ASSERT_TRUE(WaitReadable(listener.fd.get(), Later()).ok());
  {
    const NoDescriptors none;
    for (const absl::Status& status :
         {Accept(listener.fd.get(), Later()).status(), TryAccept(listener.fd.get()).status(),
          Connect(listener.address, SOCK_STREAM, Later()).status()}) {
      EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("raise the limit (ulimit -n)"));
    }
  }
  EXPECT_TRUE(Accept(listener.fd.get(), Later()).ok());  // The connection is still there.
}

TEST_P(SocketsTest, TryAcceptDoesNotWait) {
  const Listener listener = Listener::Open(GetParam());
  EXPECT_FALSE(TryAccept(listener.fd.get()).value().valid());
  const UniqueFd client = listener.Connect();
  ASSERT_TRUE(WaitReadable(listener.fd.get(), Later()).ok());
  EXPECT_TRUE(TryAccept(listener.fd.get()).value().valid());
}

TEST_P(SocketsTest, AClosedConnectionIsAnErrorAndNoSignal) {
  auto [client, server] = Connected(GetParam());
  const std::string sent = "half";
  ASSERT_TRUE(SendAll(client.get(), sent.data(), sent.size(), Later()).ok());
  client.reset();
  char buffer[8];
  absl::Status status = ReceiveAll(server.get(), buffer, sizeof(buffer), Later());
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("closed after 4 of 8 bytes"));
  do {
    status = SendAll(server.get(), buffer, sizeof(buffer), Later());  // TCP's first may succeed.
  } while (status.ok());
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
}

TEST_P(SocketsTest, ARefusedConnectionIsAnErrorAtOnce) {
  Listener listener = Listener::Open(GetParam());
  listener.fd.reset();
  const absl::Status status = Connect(listener.address, SOCK_STREAM, Later()).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
  EXPECT_EQ(ErrnoOf(status), ECONNREFUSED);
}

TEST(UnixSocketsTest, ConnectWaitsForRoomInAFullBacklogUntilItsDeadline) {
  const Listener listener = Listener::Open(AF_UNIX, /*backlog=*/0);
  std::vector<UniqueFd> clients;
  absl::StatusOr<UniqueFd> client;
  while ((client = Connect(listener.address, SOCK_STREAM, Soon())).ok()) {
    clients.push_back(*std::move(client));
  }
  EXPECT_EQ(KindOf(client.status()), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("backlog is full within 50ms"));

  std::thread waits([&] { EXPECT_TRUE(Connect(listener.address, SOCK_STREAM, Later()).ok()); });
  for (size_t i = 0; i <= clients.size(); ++i) {
    EXPECT_TRUE(Accept(listener.fd.get(), Later()).ok());
  }
  waits.join();
}

TEST(SocketsSignalTest, SignalsNeitherEndAWaitNorExtendIt) {
  struct sigaction ignore = {}, before;
  ignore.sa_handler = [](int) {};  // Without SA_RESTART: every call returns EINTR.
  sigaction(SIGUSR1, &ignore, &before);
  const absl::Cleanup restore = [&] { sigaction(SIGUSR1, &before, nullptr); };
  const Listener listener = Listener::Open(AF_INET);
  const pthread_t self = pthread_self();
  std::atomic<bool> is_over{false};
  std::thread signals([&] {
    while (!is_over) {
      pthread_kill(self, SIGUSR1);
      absl::SleepFor(absl::Milliseconds(1));
    }
  });
  const absl::Time began = absl::Now();
  EXPECT_EQ(KindOf(Accept(listener.fd.get(), Soon()).status()), ErrorKind::kTimeout);
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(45));
  is_over = true;
  signals.join();
}

}  // namespace
}  // namespace syncline::base
