// A tcp store's server and clients among strangers: who is let in, and what is not believed.
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/testing/log_lines.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/common/listen_address.h"
#include "store/tcp/handshake.h"
#include "store/tcp/store.grpc.pb.h"
#include "store/tcp/tcp_acceptor.h"
#include "store/tcp/tcp_connect.h"
#include "store/tcp/tcp_server.h"
#include "store/tcp/tcp_testing.h"
#include "syncline/deadline.h"
#include "syncline/log.h"
#include "syncline/status.h"
#include "syncline/tcp_store.h"

namespace syncline::tcp_store {
namespace {

using store::Listen;
using store::Listener;

using testing::HasSubstr;
using testing::Not;

TCPServer::Options SecretOf(const std::string& secret) {
  TCPServer::Options options;
  options.secret = secret;
  return options;
}

TEST(TCPTrustTest, WhoKnowsTheSecretIsLetIn) {
  auto server = Create(Server("sesame"));
  auto client = Create(Client(server->port(), "sesame"));
  ASSERT_TRUE(client->Set("key", "value").ok());
  EXPECT_EQ(*server->Get("key", kTimeout), "value");
}

TEST(TCPTrustTest, AWrongOrMissingSecretIsRefusedAtOnce) {
  auto server = Create(Server("sesame"));
  for (const std::string secret : {"barley", ""}) {
    const std::string message = CreateError(Client(server->port(), secret), ErrorKind::kNetwork);
    EXPECT_TRUE(IsRefusal(TCPStore::Create(Client(server->port(), secret)).status()));
    EXPECT_THAT(message, HasSubstr(absl::StrCat("tcp://127.0.0.1:", server->port())));
    EXPECT_THAT(message, HasSubstr("the job secret does not match"));
    EXPECT_THAT(message, HasSubstr("SYNCLINE_SECRET_FILE"));
    EXPECT_THAT(message, Not(HasSubstr("sesame")));
  }
}

TEST(TCPTrustTest, AServerThatDoesNotAnswerIsNoRefusal) {
  const absl::StatusOr<Listener> listener = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  TCPStore::Options options = Client(listener->port);
  options.connect_timeout = absl::Milliseconds(100);
  const absl::Status error = TCPStore::Create(options).status();
  EXPECT_EQ(KindOf(error), ErrorKind::kNetwork) << error;
  EXPECT_FALSE(IsRefusal(error)) << error;
}

TEST(TCPTrustTest, AClientWithASecretDoesNotTrustAServerWithout) {
  auto server = Create(Server());
  EXPECT_THAT(CreateError(Client(server->port(), "sesame"), ErrorKind::kNetwork),
              HasSubstr("it has no secret, this process has one"));
}

TEST(TCPTrustTest, AServerWarnsOfASecretThatIsShort) {
  const LogLines lines;
  Start(SecretOf("abcdefghijklmnop"));
  Start(SecretOf("q"));
  EXPECT_TRUE(Eventually([&] { return lines.Have("the job's secret has only 1 bytes"); }));
  EXPECT_FALSE(lines.Have("has only 16 bytes"));
}

// Serves one client in a thread of its own.
class OneTimeServer {
 public:
  // `serve` has the client's connection, and returns what comes of it.
  explicit OneTimeServer(const std::function<bool(int connection)>& serve) {
    absl::StatusOr<Listener> listener = Listen("127.0.0.1", 0);
    EXPECT_TRUE(listener.ok()) << listener.status();
    port_ = listener->port;
    thread_ = std::thread([this, serve, listener = *std::move(listener)] {
      absl::StatusOr<base::UniqueFd> connection =
          base::Accept(listener.sockets[0].get(), Deadline(kTimeout));
      EXPECT_TRUE(connection.ok()) << connection.status();
      if (connection.ok()) result_ = serve(connection->get());
    });
  }

  int port() const { return port_; }
  bool AwaitResult() {
    thread_.join();
    return result_;
  }

 private:
  int port_ = 0;
  bool result_ = false;
  std::thread thread_;
};

std::string Receive(int connection, size_t size) {
  std::string bytes(size, '\0');
  EXPECT_TRUE(base::ReceiveAll(connection, &bytes[0], size, Deadline(kTimeout)).ok());
  return bytes;
}

bool Send(int connection, const std::string& bytes) {
  return base::SendAll(connection, bytes.data(), bytes.size(), Deadline(kTimeout)).ok();
}

// Whether the other end closes the connection without having sent anything.
bool EndsInSilence(int connection) {
  char byte = 0;
  if (!base::WaitReadable(connection, Deadline(kTimeout)).ok()) return false;
  const ssize_t size = recv(connection, &byte, 1, 0);
  return size == 0 || (size < 0 && errno == ECONNRESET);
}

// It asks for proofs but knows no secret; it may know what clients sent it before.
TEST(TCPTrustTest, AServerThatSendsBackTheClientsProofIsNotTrusted) {
  OneTimeServer impostor([](int connection) {
    const std::string hello = Receive(connection, kHelloBytes);
    const std::string nonce = hello.substr(kHandshakeMagic.size(), kNonceBytes);
    const std::string tag = hello.substr(kHandshakeMagic.size() + kNonceBytes);
    EXPECT_TRUE(Send(connection, absl::StrCat(kHandshakeMagic, "R", nonce, tag)));
    return !EndsInSilence(connection);
  });
  EXPECT_THAT(CreateError(Client(impostor.port(), "sesame"), ErrorKind::kNetwork),
              HasSubstr("it did not prove that it knows the secret"));
  const bool trusted = impostor.AwaitResult();
  EXPECT_FALSE(trusted);
}

TEST(TCPTrustTest, AServiceOfAnotherKindIsRecognised) {
  OneTimeServer other([](int connection) { return Send(connection, "220 smtp ready\r\n"); });
  EXPECT_THAT(CreateError(Client(other.port(), "sesame"), ErrorKind::kNetwork),
              HasSubstr("what listens there is not a tcp store; check host and port"));
  EXPECT_TRUE(other.AwaitResult());
}

// A connection to a server on this host.
base::UniqueFd ConnectTo(int port) {
  base::SocketAddress address;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(address.get());
  v4->sin_family = AF_INET;
  v4->sin_port = htons(static_cast<uint16_t>(port));
  v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.length = sizeof(*v4);
  absl::StatusOr<base::UniqueFd> connected = Connect(address, SOCK_STREAM, Deadline(kTimeout));
  EXPECT_TRUE(connected.ok()) << connected.status();
  return connected.ok() ? *std::move(connected) : base::UniqueFd();
}

// HTTP/2, as far as gRPC needs it.
std::string Bytes(std::initializer_list<int> bytes) {
  return std::string(bytes.begin(), bytes.end());
}

std::string Frame(int type, int flags, int stream, const std::string& body) {
  return absl::StrCat(Bytes({0, 0, static_cast<int>(body.size()), type, flags, 0, 0, 0, stream}),
                      body);
}

constexpr int kData = 0, kHeaders = 1, kSettings = 4, kEndHeaders = 4, kEndStream = 1;

// What opens a stream whose window has room for `window` bytes of answers.
std::string OpeningOfStream(int window) {
  const std::string path = "/syncline.wire.StoreService/Connect";
  return absl::StrCat(
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
      // SETTINGS_INITIAL_WINDOW_SIZE
      Frame(kSettings, 0, 0, Bytes({0, 4, 0, 0, window >> 8, window & 255})),
      Frame(kHeaders, kEndHeaders, 1,
            absl::StrCat(Bytes({0x83, 0x86}),    // :method POST, :scheme http
                         Bytes({0x01, 1}), "x",  // :authority
                         Bytes({0x04, static_cast<int>(path.size())}), path,
                         Bytes({0x0f, 0x10, 16}), "application/grpc",  // content-type
                         Bytes({0x00, 2}), "te", Bytes({8}), "trailers")));
}

std::string MessageFrame(const wire::ClientMessage& message, int flags) {
  const std::string body = message.SerializeAsString();
  return Frame(kData, flags, 1,
               absl::StrCat(Bytes({0, 0, 0, 0, static_cast<int>(body.size())}), body));
}

std::string RequestToSet(const std::string& key) {
  wire::ClientMessage request;
  request.mutable_set()->add_keys(key);
  request.mutable_set()->add_values("value");
  return absl::StrCat(OpeningOfStream(1024), MessageFrame(request, 0));
}

// Reads until the server ends the connection; whether it did before kTimeout had passed.
bool AwaitEnd(int connection) {
  const Deadline deadline(kTimeout);
  char bytes[1024];
  while (base::WaitReadable(connection, deadline).ok()) {
    const ssize_t size = recv(connection, bytes, sizeof(bytes), 0);
    if (size == 0 || (size < 0 && errno == ECONNRESET)) return true;
  }
  return false;
}

TEST(TCPTrustTest, NothingIsExecutedBeforeTheProof) {
  auto server = Create(Server("sesame"));
  const base::UniqueFd at_once = ConnectTo(server->port());
  Send(at_once.get(), RequestToSet("key"));
  EXPECT_TRUE(AwaitEnd(at_once.get()));

  const base::UniqueFd with_another_secret = ConnectTo(server->port());
  Send(with_another_secret.get(), ClientHandshake("barley").Hello() + RequestToSet("key"));
  EXPECT_TRUE(AwaitEnd(with_another_secret.get()));

  const base::UniqueFd without_response = ConnectTo(server->port());
  Send(without_response.get(), ClientHandshake("sesame").Hello() + RequestToSet("key"));
  EXPECT_TRUE(AwaitEnd(without_response.get()));
  EXPECT_FALSE(*server->Check(Strings{"key"}));
}

// What was overheard of another client's connection.
TEST(TCPTrustTest, AProofServesOnce) {
  auto server = Create(Server("sesame"));
  const ClientHandshake handshake("sesame");
  std::string response;
  for (const bool replayed : {false, true}) {
    const base::UniqueFd connection = ConnectTo(server->port());
    Send(connection.get(), handshake.Hello());
    const std::string challenge = Receive(connection.get(), kChallengeBytes);
    if (!replayed) {
      const absl::StatusOr<std::string> fresh = handshake.Respond(challenge);
      ASSERT_TRUE(fresh.ok()) << fresh.status();
      response = *fresh;
    }
    const std::string key = replayed ? "replayed" : "fresh";
    Send(connection.get(), response + RequestToSet(key));
    if (replayed) {
      EXPECT_TRUE(AwaitEnd(connection.get()));
      EXPECT_FALSE(*server->Check(Strings{key}));
    } else {
      EXPECT_TRUE(server->Wait(Strings{key}, kTimeout).ok());
    }
  }
}

TEST(TCPTrustTest, AClientThatProvesNothingIsPutOut) {
  TCPServer::Options options;
  options.secret = "sesame";
  options.time_to_prove = absl::Seconds(1);
  auto server = Start(options);
  const base::UniqueFd silent = ConnectTo(server->port());
  EXPECT_TRUE(AwaitEnd(silent.get()));
  const base::UniqueFd half_way = ConnectTo(server->port());
  Send(half_way.get(), ClientHandshake("sesame").Hello());
  EXPECT_TRUE(AwaitEnd(half_way.get()));
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));

  // It has proved itself, and may then be silent.
  auto client = Create(Client(server->port(), "sesame"));
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_TRUE(client->Set("key", "value").ok());
}

TEST(TCPTrustTest, WithoutASecretAClientThatDoesNotSayHelloIsPutOut) {
  TCPServer::Options options;
  options.time_to_prove = absl::Seconds(1);
  auto server = Start(options);
  const base::UniqueFd silent = ConnectTo(server->port());
  EXPECT_TRUE(AwaitEnd(silent.get()));
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));

  auto client = Create(Client(server->port()));
  absl::SleepFor(absl::Milliseconds(1500));
  EXPECT_TRUE(client->Set("key", "value").ok());
}

// A client that has said hello to a server without a secret, and has no room for even the first
// byte of an answer.
base::UniqueFd ConnectDeafly(int port) {
  absl::StatusOr<tls::Stream> connection =
      ConnectToServer({"127.0.0.1", port, ""}, Deadline(kTimeout));
  EXPECT_TRUE(connection.ok()) << connection.status();
  Send(connection->fd(), OpeningOfStream(0));
  return connection->TakeSocket();
}

TEST(TCPTrustTest, AClientThatProvesNothingAndReadsNothingIsPutOut) {
  TCPServer::Options options;
  options.secret = "sesame";
  options.time_to_prove = absl::Milliseconds(200);
  auto server = Start(options);
  const base::UniqueFd client = ConnectTo(server->port());
  Send(client.get(), OpeningOfStream(0));
  EXPECT_TRUE(AwaitEnd(client.get()));
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST(TCPTrustTest, AClientThatIsRefusedAndReadsNothingIsPutOut) {
  TCPServer::Options options;
  options.secret = "sesame";
  options.time_to_prove = absl::Seconds(1);
  auto server = Start(options);
  const base::UniqueFd client = ConnectTo(server->port());
  Send(client.get(), ClientHandshake("").Hello());
  EXPECT_TRUE(AwaitEnd(client.get()));
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST(TCPTrustTest, AClientThatOpensNoStreamIsPutOut) {
  TCPServer::Options options;
  options.time_to_prove = absl::Milliseconds(200);  // As long as a connection may be idle, too.
  auto server = Start(options);
  absl::StatusOr<tls::Stream> client =
      ConnectToServer({"127.0.0.1", server->port(), ""}, Deadline(kTimeout));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE(AwaitEnd(client->fd()));
}

TEST(TCPTrustTest, AClientThatLeavesAndReadsNothingIsPutOut) {
  auto server = Start({});
  const base::UniqueFd client = ConnectDeafly(server->port());
  wire::ClientMessage message;
  message.mutable_get()->add_keys("never");
  Send(client.get(), MessageFrame(message, 0));
  ASSERT_TRUE(Eventually([&] { return server->NumWaits() == 1; }));
  Send(client.get(), MessageFrame(message, kEndStream));
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
  EXPECT_EQ(server->NumWaits(), 0);
}

// Answers whatever it is asked with no values.
class EmptyHanded final : public wire::StoreService::Service {
 public:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<wire::ServerMessage, wire::ClientMessage>* stream) override {
    wire::ServerMessage answer;
    wire::ClientMessage question;
    while (stream->Read(&question)) {
      answer.set_id(question.id());
      answer.mutable_values();
      stream->Write(answer);
    }
    return grpc::Status::OK;
  }
};

TEST(TCPTrustTest, AnAnswerWithAnotherNumberOfValuesThanKeysIsAnError) {
  EmptyHanded service;
  auto server = grpc::ServerBuilder().RegisterService(&service).BuildAndStart();
  absl::StatusOr<Listener> listener = Listen("127.0.0.1", 0);
  ASSERT_TRUE(listener.ok()) << listener.status();
  const int port = listener->port;
  auto acceptor = TCPAcceptor::Start(
      *std::move(listener), {"", nullptr, kTimeout, "empty-handed"}, [&](tls::Stream connection) {
        grpc::AddInsecureChannelFromFd(server.get(), connection.TakeSocket().release());
      });
  ASSERT_TRUE(acceptor.ok()) << acceptor.status();
  auto client = Create(Client(port));
  for (const absl::Status& status : {client->MultiGet(Strings{"a", "b"}, kTimeout).status(),
                                     client->Get("a", kTimeout).status()}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(status.message(), HasSubstr("the server's answer is not to the question"));
  }
  EXPECT_TRUE(client->MultiGet({}, kTimeout).ok());
  client.reset();
  (*acceptor)->Shutdown();
  server->Shutdown();
}

}  // namespace
}  // namespace syncline::tcp_store
