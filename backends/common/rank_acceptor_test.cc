#include "backends/common/rank_acceptor.h"

#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/common/listener.h"
#include "backends/common/rank_handshake.h"
#include "core/base/listening.h"
#include "core/base/resolve.h"
#include "core/base/sockets.h"
#include "core/testing/log_lines.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

using ::testing::HasSubstr;

Deadline Soon() { return Deadline(absl::Milliseconds(200)); }
Deadline Long() { return Deadline(absl::Seconds(60)); }

class RankAcceptorTest : public testing::Test {
 protected:
  RankAcceptorTest()
      : listener_(Listener::Open("127.0.0.1").value()),
        acceptor_(listener_->sockets(), std::string(listener_->secret()), 4) {}

  // The endpoint as it is for who knows another secret.
  std::string EndpointWith(const std::string& secret) const {
    std::vector<std::string> words = absl::StrSplit(listener_->endpoint(), ' ');
    return absl::StrCat(words[0], " ", words[1], " ", secret);
  }

  base::UniqueFd Connect() const {
    const std::vector<std::string> words = absl::StrSplit(listener_->endpoint(), ' ');
    const auto addresses = base::Resolve(words[0], {std::stoi(words[1])}, Long()).value();
    return base::Connect(addresses.front(), SOCK_STREAM, Long()).value();
  }

  // Accepts while `body` runs on another thread; nothing if nobody has proved himself by its end.
  std::optional<int> AcceptDuring(const std::function<void()>& body) {
    std::atomic<bool> is_over{false};
    std::thread thread([&] {
      body();
      is_over = true;
    });
    std::optional<int> rank;
    for (bool last = false; !rank.has_value() && !last;) {
      last = is_over;
      auto connection = acceptor_.Accept(Soon());
      if (connection.ok()) rank = connection->rank;
    }
    thread.join();
    return rank;
  }

  const std::unique_ptr<Listener> listener_;
  RankAcceptor acceptor_;
};

TEST_F(RankAcceptorTest, WhoKnowsTheSecretIsAccepted) {
  absl::Status finished;
  EXPECT_EQ(AcceptDuring([&] {
              auto caller = ConnectToListener(listener_->endpoint(), 7, Long());
              ASSERT_TRUE(caller.ok()) << caller.status();
              finished = caller->Finish(Long());
            }),
            7);
  EXPECT_TRUE(finished.ok()) << finished;
}

TEST_F(RankAcceptorTest, WhoKnowsAnotherSecretIsRefusedAndToldSo) {
  absl::Status finished;
  EXPECT_EQ(AcceptDuring([&] {
              auto caller = ConnectToListener(EndpointWith(NewHelloSecret()), 7, Long());
              ASSERT_TRUE(caller.ok()) << caller.status();
              finished = caller->Finish(Long());
            }),
            std::nullopt);
  EXPECT_EQ(KindOf(finished), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(finished.message()), HasSubstr("does not know the secret"));
}

// Who says nothing is not logged: monitors and balancers of load do so.
TEST_F(RankAcceptorTest, TheFirstStrangerThatSpeaksIsLoggedAndRanksAreAcceptedAllTheSame) {
  for (const std::string& greeting :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(sizeof(HelloMessage), 'G')}) {
    RankAcceptor acceptor(listener_->sockets(), std::string(listener_->secret()), 4);
    const LogLines lines;
    std::string second;
    std::thread thread([&] {
      Connect();
      for (int i = 0; i < 3; ++i) {
        const base::UniqueFd stranger = Connect();
        base::SocketAddress own;
        ASSERT_EQ(getsockname(stranger.get(), own.get(), &own.length), 0);
        if (i == 0) second = absl::StrCat("127.0.0.1 (port ", base::PortOf(own), ")");
        ASSERT_TRUE(base::SendAll(stranger.get(), greeting.data(), greeting.size(), Long()).ok());
        // One is put out at once, the other leaves.
        char byte;
        if (greeting.size() == sizeof(HelloMessage)) {
          EXPECT_FALSE(base::ReceiveAll(stranger.get(), &byte, 1, Long()).ok());
        }
      }
      auto caller = ConnectToListener(listener_->endpoint(), 7, Long());
      ASSERT_TRUE(caller.ok()) << caller.status();
      EXPECT_TRUE(caller->Finish(Long()).ok());
    });
    const auto connection = acceptor.Accept(Long());
    thread.join();
    ASSERT_TRUE(connection.ok()) << connection.status();
    EXPECT_EQ(connection->rank, 7);
    ASSERT_TRUE(lines.Await("refused", Long()));
    const std::string text = lines.text();
    EXPECT_THAT(text, HasSubstr(absl::StrCat("a rank's port has refused ", second)));
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

TEST_F(RankAcceptorTest, ACallerWithTheSecretOfAnotherGroupIsLogged) {
  const LogLines lines;
  EXPECT_EQ(AcceptDuring([&] {
              auto caller = ConnectToListener(EndpointWith(NewHelloSecret()), 7, Long());
              ASSERT_TRUE(caller.ok()) << caller.status();
              EXPECT_FALSE(caller->Finish(Long()).ok());
            }),
            std::nullopt);
  EXPECT_TRUE(lines.Await("a rank's port has refused 127.0.0.1", Long()));
}

// A caller that goes on although the listener's proof is not what it could check.
TEST_F(RankAcceptorTest, NoProofButTheRightOneIsTaken) {
  HelloMessage hello = {};
  {  // The magic number is not part of the interface.
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    const base::UniqueFd other(pair[1]);
    ASSERT_TRUE(Introduction::Begin(base::UniqueFd(pair[0]), listener_->secret(), 3, Long()).ok());
    ASSERT_TRUE(base::ReceiveAll(other.get(), &hello, sizeof(hello), Long()).ok());
  }
  const auto try_proof = [&](auto&& make) {
    return AcceptDuring([&] {
      const base::UniqueFd socket = Connect();
      ASSERT_TRUE(base::SendAll(socket.get(), &hello, sizeof(hello), Long()).ok());
      ChallengeMessage challenge;
      ASSERT_TRUE(base::ReceiveAll(socket.get(), &challenge, sizeof(challenge), Long()).ok());
      const ProofMessage proof = make(challenge);
      ASSERT_TRUE(base::SendAll(socket.get(), &proof, sizeof(proof), Long()).ok());
      char byte;  // It hangs up.
      EXPECT_FALSE(base::ReceiveAll(socket.get(), &byte, 1, Long()).ok());
    });
  };
  EXPECT_EQ(try_proof([](const ChallengeMessage&) { return ProofMessage{}; }), std::nullopt);
  // The listener's own, sent back.
  EXPECT_EQ(try_proof([](const ChallengeMessage& challenge) {
              ProofMessage proof;
              std::memcpy(proof.proof, challenge.proof, sizeof(proof.proof));
              return proof;
            }),
            std::nullopt);
}

// All that a rank that was let in has sent, by who has recorded it.
TEST_F(RankAcceptorTest, WhatWasRecordedIsOfNoUseAgain) {
  std::string recorded;
  const auto record = [&] {
    // Between the caller and the listener.
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    const base::UniqueFd near(pair[1]);
    auto caller = Introduction::Begin(base::UniqueFd(pair[0]), listener_->secret(), 5, Long());
    ASSERT_TRUE(caller.ok());
    const base::UniqueFd far = Connect();
    HelloMessage hello;
    ChallengeMessage challenge;
    ProofMessage proof;
    ASSERT_TRUE(base::ReceiveAll(near.get(), &hello, sizeof(hello), Long()).ok());
    ASSERT_TRUE(base::SendAll(far.get(), &hello, sizeof(hello), Long()).ok());
    ASSERT_TRUE(base::ReceiveAll(far.get(), &challenge, sizeof(challenge), Long()).ok());
    ASSERT_TRUE(base::SendAll(near.get(), &challenge, sizeof(challenge), Long()).ok());
    ASSERT_TRUE(caller->Finish(Long()).ok());
    ASSERT_TRUE(base::ReceiveAll(near.get(), &proof, sizeof(proof), Long()).ok());
    ASSERT_TRUE(base::SendAll(far.get(), &proof, sizeof(proof), Long()).ok());
    recorded.assign(reinterpret_cast<const char*>(&hello), sizeof(hello));
    recorded.append(reinterpret_cast<const char*>(&proof), sizeof(proof));
    // As a man in the middle may be: what crosses after is not protected.
    absl::SleepFor(absl::Milliseconds(100));
  };
  EXPECT_EQ(AcceptDuring(record), 5);
  ASSERT_FALSE(recorded.empty());
  EXPECT_EQ(
      AcceptDuring([&] {
        const base::UniqueFd socket = Connect();
        ASSERT_TRUE(base::SendAll(socket.get(), recorded.data(), recorded.size(), Long()).ok());
        char challenge[sizeof(ChallengeMessage) + 1];  // And then it hangs up.
        EXPECT_FALSE(base::ReceiveAll(socket.get(), challenge, sizeof(challenge), Long()).ok());
      }),
      std::nullopt);
}

TEST_F(RankAcceptorTest, AListenerThatDoesNotKnowTheSecretGetsNoProof) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  const base::UniqueFd liar(pair[1]);
  auto caller = Introduction::Begin(base::UniqueFd(pair[0]), listener_->secret(), 5, Long());
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ(KindOf(caller->Finish(Soon())), ErrorKind::kTimeout);  // May go on later.
  ChallengeMessage challenge = {};
  ASSERT_TRUE(base::SendAll(liar.get(), &challenge, sizeof(challenge), Long()).ok());
  EXPECT_THAT(std::string(caller->Finish(Long()).message()), HasSubstr("does not know the secret"));
  HelloMessage hello;
  ASSERT_TRUE(base::ReceiveAll(liar.get(), &hello, sizeof(hello), Long()).ok());
  char byte;
  EXPECT_LE(recv(liar.get(), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(RankAcceptorTest, TheFirstAddressStandsInForOneThatCannotBeReached) {
  // Nobody listens at that port.
  const std::string endpoint = absl::StrCat(listener_->endpoint(), " 127.0.0.1 1");
  absl::Status introduced;
  const std::optional<int> rank = AcceptDuring([&] {
    const auto fine = [] { return absl::OkStatus(); };
    introduced = IntroduceInSlices(endpoint, 7, Long(), fine, nullptr, 1).status();
  });
  EXPECT_EQ(rank, 7);
  EXPECT_TRUE(introduced.ok()) << introduced;
}

TEST_F(RankAcceptorTest, AnotherAddressThatDoesNotAnswerIsWaitedForOnce) {
  // Of a full backlog the kernel takes nobody, and refuses nobody.
  base::SocketAddress address = base::Resolve("127.0.0.2", {0}, Long())->front();
  const base::UniqueFd full = base::ListenOn(address).value();
  ASSERT_EQ(listen(full.get(), 0), 0);
  std::vector<base::UniqueFd> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(base::BeginConnect(address, SOCK_STREAM).value());
  const std::string endpoint =
      absl::StrCat(listener_->endpoint(), " 127.0.0.2 ", base::PortOf(address));
  for (const int number : {1, 2}) {
    absl::Duration took;
    EXPECT_EQ(AcceptDuring([&] {
                const absl::Time start = absl::Now();
                const auto fine = [] { return absl::OkStatus(); };
                EXPECT_TRUE(IntroduceInSlices(endpoint, number, Long(), fine, nullptr, 1).ok());
                took = absl::Now() - start;
              }),
              number);
    EXPECT_EQ(took > absl::Seconds(2), number == 1) << took;
  }
}

TEST_F(RankAcceptorTest, ARankThatIsDroppedForStrangersComesAgain) {
  absl::Status introduced;
  std::thread rank([&] {
    const auto fine = [] { return absl::OkStatus(); };
    introduced = IntroduceInSlices(listener_->endpoint(), 7, Long(), fine, nullptr).status();
  });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(base::Accept(listener_->sockets()[0], Long()).ok());
  const auto connection = acceptor_.Accept(Long());
  rank.join();
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(connection->rank, 7);
  EXPECT_TRUE(introduced.ok()) << introduced;
}

TEST_F(RankAcceptorTest, WhoHasGreetedIsNotDroppedForStrangers) {
  absl::Status finished;
  std::vector<base::UniqueFd> strangers;
  EXPECT_EQ(AcceptDuring([&] {
              auto caller = ConnectToListener(listener_->endpoint(), 7, Long());
              ASSERT_TRUE(caller.ok()) << caller.status();
              ASSERT_TRUE(base::WaitReadable(caller->socket(), Long()).ok());
              for (int i = 0; i < 300; ++i) strangers.push_back(Connect());
              absl::SleepFor(absl::Milliseconds(300));  // All are accepted.
              finished = caller->Finish(Long());
            }),
            7);
  EXPECT_TRUE(finished.ok()) << finished;
}

TEST_F(RankAcceptorTest, AnswersThatComeInPiecesAreTakenTogether) {
  EXPECT_EQ(
      AcceptDuring([&] {
        int pair[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
        const base::UniqueFd near(pair[1]);
        auto caller = Introduction::Begin(base::UniqueFd(pair[0]), listener_->secret(), 2, Long());
        ASSERT_TRUE(caller.ok());
        const base::UniqueFd far = Connect();
        std::atomic<bool> is_over{false};
        // Carries each byte by itself, to the last that the caller has sent.
        std::thread carrier([&] {
          const auto carry = [](const base::UniqueFd& from, const base::UniqueFd& to) {
            char byte;
            if (recv(from.get(), &byte, 1, MSG_DONTWAIT) != 1) return false;
            base::SendAll(to.get(), &byte, 1, Long()).IgnoreError();
            return true;
          };
          while (true) {
            const bool is_last = is_over;
            if (!carry(near, far) && is_last) break;
            carry(far, near);
          }
        });
        EXPECT_TRUE(caller->Finish(Long()).ok());
        is_over = true;
        carrier.join();
      }),
      2);
}

TEST(MemberConnectionTest, ANumberStandsForAMemberAndOneOfItsConnections) {
  for (const int member : {-3, -1, 0, 1, 1000}) {
    for (const int connection : {0, 1, 2}) {
      const MemberConnection split = SplitNumber(3 * member + connection, 3);
      EXPECT_EQ(split.member, member);
      EXPECT_EQ(split.connection, connection);
    }
  }
  EXPECT_EQ(SplitNumber(std::numeric_limits<int>::min(), 2).connection, 0);
}

TEST(MemberConnectionTest, AMemberAcceptsThoseAfterItAlone) {
  for (const int claimed : {3, 4}) EXPECT_EQ(WhyImpossible(claimed, 2, 5), "");
  EXPECT_EQ(WhyImpossible(2, 2, 5), "this rank is that one");
  EXPECT_EQ(WhyImpossible(0, 2, 5), "this rank connects to that one itself");
  for (const int claimed : {-1, 5})
    EXPECT_EQ(WhyImpossible(claimed, 2, 5), "there is no such rank");
}

}  // namespace
}  // namespace syncline::backends
