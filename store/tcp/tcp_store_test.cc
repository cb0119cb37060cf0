#include "syncline/tcp_store.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/tcp/store.grpc.pb.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tcp_server.h"
#include "store/tcp/tcp_testing.h"
#include "syncline/interrupt.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using testing::HasSubstr;

// A port on which nobody listens and nobody else can for as long as this lives.
class DeafPort {
 public:
  DeafPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    number_ = ntohs(address.sin_port);
  }
  ~DeafPort() { close(fd_); }

  int number() const { return number_; }

 private:
  const int fd_;
  int number_ = 0;
};

TEST(TCPStoreTest, APortInUseIsAnErrorThatNamesItsOwner) {
  auto store = Create(Server());
  TCPStore::Options options = Server();
  options.port = store->port();
  const std::string message = CreateError(options, ErrorKind::kNetwork);
  EXPECT_THAT(message, HasSubstr(absl::StrCat("cannot listen on 127.0.0.1:", store->port(),
                                              ": address already in use by pid ", getpid(),
                                              "; pass port 0 to let the system choose")));
}

TEST(TCPStoreTest, AnAddressOfAnotherHostIsAnError) {
  TCPStore::Options options = Server();
  options.host = "192.0.2.1";  // RFC 5737: in documentation only.
  EXPECT_THAT(CreateError(options, ErrorKind::kNetwork),
              HasSubstr("192.0.2.1:0: this host does not have that address"));
}

TEST(TCPStoreTest, APortOutOfRangeIsAnArgumentError) {
  CreateError(Client(0), ErrorKind::kArgument);
  CreateError(Client(65536), ErrorKind::kArgument);
  TCPStore::Options options = Server();
  options.port = -1;
  CreateError(options, ErrorKind::kArgument);
}

TEST(TCPStoreTest, AServerListensOnItsHostOnly) {
  auto server = Start({});
  for (const char* host : {"127.0.0.1", "127.0.0.2"}) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto close_fd = absl::MakeCleanup([&] { close(fd); });
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server->port());
    inet_pton(AF_INET, host, &address.sin_addr);
    const int result = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
    EXPECT_EQ(result == 0, std::strcmp(host, "127.0.0.1") == 0) << host;
  }
}

TEST(TCPStoreTest, AServerThatCannotBeReachedIsAnErrorWithItsAddressAfterTheTimeout) {
  DeafPort port;
  TCPStore::Options options = Client(port.number());
  options.timeout = absl::Milliseconds(300);
  const absl::Time start = absl::Now();
  const std::string message = CreateError(options, ErrorKind::kNetwork);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
  EXPECT_THAT(message, HasSubstr(absl::StrCat("store tcp://127.0.0.1:", port.number(),
                                              ": no connection after 300ms")));
  EXPECT_THAT(message, HasSubstr("Connection refused"));
}

TEST(TCPStoreTest, AServerThatListensButIsSilentIsAnErrorAfterTheTimeout) {
  ServerProcess server;
  server.Signal(SIGSTOP);
  TCPStore::Options options = Client(server.port());
  options.timeout = absl::Milliseconds(300);
  EXPECT_THAT(CreateError(options, ErrorKind::kNetwork), HasSubstr("does not answer"));
}

TEST(TCPStoreTest, AClientFindsAServerThatStartsLater) {
  auto port = std::make_unique<DeafPort>();
  const int number = port->number();
  std::thread client([number] {
    auto store = Create(Client(number));
    EXPECT_TRUE(store != nullptr && store->Set("key", "value").ok());
  });
  port.reset();
  TCPStore::Options options = Server();
  options.port = number;
  auto server = Create(options);
  EXPECT_EQ(*server->Get("key", kTimeout), "value");
  client.join();
}

TEST(TCPStoreTest, AServersDeathFailsPendingAndLaterCallsSoon) {
  ServerProcess server;
  auto client = Create(Client(server.port()));
  absl::Notification waiting;
  absl::Status pending;
  absl::Time failed;
  std::thread waiter([&] {
    waiting.Notify();
    pending = client->Get("never", kTimeout).status();
    failed = absl::Now();
  });
  waiting.WaitForNotification();
  ASSERT_TRUE(client->Set("key", "value").ok());
  const absl::Time killed = absl::Now();
  server.Signal(SIGKILL);
  waiter.join();
  EXPECT_LT(failed - killed, kTimeout / 2);
  for (const absl::Status& status : {pending, client->Set("key", "value")}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(status.message(),
                HasSubstr(absl::StrCat("store tcp://127.0.0.1:", server.port(), ": key '")));
    EXPECT_THAT(status.message(), HasSubstr("the connection to the server is lost"));
  }
}

TEST(TCPStoreTest, AShutDownServerSaysSoAndIsDoneSoon) {
  auto server = Start({});
  auto client = Create(Client(server->port()));
  absl::Status pending;
  std::thread waiter([&] { pending = client->Get("never", kTimeout).status(); });
  ASSERT_TRUE(Eventually([&] { return server->NumWaits() == 1; }));
  const absl::Time start = absl::Now();
  server->Shutdown();
  EXPECT_LT(absl::Now() - start, kTimeout / 2);
  waiter.join();
  EXPECT_EQ(KindOf(pending), ErrorKind::kNetwork) << pending;
  EXPECT_THAT(pending.message(), HasSubstr("the server has shut down"));
}

TEST(TCPStoreTest, AStoppedServerDoesNotHoldUpAWaitWithATimeout) {
  ServerProcess server;
  auto client = Create(Client(server.port()));
  server.Signal(SIGSTOP);
  const absl::Time start = absl::Now();
  absl::Status status = client->Get("key", absl::Milliseconds(200)).status();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout) << status;
  EXPECT_THAT(status.message(), HasSubstr("key 'key': the server has not answered for 200ms"));
  server.Signal(SIGCONT);
  EXPECT_TRUE(client->Set("key", "value").ok());
}

TEST(TCPStoreTest, NoWaitOutlivesItsTimeoutOrItsClientOnTheServer) {
  auto server = Start({});
  auto client = Create(Client(server->port()));
  EXPECT_FALSE(client->Get("never", absl::Milliseconds(20)).ok());
  EXPECT_EQ(server->NumWaits(), 0);

  absl::StatusOr<tls::Stream> connection =
      ConnectToServer({"127.0.0.1", server->port(), ""}, Deadline(kTimeout));
  ASSERT_TRUE(connection.ok()) << connection.status();
  auto stub = wire::StoreService::NewStub(
      grpc::CreateInsecureChannelFromFd("store", connection->TakeSocket().release()));
  grpc::ClientContext context;
  auto stream = stub->Connect(&context);
  wire::ClientMessage request;
  request.mutable_get()->add_keys("never");
  stream->Write(request);
  ASSERT_TRUE(Eventually([&] { return server->NumWaits() == 1; }));
  context.TryCancel();  // As if its process had died.
  EXPECT_TRUE(Eventually([&] { return server->NumWaits() == 0; }));
  EXPECT_FALSE(stream->Finish().ok());
}

// The answer to the cancellation may come at any moment, that before the client looks included.
TEST(TCPStoreTest, WhatAClientLeavesBehindIsSetWhenItsConnectionEnds) {
  auto server = Start({});
  const auto watcher = Create(Client(server->port()));
  auto first = Create(Client(server->port()));
  auto second = Create(Client(server->port()));
  ASSERT_TRUE(first->SetOnDisconnect("gone", "of old").ok());
  ASSERT_TRUE(first->SetOnDisconnect("gone", "first").ok());
  auto part = std::make_unique<PrefixStore>("part", second);
  ASSERT_TRUE(part->SetOnDisconnect("gone", "second").ok());
  EXPECT_EQ(watcher->Keys("").value().size(), 0u);
  first = nullptr;
  EXPECT_EQ(watcher->Get("gone", absl::Seconds(60)).value_or(""), "first");
  second = nullptr;
  EXPECT_FALSE(watcher->Check({"part/gone"}).value());  // `part` has the connection open.
  part.reset();
  EXPECT_EQ(watcher->Get("part/gone", absl::Seconds(60)).value_or(""), "second");
}

// Each end wakes waits of the others, whose ends wake more.
TEST(TCPStoreTest, ManyConnectionsMayEndAtOnce) {
  auto server = Start({});
  const auto watcher = Create(Client(server->port()));
  constexpr int kClients = 16;
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      auto store = Create(Client(server->port()));
      EXPECT_TRUE(store->SetOnDisconnect(absl::StrCat("gone/", i), "").ok());
      EXPECT_TRUE(store->Add("ready", 1).ok());
      const std::string next = absl::StrCat("gone/", (i + 1) % kClients);
      store->Wait({next}, absl::Milliseconds(i % 4)).IgnoreError();
    });
  }
  for (std::thread& client : clients) client.join();
  std::vector<std::string> keys;
  for (int i = 0; i < kClients; ++i) keys.push_back(absl::StrCat("gone/", i));
  EXPECT_TRUE(watcher->Wait(keys, absl::Seconds(60)).ok());
}

TEST(TCPStoreTest, OnlyTheServersProcessHostsTheStore) {
  const auto server = Create(Server());
  const auto client = Create(Client(server->port()));
  EXPECT_TRUE(PrefixStore("a", server).is_hosted_here());
  EXPECT_FALSE(PrefixStore("a", client).is_hosted_here());
}

TEST(TCPStoreTest, ATenantKeepsTheServerThatItShares) {
  auto first = Create(Server());
  TCPStore::Options options = Server();
  options.port = first->port();
  EXPECT_THAT(CreateError(options, ErrorKind::kNetwork), HasSubstr("in use"));
  options.multi_tenant = true;
  std::vector<std::shared_ptr<TCPStore>> tenants(8);
  std::vector<std::thread> threads;
  for (auto& tenant : tenants) threads.emplace_back([&] { tenant = Create(options); });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(first->Set("key", "value").ok());
  const auto clone = *tenants[0]->Clone();
  first.reset();
  for (auto& tenant : tenants) {
    EXPECT_TRUE(tenant->is_hosted_here());
    EXPECT_EQ(*tenant->Get("key", kTimeout), "value");
    tenant.reset();
  }
  EXPECT_EQ(*clone->Get("key", kTimeout), "value");
}

TEST(TCPStoreTest, TenantsThatComeAfterTheLastHasGoneGetANewServer) {
  TCPStore::Options options = Server();
  options.multi_tenant = true;
  auto store = Create(options);
  options.port = store->port();
  ASSERT_TRUE(store->Set("key", "value").ok());
  store.reset();
  store = Create(options);
  EXPECT_FALSE(*store->Check(Strings{"key"}));
}

TEST(TCPStoreTest, AClientSeesThatItsServerHasEndedWithoutAsking) {
  auto server = std::make_unique<ServerProcess>();
  const auto client = Create(Client(server->port()));
  const PrefixStore prefix("a", client);
  EXPECT_FALSE(prefix.is_lost());
  server->Signal(SIGSTOP);
  EXPECT_FALSE(prefix.is_lost());
  server.reset();
  EXPECT_TRUE(Eventually([&] { return prefix.is_lost(); }));
  EXPECT_EQ(KindOf(prefix.underlying_store()->Set("key", "")), ErrorKind::kNetwork);
}

TEST(TCPStoreTest, AnInterruptedWaitIsNoTimeoutWhateverTheServerAnswers) {
  auto store = Create(Server());
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        const auto check = [] { return InterruptedError("interrupted"); };
        const InterruptScope scope(check);
        const absl::Status status = store->Wait(std::vector<std::string>{"never"}, kTimeout);
        EXPECT_TRUE(IsInterrupted(status)) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TCPStoreTest, ALargeValueIsCarriedAndATooLargeOneRefused) {
  auto server = Create(Server());
  auto client = Create(Client(server->port()));
  const std::string large(size_t{40} << 20, 'x');
  ASSERT_TRUE(client->Set("large", large).ok());
  EXPECT_TRUE(*server->Get("large", kTimeout) == large);

  absl::Status status = client->Set("larger", std::string(size_t{64} << 20, 'x'));
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(status.message(), HasSubstr("key 'larger': the request has 671"));

  ASSERT_TRUE(client->Append("large", large).ok());
  status = client->Get("large", kTimeout).status();
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(status.message(), HasSubstr("the answer has 838"));
  EXPECT_TRUE(client->Set("large", "small").ok());
  EXPECT_EQ(*server->Get("large", kTimeout), "small");
}

}  // namespace
}  // namespace syncline::tcp_store

int main(int argc, char** argv) { return syncline::tcp_store::RunTestsOrServe(argc, argv); }
