// getaddrinfo is replaced here, so that name servers do not answer when the test says so.
#include "core/base/resolve.h"

#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>

#include <atomic>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/testing/faults.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace {

std::atomic<bool> answers{true};
std::atomic<int> asked{0};
std::atomic<int> pending{0};

}  // namespace

// A name below .silent is looked up for as long as `answers` is false.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Real = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real = reinterpret_cast<Real>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool is_numeric = (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!is_numeric) ++asked;
  if (!is_numeric && host != nullptr && absl::EndsWith(host, ".silent")) {
    ++pending;
    while (!answers) absl::SleepFor(absl::Milliseconds(1));
    --pending;
    return EAI_AGAIN;
  }
  return real(host, service, hints, found);
}

namespace syncline::base {
namespace {

using ::testing::HasSubstr;

class ResolveTest : public testing::Test {
 protected:
  // The threads that were left behind have ended.
  ~ResolveTest() override {
    answers = true;
    while (pending > 0) absl::SleepFor(absl::Milliseconds(1));
  }
};

TEST_F(ResolveTest, AnAddressAsTextNeedsNoThreadAndAsksNobody) {
  const ScopedFault no_threads("pthread_create");
  asked = 0;
  const auto v4 = Resolve("127.0.0.1", {1234});
  ASSERT_TRUE(v4.ok()) << v4.status();
  ASSERT_EQ(v4->size(), 1);
  ASSERT_EQ(v4->front().family(), AF_INET);
  const auto* const v4_address = reinterpret_cast<const sockaddr_in*>(v4->front().get());
  EXPECT_EQ(ntohs(v4_address->sin_port), 1234);
  EXPECT_EQ(ntohl(v4_address->sin_addr.s_addr), INADDR_LOOPBACK);
  const auto v6 = Resolve("::1");
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ(v6->front().family(), AF_INET6);
  EXPECT_EQ(asked, 0);
}

TEST_F(ResolveTest, ANameIsLookedUp) {
  const auto found = Resolve("localhost", {80});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->empty());
}

TEST_F(ResolveTest, AnUnknownNameIsANetworkErrorThatHasIt) {
  const absl::Status status = Resolve("no-such-host.invalid").status();
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'no-such-host.invalid'"));
  EXPECT_EQ(KindOf(Resolve("").status()), ErrorKind::kNetwork);
}

TEST_F(ResolveTest, NameServersThatAreSilentEndAtTheDeadline) {
  answers = false;
  const absl::Time before = absl::Now();
  const absl::Status status =
      Resolve("host.silent", {}, Deadline(absl::Milliseconds(200))).status();
  EXPECT_LT(absl::Now() - before, absl::Seconds(20));
  EXPECT_EQ(KindOf(status), ErrorKind::kTimeout);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'host.silent' has taken 200ms"));
}

TEST_F(ResolveTest, AnInterruptEndsTheWait) {
  answers = false;
  const auto interrupt = [] { return InterruptedError("interrupted"); };
  const InterruptScope scope(interrupt);
  EXPECT_TRUE(IsInterrupted(Resolve("host.silent", {}, Deadline(absl::Seconds(60))).status()));
}

TEST_F(ResolveTest, WithoutAThreadItSaysSo) {
  const ScopedFault no_threads("pthread_create");
  const absl::Status status = Resolve("localhost").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start a thread for looking up"));
}

}  // namespace
}  // namespace syncline::base
