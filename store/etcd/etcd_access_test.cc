// Access to an etcd store: the credentials that it takes, and the errors without them.
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "etcd/etcdserver/etcdserverpb/rpc.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/etcd/etcd_client.h"
#include "store/etcd/etcd_testing.h"
#include "syncline/deadline.h"
#include "syncline/etcd_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

using ::testing::HasSubstr;
using Strings = std::vector<std::string>;

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr absl::Duration kShort = absl::Milliseconds(300);

EtcdStore::Options At(const std::string& endpoints, absl::Duration timeout = kTimeout) {
  EtcdStore::Options options;
  options.etcd.endpoints = endpoints;
  options.timeout = timeout;
  return options;
}

EtcdStore::Options As(const EtcdServer& server, const std::string& user,
                      const std::string& password) {
  EtcdStore::Options options = At(server.endpoint());
  options.etcd.user = user;
  options.etcd.password = password;
  return options;
}

std::shared_ptr<EtcdStore> Open(const EtcdStore::Options& options) {
  auto store = EtcdStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

// The message of the error, which must be of `kind` and come within `limit`.
std::string OpenError(const EtcdStore::Options& options, ErrorKind kind,
                      absl::Duration limit = absl::Seconds(10)) {
  const Deadline deadline(limit);
  const absl::Status status = EtcdStore::Create(options).status();
  EXPECT_FALSE(deadline.Expired());
  EXPECT_FALSE(status.ok());
  if (status.ok()) return "";
  EXPECT_EQ(KindOf(status), kind) << status;
  return std::string(status.message());
}

TEST(EtcdEndpointsTest, ThoseThatAreNoAddressesAreRefused) {
  for (const char* endpoints : {"", "host", "host:", ":2379", "host:x", "host:0", "host:65536",
                                "one:2379,two", "one:2379,", "http://host:2379"}) {
    EXPECT_THAT(OpenError(At(endpoints), ErrorKind::kArgument),
                HasSubstr(absl::StrCat("not '", endpoints, "'")));
  }
}

TEST(EtcdEndpointsTest, WhereNobodyListensTheErrorComesInTimeAndSaysWhere) {
  const LossyProxy nobody(1);
  const std::string message = OpenError(At(nobody.endpoint(), kShort), ErrorKind::kNetwork);
  EXPECT_THAT(message, HasSubstr(absl::StrCat("store etcd://", nobody.endpoint(), "/syncline: ")));
  EXPECT_THAT(message, HasSubstr("no answer after 300ms ("));
}

TEST(EtcdEndpointsTest, ADeadOneIsPassedOver) {
  const EtcdServer server;
  LossyProxy dead(server.port());
  dead.Set(LossyProxy::Mode::kRefuse);
  auto store = Open(At(absl::StrCat(dead.endpoint(), ", ", server.endpoint())));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Set("key", "value").ok());
  EXPECT_EQ(store->address(), dead.endpoint());
}

TEST(EtcdEndpointsTest, AServerThatIsStoppedIsATimeout) {
  EtcdServer server;
  ASSERT_NE(Open(At(server.endpoint())), nullptr);
  server.Pause();
  EXPECT_THAT(OpenError(At(server.endpoint(), kShort), ErrorKind::kTimeout),
              HasSubstr("no server has answered for 300ms"));
  server.Resume();
}

// The call must end soon after the interrupt, long before its own time is up.
template <typename Call>
void ExpectInterrupted(Call call) {
  const auto check = [] { return InterruptedError("interrupted by the test"); };
  const InterruptScope scope(check);
  const Deadline deadline(kTimeout / 2);
  const absl::Status status = call();
  EXPECT_FALSE(deadline.Expired());
  EXPECT_TRUE(IsInterrupted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("interrupted by the test"));
}

TEST(EtcdInterruptTest, AnInterruptEndsTheSearchForAServerWhereNobodyListens) {
  LossyProxy nobody(1);
  nobody.Set(LossyProxy::Mode::kRefuse);
  ExpectInterrupted([&] { return EtcdStore::Create(At(nobody.endpoint())).status(); });
}

TEST(EtcdInterruptTest, AnInterruptEndsCallsOfAServerThatIsSilent) {
  EtcdServer server;
  auto store = Open(At(server.endpoint()));
  ASSERT_NE(store, nullptr);
  server.Pause();
  ExpectInterrupted([&] { return EtcdStore::Create(At(server.endpoint())).status(); });
  ExpectInterrupted([&] { return store->Set("key", "value"); });
  ExpectInterrupted([&] { return store->Get("key", kTimeout).status(); });
  ExpectInterrupted([&] { return store->Add("n", 1).status(); });
  server.Resume();
  // Of another key: the change that was interrupted may take effect until the server's time limit.
  EXPECT_TRUE(store->Set("another key", "later").ok());
  EXPECT_EQ(store->Get("another key", kTimeout).value_or(""), "later");
}

class EtcdTlsTest : public ::testing::Test {
 protected:
  EtcdStore::Options Trusted(absl::Duration timeout = kTimeout) const {
    EtcdStore::Options options = At(server_.endpoint(), timeout);
    const TestCertificate own = authority_.Sign("client");
    options.etcd.ca_cert = authority_.ca_cert();
    options.etcd.cert = own.cert;
    options.etcd.key = own.key;
    return options;
  }

  const TestAuthority authority_;
  const EtcdServer server_{authority_};
};

TEST_F(EtcdTlsTest, WhoShowsACertificateOfTheAuthorityIsServed) {
  auto store = Open(Trusted());
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Set("key", "value").ok());
  EXPECT_EQ(store->Get("key", kTimeout).value(), "value");
}

TEST_F(EtcdTlsTest, AServerOfAnotherAuthorityIsNotTrustedAndThatIsSaidAtOnce) {
  EtcdStore::Options options = Trusted();
  const TestAuthority another;
  options.etcd.ca_cert = another.ca_cert();
  EXPECT_THAT(OpenError(options, ErrorKind::kNetwork),
              HasSubstr("one end does not trust the other ("));
}

TEST_F(EtcdTlsTest, WhoShowsNoCertificateIsToldInTime) {
  EtcdStore::Options options = Trusted(absl::Seconds(1));
  options.etcd.cert = options.etcd.key = "";
  EXPECT_THAT(OpenError(options, ErrorKind::kNetwork), HasSubstr("or a client's certificate"));
}

TEST_F(EtcdTlsTest, WhoDoesNotSpeakTlsIsToldInTime) {
  EXPECT_THAT(OpenError(At(server_.endpoint(), absl::Seconds(1)), ErrorKind::kNetwork),
              HasSubstr("expects TLS"));
}

TEST_F(EtcdTlsTest, AFileThatIsMissingOrNoCertificateIsNamed) {
  EtcdStore::Options missing = Trusted();
  missing.etcd.ca_cert = "/nowhere/ca.pem";
  EXPECT_THAT(OpenError(missing, ErrorKind::kArgument),
              HasSubstr("'/nowhere/ca.pem': No such file"));
  EtcdStore::Options half = Trusted();
  half.etcd.key = "";
  EXPECT_THAT(OpenError(half, ErrorKind::kArgument), HasSubstr("needs its key too"));
  EtcdStore::Options wrong = Trusted();
  wrong.etcd.cert = NewTestFolder() + "/text";
  std::ofstream(wrong.etcd.cert) << "not a certificate";
  EXPECT_THAT(OpenError(wrong, ErrorKind::kArgument), HasSubstr("is not a PEM file"));
}

class EtcdUserTest : public ::testing::Test {
 protected:
  EtcdUserTest() { server_.EnableAuth("/syncline"); }

  EtcdServer server_;
};

TEST_F(EtcdUserTest, AUserWithTheRightPasswordIsServed) {
  auto store = Open(As(server_, "worker", "worker"));
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Add("n", 1).value(), 1);
  EXPECT_TRUE(store->Set("key", "value").ok());
  EXPECT_EQ(store->Get("key", kTimeout).value(), "value");
  EXPECT_EQ(store->Keys("").value(), (Strings{"key", "n"}));
}

TEST_F(EtcdUserTest, AWrongPasswordIsToldAtOnce) {
  EXPECT_THAT(OpenError(As(server_, "worker", "guess"), ErrorKind::kNetwork),
              HasSubstr("etcd does not accept user 'worker'"));
  EXPECT_THAT(OpenError(As(server_, "nobody", "guess"), ErrorKind::kNetwork),
              HasSubstr("etcd does not accept user 'nobody'"));
}

TEST_F(EtcdUserTest, WhoNamesNoUserIsToldAtOnce) {
  EXPECT_THAT(OpenError(As(server_, "", ""), ErrorKind::kNetwork),
              HasSubstr("give user and password"));
  EXPECT_THAT(OpenError(As(server_, "", "worker"), ErrorKind::kArgument),
              HasSubstr("needs the user's name too"));
}

TEST_F(EtcdUserTest, AUserWithoutTheRightsIsToldAtOnce) {
  EXPECT_THAT(OpenError(As(server_, "stranger", "stranger"), ErrorKind::kStore),
              HasSubstr("user 'stranger' may not use these keys"));
  EtcdStore::Options elsewhere = As(server_, "worker", "worker");
  elsewhere.etcd.prefix = "/elsewhere";
  EXPECT_THAT(OpenError(elsewhere, ErrorKind::kStore), HasSubstr("/elsewhere"));
}

TEST_F(EtcdUserTest, AServerThatHasForgottenWhoWeAreIsToldAgain) {
  auto store = Open(As(server_, "worker", "worker"));
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->Add("n", 1).value(), 1);
  std::thread waiter([&] { EXPECT_EQ(store->Get("late", kTimeout).value_or(""), "value"); });
  server_.Kill();  // It keeps in memory whom it knows.
  server_.Start();
  EXPECT_EQ(store->Add("n", 1).value(), 2);
  EXPECT_TRUE(store->Set("late", "value").ok());
  waiter.join();
}

TEST(EtcdUserlessTest, AUserWhomTheClusterDoesNotAskForIsServed) {
  const EtcdServer server;
  auto store = Open(As(server, "worker", "worker"));
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->Set("key", "value").ok());
  server.EnableAuth("/syncline");
  EXPECT_TRUE(store->Set("key", "another").ok());
}

// A server that answers with the codes that etcd has, and words that it has not.
class RewordingServer {
 public:
  RewordingServer(grpc::StatusCode login, grpc::StatusCode change) {
    auth_.code = login;
    kv_.code = change;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&auth_);
    builder.RegisterService(&kv_);
    server_ = builder.BuildAndStart();
  }

  // The error of a change by "worker".
  absl::Status Change() const {
    StoreConfig::Etcd options;
    options.endpoints = absl::StrCat("127.0.0.1:", port_);
    options.user = options.password = "worker";
    const auto client = EtcdClient::Create(options);
    EXPECT_TRUE(client.ok()) << client.status();
    return (*client)->Txn({}, Deadline(kTimeout)).status();
  }

 private:
  struct Auth final : etcdserverpb::Auth::Service {
    grpc::Status Authenticate(grpc::ServerContext*, const etcdserverpb::AuthenticateRequest*,
                              etcdserverpb::AuthenticateResponse*) override {
      return {code, "worded otherwise"};
    }
    grpc::StatusCode code;
  };
  struct Kv final : etcdserverpb::KV::Service {
    grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest*,
                     etcdserverpb::TxnResponse*) override {
      return {code, "worded otherwise"};
    }
    grpc::StatusCode code;
  };

  Auth auth_;
  Kv kv_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(EtcdCodesTest, ALoginThatIsRefusedIsKnownByItsCode) {
  const RewordingServer server(grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::OK);
  const absl::Status status = server.Change();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("etcd does not accept user 'worker'"));
}

TEST(EtcdCodesTest, AClusterThatAsksForNoLoginAndALeaseThatHasEndedAreKnownByTheirCodes) {
  const RewordingServer server(grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(server.Change(), ContentsExpiredError());
}

TEST(EtcdCodesTest, WhatIsWrongWithAChangeIsNotTakenForTheLogin) {
  const RewordingServer server(grpc::StatusCode::FAILED_PRECONDITION,
                               grpc::StatusCode::INVALID_ARGUMENT);
  const absl::Status status = server.Change();
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("refused: worded otherwise"));
}

}  // namespace
}  // namespace syncline::etcd_store
