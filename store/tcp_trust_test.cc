// A tcp store's server and clients among strangers: who is let in, and what is not believed.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/handshake.h"
#include "store/store.grpc.pb.h"
#include "store/tcp_server.h"
#include "store/tcp_store.h"
#include "store/tcp_testing.h"

namespace syncline {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(TCPTrustTest, WhoKnowsTheSecretIsLetIn) {
  auto server = Create(Server("sesame"));
  auto client = Create(Client(server->port(), "sesame"));
  ASSERT_TRUE(client->Set("key", "value").ok());
  EXPECT_EQ(*server->Get("key", kPatience), "value");
}

TEST(TCPTrustTest, AWrongOrMissingSecretIsRefusedAtOnce) {
  auto server = Create(Server("sesame"));
  for (const std::string secret : {"barley", ""}) {
    const std::string message = CreateError(Client(server->port(), secret), ErrorKind::kNetwork);
    EXPECT_THAT(message, HasSubstr(absl::StrCat("tcp://127.0.0.1:", server->port())));
    EXPECT_THAT(message, HasSubstr("the job secret does not match"));
    EXPECT_THAT(message, HasSubstr("SYNCLINE_SECRET_FILE"));
    EXPECT_THAT(message, Not(HasSubstr("sesame")));
  }
}

TEST(TCPTrustTest, AClientWithASecretDoesNotTrustAServerWithout) {
  auto server = Create(Server());
  EXPECT_THAT(CreateError(Client(server->port(), "sesame"), ErrorKind::kNetwork),
              HasSubstr("it has no secret, this process has one"));
}

// A server that asks for proofs but knows no secret; it may know what it was told before.
class Impostor final : public wire::StoreService::Service {
 public:
  grpc::Status Connect(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<wire::ServerMessage, wire::ClientMessage>* stream) override {
    wire::ServerMessage message;
    message.mutable_challenge()->set_nonce(NewNonce());
    stream->Write(message);
    wire::ClientMessage hello;
    stream->Read(&hello);
    message.mutable_welcome()->set_proof(hello.hello().proof());
    stream->Write(message);
    trusted = stream->Read(&hello);
    return grpc::Status::OK;
  }

  bool trusted = false;
};

TEST(TCPTrustTest, AServerThatSendsBackTheClientsProofIsNotTrusted) {
  Impostor impostor;
  int port = 0;
  auto server = grpc::ServerBuilder()
                    .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                    .RegisterService(&impostor)
                    .BuildAndStart();
  EXPECT_THAT(CreateError(Client(port, "sesame"), ErrorKind::kNetwork),
              HasSubstr("it did not prove that it knows the secret"));
  server->Shutdown();
  EXPECT_FALSE(impostor.trusted);
}

TEST(TCPTrustTest, NothingIsExecutedBeforeTheProof) {
  auto server = Create(Server("sesame"));
  auto stub = wire::StoreService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  auto stream = stub->Connect(&context);
  wire::ClientMessage request;
  request.mutable_set()->add_keys("key");
  request.mutable_set()->add_values("value");
  stream->Write(request);
  wire::ServerMessage reply;
  while (stream->Read(&reply)) EXPECT_TRUE(reply.has_challenge());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_FALSE(*server->Check(Strings{"key"}));
}

TEST(TCPTrustTest, AClientThatProvesNothingIsPutOut) {
  TCPServer::Options options;
  options.time_to_prove = absl::Milliseconds(100);
  auto server = Start(options);
  auto stub = wire::StoreService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", server->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
  auto stream = stub->Connect(&context);
  wire::ServerMessage reply;
  while (stream->Read(&reply)) EXPECT_TRUE(reply.has_challenge());
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));

  auto client = Create(Client(server->port()));  // It has proved itself, and may then be silent.
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_TRUE(client->Set("key", "value").ok());
}

// A client in plain HTTP/2, whose window has no room for even the first byte of an answer.
class DeafClient {
 public:
  explicit DeafClient(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval patience = {absl::ToInt64Seconds(kPatience), 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string path = "/syncline.wire.StoreService/Connect";
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    SendFrame(kSettings, 0, 0, Bytes({0, 4, 0, 0, 0, 0}));  // SETTINGS_INITIAL_WINDOW_SIZE = 0
    SendFrame(kHeaders, kEndHeaders, 1,
              absl::StrCat(Bytes({0x83, 0x86}),    // :method POST, :scheme http
                           Bytes({0x01, 1}), "x",  // :authority
                           Bytes({0x04, static_cast<int>(path.size())}), path,
                           Bytes({0x0f, 0x10, 16}), "application/grpc",  // content-type
                           Bytes({0x00, 2}), "te", Bytes({8}), "trailers"));
  }
  ~DeafClient() { close(fd_); }

  void SendMessage(const wire::ClientMessage& message, int flags) {
    const std::string body = message.SerializeAsString();
    SendFrame(kData, flags, 1,
              absl::StrCat(Bytes({0, 0, 0, 0, static_cast<int>(body.size())}), body));
  }

  // Whether the server ends the connection before patience does.
  bool AwaitEnd() {
    char bytes[1024];
    ssize_t n = 0;
    while ((n = read(fd_, bytes, sizeof(bytes))) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
  }

  static constexpr int kEndStream = 1;

 private:
  static constexpr int kData = 0, kHeaders = 1, kSettings = 4, kEndHeaders = 4;

  static std::string Bytes(std::initializer_list<int> bytes) {
    return std::string(bytes.begin(), bytes.end());
  }

  void Send(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t(bytes.size()));
  }

  void SendFrame(int type, int flags, int stream, const std::string& body) {
    Send(absl::StrCat(Bytes({0, 0, static_cast<int>(body.size()), type, flags, 0, 0, 0, stream}),
                      body));
  }

  const int fd_;
};

TEST(TCPTrustTest, AClientThatProvesNothingAndReadsNothingIsPutOut) {
  TCPServer::Options options;
  options.time_to_prove = absl::Milliseconds(200);
  auto server = Start(options);
  DeafClient client(server->port());
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST(TCPTrustTest, AClientThatIsRefusedAndReadsNothingIsPutOut) {
  TCPServer::Options options;
  options.secret = "sesame";
  options.time_to_prove = absl::Seconds(1);  // As long as a connection may be idle, too.
  auto server = Start(options);
  DeafClient client(server->port());
  wire::ClientMessage message;
  message.mutable_hello();
  client.SendMessage(message, 0);
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_TRUE(Eventually([&] { return server->NumClients() == 0; }));
}

TEST(TCPTrustTest, AClientThatLeavesAndReadsNothingIsPutOut) {
  auto server = Start({});
  DeafClient client(server->port());
  wire::ClientMessage message;
  message.mutable_hello();
  client.SendMessage(message, 0);
  message.mutable_get()->add_keys("never");
  client.SendMessage(message, 0);
  ASSERT_TRUE(Eventually([&] { return server->NumWaits() == 1; }));  // It has proved itself.
  client.SendMessage(message, DeafClient::kEndStream);
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
    answer.mutable_challenge();
    stream->Write(answer);
    wire::ClientMessage question;
    stream->Read(&question);
    answer.mutable_welcome();
    stream->Write(answer);
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
  int port = 0;
  auto server = grpc::ServerBuilder()
                    .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                    .RegisterService(&service)
                    .BuildAndStart();
  auto client = Create(Client(port));
  for (const absl::Status& status : {client->MultiGet(Strings{"a", "b"}, kPatience).status(),
                                     client->Get("a", kPatience).status()}) {
    EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
    EXPECT_THAT(status.message(), HasSubstr("the server's answer is not to the question"));
  }
  EXPECT_TRUE(client->MultiGet({}, kPatience).ok());
  client.reset();
  server->Shutdown();
}

}  // namespace
}  // namespace syncline
