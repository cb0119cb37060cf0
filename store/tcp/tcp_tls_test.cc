// Stores whose connections are encrypted: that they are stores, that nobody on the way can read or
// change anything, and what each side says of one that is not let in.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/testing/log_lines.h"
#include "core/testing/tls_environment.h"
#include "core/tls/certificates.h"
#include "core/tls/context.h"
#include "core/tls/settings.h"
#include "core/tls/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/common/listen_address.h"
#include "store/tcp/handshake.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tcp_server.h"
#include "store/tcp/tcp_testing.h"
#include "syncline/deadline.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {
namespace {

using ::testing::HasSubstr;
using tls::Mode;

constexpr char kSecret[] = "a secret of the job, which is long";

class TCPTLSTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { environment_.Set(GetParam()); }
  void TearDown() override { TlsEnvironment::Unset(); }

  TlsEnvironment environment_;
};

INSTANTIATE_TEST_SUITE_P(All, TCPTLSTest, ::testing::Values(Mode::kSecret, Mode::kCertificates),
                         [](const auto& info) { return std::string(tls::ModeName(info.param)); });

TEST_P(TCPTLSTest, IsAStore) {
  auto server = Create(Server(kSecret));
  auto client = Create(Client(server->port(), kSecret));
  ASSERT_TRUE(client->Set("key", "value").ok());
  EXPECT_EQ(*server->Get("key", kTimeout), "value");
  const std::string large(20'000'000, 'x');
  ASSERT_TRUE(server->Set("large", large).ok());
  EXPECT_TRUE(*client->Get("large", kTimeout) == large);
  // A wait holds up no other call.
  std::thread waiting([&] { EXPECT_TRUE(client->Wait(Strings{"late"}, kTimeout).ok()); });
  for (int i = 1; i <= 200; ++i) EXPECT_EQ(*client->Add("sum", 1), i);
  ASSERT_TRUE(client->Set("late", "").ok());
  waiting.join();
}

TEST_P(TCPTLSTest, ServesManyClientsAtOnce) {
  auto server = Start([] {
    TCPServer::Options options;
    options.secret = kSecret;
    return options;
  }());
  constexpr int kClients = 24, kCalls = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([port = server->port()] {
      auto client = Create(Client(port, kSecret));
      ASSERT_NE(client, nullptr);
      for (int j = 0; j < kCalls; ++j) ASSERT_TRUE(client->Add("sum", 1).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*Create(Client(server->port(), kSecret))->Add("sum", 0), kClients * kCalls);
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST_P(TCPTLSTest, AnnouncesClientsThatHaveGone) {
  auto server = Create(Server(kSecret));
  auto client = Create(Client(server->port(), kSecret));
  ASSERT_TRUE(client->SetOnDisconnect("gone", "yes").ok());
  client.reset();
  EXPECT_EQ(*server->Get("gone", kTimeout), "yes");
}

TEST_P(TCPTLSTest, TellsClientsThatItIsShutDown) {
  auto server = Create(Server(kSecret));
  auto client = Create(Client(server->port(), kSecret));
  std::thread waiting([&] {
    const absl::Status status = client->Wait(Strings{"never"}, kTimeout);
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
    EXPECT_THAT(status.message(), HasSubstr("the connection to the server is lost"));
  });
  absl::SleepFor(absl::Milliseconds(50));
  server.reset();
  waiting.join();
}

TEST_P(TCPTLSTest, AChildOfForkLeavesItAlone) {
  auto server = Create(Server(kSecret));
  auto client = Create(Client(server->port(), kSecret));
  const pid_t child = fork();
  if (child == 0) {
    const bool is_refused = KindOf(client->Set("key", "")) == ErrorKind::kStore;
    client.reset();
    server.reset();
    _exit(is_refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(client->Set("key", "value").ok());
}

// Passes on one connection, and keeps what it has seen.
class Eavesdropper {
 public:
  // `change` may change what the client sends.
  explicit Eavesdropper(int server_port, std::function<void(std::string& bytes)> change = nullptr)
      : change_(std::move(change)) {
    auto listener = store::Listen("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok()) << listener.status();
    port_ = listener->port;
    thread_ = std::thread([this, server_port, listener = *std::move(listener)] {
      auto client = base::Accept(listener.sockets[0].get(), Deadline(kTimeout));
      ASSERT_TRUE(client.ok()) << client.status();
      base::SocketAddress address;
      address.length = sizeof(sockaddr_in);
      auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
      in.sin_family = AF_INET;
      in.sin_port = htons(static_cast<uint16_t>(server_port));
      in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      auto server = base::Connect(address, SOCK_STREAM, Deadline(kTimeout));
      ASSERT_TRUE(server.ok()) << server.status();
      while (Pass(client->get(), server->get(), true) &&
             Pass(server->get(), client->get(), false)) {
        pollfd entries[] = {{client->get(), POLLIN, 0}, {server->get(), POLLIN, 0}};
        ASSERT_TRUE(base::Poll(absl::MakeSpan(entries), Deadline(kTimeout)).ok());
      }
    });
  }
  ~Eavesdropper() { thread_.join(); }

  int port() const { return port_; }
  bool HasSeen(absl::string_view text) {
    absl::MutexLock lock(&mutex_);
    return absl::StrContains(seen_, text);
  }

 private:
  // Whether both are still connected.
  bool Pass(int from, int to, bool is_of_client) {
    std::string bytes(1 << 16, '\0');
    const ssize_t count = recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    bytes.resize(static_cast<size_t>(count));
    if (is_of_client && change_ != nullptr) change_(bytes);
    {
      absl::MutexLock lock(&mutex_);
      seen_ += bytes;
    }
    return base::SendAll(to, bytes.data(), bytes.size(), Deadline(kTimeout)).ok();
  }

  const std::function<void(std::string&)> change_;
  int port_ = 0;
  absl::Mutex mutex_;
  std::string seen_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

TEST_P(TCPTLSTest, NobodyOnTheWayReadsKeysOrValues) {
  for (const bool is_encrypted : {true, false}) {
    if (!is_encrypted) TlsEnvironment::Unset();
    auto server = Create(Server(kSecret));
    Eavesdropper eavesdropper(server->port());
    auto client = Create(Client(eavesdropper.port(), kSecret));
    ASSERT_TRUE(client->Set("the key of a test", "the value of a test").ok());
    EXPECT_EQ(*server->Get("the key of a test", kTimeout), "the value of a test");
    EXPECT_EQ(eavesdropper.HasSeen("the value of a test"), !is_encrypted);
    EXPECT_EQ(eavesdropper.HasSeen("the key of a test"), !is_encrypted);
    client.reset();
  }
}

TEST_P(TCPTLSTest, WhatIsChangedOnTheWayEndsTheConnection) {
  auto server = Create(Server(kSecret));
  std::atomic<bool> changes = false;
  Eavesdropper eavesdropper(server->port(), [&](std::string& bytes) {
    if (changes) bytes.back() ^= 1;
  });
  auto client = Create(Client(eavesdropper.port(), kSecret));
  ASSERT_TRUE(client->Set("key", "value").ok());
  changes = true;
  EXPECT_EQ(KindOf(client->Set("key", "another")), ErrorKind::kNetwork);
  EXPECT_EQ(*server->Get("key", kTimeout), "value");
  client.reset();
}

TEST_P(TCPTLSTest, AllProcessesOfAJobEncryptOrNone) {
  {
    auto server = Create(Server(kSecret));
    TlsEnvironment::Unset();
    EXPECT_THAT(CreateError(Client(server->port(), kSecret), ErrorKind::kNetwork),
                HasSubstr(absl::StrCat("SYNCLINE_TLS is off in this process and ",
                                       tls::ModeName(GetParam()), " where the store is served")));
    EXPECT_TRUE(IsRefusal(TCPStore::Create(Client(server->port(), kSecret)).status()));
    environment_.Set(GetParam());
    EXPECT_TRUE(Create(Client(server->port(), kSecret))->Set("key", "").ok());
  }
  TlsEnvironment::Unset();
  auto server = Create(Server(kSecret));
  environment_.Set(GetParam());
  EXPECT_THAT(CreateError(Client(server->port(), kSecret), ErrorKind::kNetwork),
              HasSubstr("off where the store is served"));
}

// One that stops in the middle of the handshake is put out, and holds up nobody meanwhile.
TEST_P(TCPTLSTest, WhoStopsWhileItIsEncryptedIsPutOut) {
  TCPServer::Options options;
  options.secret = kSecret;
  options.time_to_prove = absl::Seconds(1);
  auto server = Start(options);
  auto address = base::Resolve("127.0.0.1", {server->port()}, Deadline(kTimeout));
  ASSERT_TRUE(address.ok());
  for (const char* rest :
       {"", "\x16\x03\x01\x02", "no TLS at all, but rather a long line of text"}) {
    auto socket = base::Connect(address->front(), SOCK_STREAM, Deadline(kTimeout));
    ASSERT_TRUE(socket.ok());
    const ClientHandshake handshake(kSecret, GetParam());
    const std::string hello = handshake.Hello();
    std::string challenge(kChallengeBytes, '\0');
    ASSERT_TRUE(base::SendAll(socket->get(), hello.data(), hello.size(), Deadline(kTimeout)).ok());
    ASSERT_TRUE(
        base::ReceiveAll(socket->get(), challenge.data(), challenge.size(), Deadline(kTimeout))
            .ok());
    const auto response = handshake.Respond(challenge);
    ASSERT_TRUE(response.ok()) << response.status();
    const std::string last = *response + rest;
    ASSERT_TRUE(base::SendAll(socket->get(), last.data(), last.size(), Deadline(kTimeout)).ok());
    EXPECT_TRUE(Create(Client(server->port(), kSecret))->Set("key", "").ok());
    char byte;
    const auto ends = [&] {
      const ssize_t count = recv(socket->get(), &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && errno != EAGAIN);
    };
    EXPECT_TRUE(Eventually(ends));
  }
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST(TCPCertificatesTest, BothSidesSayWhyACertificateIsNotAccepted) {
  const TlsEnvironment environment, other;
  environment.Set(Mode::kCertificates);
  // One logs a refusal every few seconds only.
  std::vector<std::shared_ptr<TCPStore>> servers;
  for (int i = 0; i < 3; ++i) servers.push_back(Create(Server(kSecret)));
  const auto expect_refusal = [&](absl::string_view at_client, absl::string_view at_server) {
    const auto server = std::move(servers.back());
    servers.pop_back();
    const LogLines lines;
    EXPECT_THAT(CreateError(Client(server->port(), kSecret), ErrorKind::kNetwork),
                HasSubstr(at_client));
    EXPECT_TRUE(Eventually([&] { return lines.Have(at_server); })) << at_server;
    // The others go on.
    environment.Set(Mode::kCertificates);
    EXPECT_TRUE(Create(Client(server->port(), kSecret))->Set("key", "").ok());
  };
  // Another authority's: the client does not accept the server's.
  other.Set(Mode::kCertificates);
  expect_refusal("no authority of SYNCLINE_TLS_CA has signed it", "does not accept");
  // Nor the server the client's.
  other.Set(Mode::kCertificates);
  setenv("SYNCLINE_TLS_CA", (environment.folder() + "/ca.pem").c_str(), 1);
  expect_refusal("the other side does not accept the certificate in '",
                 "no authority of SYNCLINE_TLS_CA has signed it");
  setenv("SYNCLINE_TLS_PEER_NAME", "trainer.example.com", 1);
  expect_refusal("it is not for 'trainer.example.com'", "does not accept");
}

// Who is connected goes on, nobody connects any more, and once the files have been renewed
// everybody does, also to a server that was started with the old ones.
TEST(TCPCertificatesTest, AnExpiredCertificateIsRefusedUntilItIsRenewed) {
  const absl::Time start = absl::Now();
  const absl::Duration validity = absl::Seconds(10);  // Enough to connect on a busy machine.
  const TlsEnvironment environment({{"localhost", "127.0.0.1"}, -absl::Hours(1), validity});
  environment.Set(Mode::kCertificates);
  auto server = Create(Server(kSecret));
  ASSERT_NE(server, nullptr);
  auto client = Create(Client(server->port(), kSecret));
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Set("key", "value").ok());
  const auto context = tls::Context::FromEnvironment();
  ASSERT_TRUE(context.ok()) << context.status();
  const auto connect = [&] {
    return ConnectToServer({"127.0.0.1", server->port(), kSecret, "127.0.0.1", *context},
                           Deadline(kTimeout));
  };
  EXPECT_TRUE(connect().ok());
  absl::SleepFor(start + validity + absl::Seconds(2) - absl::Now());
  // A new process sees it before it connects.
  EXPECT_THAT(CreateError(Client(server->port(), kSecret), ErrorKind::kArgument),
              HasSubstr("has expired"));
  // One that has read its certificate when that was valid sees that the server's is no longer.
  EXPECT_THAT(connect().status().message(), HasSubstr("expired"));
  EXPECT_EQ(*client->Get("key", kTimeout), "value");
  for (const char* name : {tls::kKeyFile, tls::kCertificateFile, tls::kAuthoritiesFile}) {
    std::filesystem::remove(environment.folder() + "/" + name);
  }
  ASSERT_TRUE(tls::NewCertificates(environment.folder(), {{"localhost", "127.0.0.1"}}).ok());
  const auto newcomer = Create(Client(server->port(), kSecret));
  ASSERT_NE(newcomer, nullptr);
  EXPECT_EQ(*newcomer->Get("key", kTimeout), "value");
  const absl::StatusOr<tls::Stream> renewed = connect();
  EXPECT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(*client->Get("key", kTimeout), "value");
}

// Of the certificates on both sides, the client's alone.
TEST(TCPCertificatesTest, AClientWhoseCertificateHasExpiredIsRefusedAndTheOthersGoOn) {
  const absl::Time start = absl::Now();
  const absl::Duration validity = absl::Seconds(10);  // Enough to read it on a busy machine.
  const TlsEnvironment environment;
  const TlsEnvironment expiring({{"localhost", "127.0.0.1"},
                                 -absl::Hours(1),
                                 validity,
                                 /*authority_outlives=*/absl::Hours(1)});
  environment.Trust(expiring);
  expiring.Trust(environment);
  environment.Set(Mode::kCertificates);
  const auto server = Create(Server(kSecret));
  ASSERT_NE(server, nullptr);
  const auto client = Create(Client(server->port(), kSecret));
  ASSERT_NE(client, nullptr);
  expiring.Set(Mode::kCertificates);
  const auto context = tls::Context::FromEnvironment();
  ASSERT_TRUE(context.ok()) << context.status();
  environment.Set(Mode::kCertificates);
  absl::SleepFor(start + validity + absl::Seconds(2) - absl::Now());
  const LogLines lines;
  const absl::Status refused =
      ConnectToServer({"127.0.0.1", server->port(), kSecret, "127.0.0.1", *context},
                      Deadline(kTimeout))
          .status();
  EXPECT_EQ(KindOf(refused), ErrorKind::kNetwork) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the other side does not accept the certificate"));
  EXPECT_THAT(refused.message(), HasSubstr("it has expired"));
  ASSERT_TRUE(Eventually([&] { return lines.Have("expired"); }));
  ASSERT_TRUE(client->Set("key", "value").ok());
  const auto newcomer = Create(Client(server->port(), kSecret));
  ASSERT_NE(newcomer, nullptr);
  EXPECT_EQ(*newcomer->Get("key", kTimeout), "value");
  const std::string text = lines.text();
  EXPECT_THAT(text, HasSubstr("refused 127.0.0.1:"));
  EXPECT_THAT(text, HasSubstr("'CN = syncline job' "));  // Not its authority's.
  EXPECT_THAT(text, HasSubstr("certificate has expired"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

// Other hosts reach it by a name, under which this process does not connect.
TEST(TCPCertificatesTest, AClonesServerIsThatOfItsProcessWhateverItsNameIs) {
  tls::CertificateRequest request;
  request.names = {"node1.example"};
  const TlsEnvironment environment(request);
  environment.Set(Mode::kCertificates);
  const auto server = Create(Server());
  EXPECT_THAT(CreateError(Client(server->port()), ErrorKind::kNetwork), HasSubstr("127.0.0.1"));
  auto clone = server->Clone();
  ASSERT_TRUE(clone.ok()) << clone.status();
  const auto clone_of_clone = dynamic_cast<TCPStore&>(**clone).Clone();
  ASSERT_TRUE(clone_of_clone.ok()) << clone_of_clone.status();
  ASSERT_TRUE((*clone_of_clone)->Set("key", "value").ok());
  EXPECT_EQ(*server->Get("key", kTimeout), "value");
}

TEST(TCPCertificatesTest, NeedNoSecret) {
  const TlsEnvironment environment, other;
  environment.Set(Mode::kCertificates);
  auto server = Create(Server());
  auto client = Create(Client(server->port()));
  ASSERT_TRUE(client->Set("key", "value").ok());
  other.Set(Mode::kCertificates);
  EXPECT_THAT(CreateError(Client(server->port()), ErrorKind::kNetwork), HasSubstr("certificate"));
  EXPECT_EQ(*client->Get("key", kTimeout), "value");
}

TEST(TCPCertificatesTest, ASettingThatIsWrongIsToldBeforeAnyoneConnects) {
  const TlsEnvironment environment;
  environment.Set(Mode::kCertificates);
  setenv("SYNCLINE_TLS_KEY", "/nowhere/key.pem", 1);
  EXPECT_THAT(CreateError(Server(), ErrorKind::kArgument), HasSubstr("'/nowhere/key.pem'"));
  EXPECT_THAT(CreateError(Client(1), ErrorKind::kArgument), HasSubstr("'/nowhere/key.pem'"));
  environment.Set(Mode::kSecret);
  unsetenv("SYNCLINE_SECRET_FILE");
  EXPECT_THAT(CreateError(Server(), ErrorKind::kArgument), HasSubstr("SYNCLINE_SECRET_FILE"));
}

}  // namespace
}  // namespace syncline::tcp_store
