// What an etcd store does when servers and answers are lost, and when its clients go.
#include "syncline/etcd_store.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/etcd/etcd_testing.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Mode = LossyProxy::Mode;
using Strings = std::vector<std::string>;

constexpr absl::Duration kTimeout = absl::Seconds(30);

std::shared_ptr<EtcdStore> Open(const std::string& endpoints, absl::Duration ttl = {},
                                absl::Duration timeout = kTimeout,
                                const std::string& prefix = "/syncline") {
  EtcdStore::Options options;
  options.etcd.endpoints = endpoints;
  options.etcd.prefix = prefix;
  options.etcd.ttl = ttl;
  options.timeout = timeout;
  auto store = EtcdStore::Create(options);
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

template <typename T>
T Value(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : T();
}

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

// Polls `condition` until it holds or kTimeout has passed; whether it held.
bool Eventually(const std::function<bool()>& condition) {
  const Deadline deadline(kTimeout);
  while (!condition()) {
    if (deadline.Expired()) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

class EtcdStoreTest : public ::testing::Test {
 protected:
  EtcdServer server_;
};

TEST_F(EtcdStoreTest, StoresWithDifferentPrefixesShareNothingAndLeaveNothingOfTheirOwn) {
  auto outer = Open(server_.endpoint(), {}, kTimeout, "/a/");
  auto inner = Open(server_.endpoint(), {}, kTimeout, "/a/keys");
  ExpectOk(inner->Set("key", "inner"));
  EXPECT_EQ(outer->ToString(), absl::StrCat("etcd://", server_.endpoint(), "/a"));
  EXPECT_EQ(Value(outer->Keys("")).size(), 2);  // inner's key, and the record of its call.
  inner.reset();
  EXPECT_EQ(Value(outer->Keys("")), (Strings{"keys/key"}));
}

TEST_F(EtcdStoreTest, AWaitSurvivesTheServersRestart) {
  auto store = Open(server_.endpoint());
  auto another = Open(server_.endpoint());
  ExpectOk(store->Set("kept", "x"));
  absl::Notification waiting;
  std::thread waiter([&] {
    waiting.Notify();
    EXPECT_EQ(Value(store->Get("late", kTimeout)), "value");
  });
  waiting.WaitForNotification();
  for (int i = 0; i < 2; ++i) {
    server_.Kill();
    server_.Start();
    ExpectOk(another->Wait(Strings{"kept"}, kTimeout));
  }
  ExpectOk(another->Set("late", "value"));
  waiter.join();
}

TEST_F(EtcdStoreTest, AWaitEndsInTimeWhileTheServerIsAway) {
  auto store = Open(server_.endpoint());
  server_.Kill();
  const Deadline deadline(absl::Seconds(10));
  const absl::Status status = store->Get("key", absl::Milliseconds(100)).status();
  EXPECT_FALSE(deadline.Expired());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("key 'key'"));
  EXPECT_THAT(std::string(status.message()), HasSubstr(store->ToString()));
}

TEST_F(EtcdStoreTest, AddsAndAppendsCountOnceWhileServersComeAndGo) {
  constexpr int kThreads = 3;
  std::atomic<bool> stop{false};
  std::atomic<int> adds{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      auto store = Open(server_.endpoint());
      while (!stop) {
        EXPECT_TRUE(store->Add("n", 1).ok());
        ExpectOk(store->Append("text", "."));
        ++adds;
      }
    });
  }
  for (int restart = 0; restart < 3; ++restart) {
    const int before = adds;
    EXPECT_TRUE(Eventually([&] { return adds > before + 20; }));
    server_.Kill();
    server_.Start();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  auto store = Open(server_.endpoint());
  EXPECT_EQ(Value(store->Add("n", 0)), adds);
  EXPECT_EQ(Value(store->Get("text", kTimeout)).size(), adds);
}

TEST(EtcdClusterTest, AnyServerOfThreeMayGoAndComeBack) {
  EtcdCluster cluster(3);
  auto store = Open(cluster.endpoints());
  std::atomic<bool> stop{false};
  std::atomic<int> adds{0};
  std::thread adder([&] {
    for (; !stop; ++adds) EXPECT_TRUE(store->Add("n", 1).ok());
  });
  std::thread waiter([&] { EXPECT_EQ(Value(store->Get("late", kTimeout)), "value"); });
  for (int i = 0; i < 3; ++i) {
    const int before = adds;
    EXPECT_TRUE(Eventually([&] { return adds > before + 10; }));
    cluster.member(i).Kill();
    const int without = adds;
    EXPECT_TRUE(Eventually([&] { return adds > without + 10; }));
    cluster.member(i).Start();
  }
  auto another = Open(cluster.endpoints());
  ExpectOk(another->Set("late", "value"));
  waiter.join();
  stop = true;
  adder.join();
  EXPECT_EQ(Value(another->Add("n", 0)), adds);
}

// A client whose answers get lost, one with a better network, and one that sees all of etcd.
class EtcdLostAnswerTest : public EtcdStoreTest {
 protected:
  // Makes `call`, whose effect the others can see, and loses its first answer.
  void LoseAnswer(const std::function<void()>& call, const std::function<bool()>& effect) {
    proxy_.Set(Mode::kSwallow);
    std::thread caller(call);
    EXPECT_TRUE(Eventually(effect));
    proxy_.Set(Mode::kForward);
    caller.join();
  }

  LossyProxy proxy_{server_.port()};
  std::shared_ptr<EtcdStore> store_ = Open(proxy_.endpoint(), {}, kTimeout, "/keys/job");
  std::shared_ptr<EtcdStore> better_ = Open(server_.endpoint(), {}, kTimeout, "/keys/job");
  std::shared_ptr<EtcdStore> witness_ = Open(server_.endpoint(), {}, kTimeout, "");
};

TEST_F(EtcdLostAnswerTest, AddsCountOnce) {
  std::atomic<bool> stop{false};
  std::atomic<int> adds{0};
  std::thread adder([&] {
    for (; !stop; ++adds) EXPECT_TRUE(store_->Add("n", 1).ok());
  });
  int lost = 0;  // Answers to changes, of which there is one in two.
  for (int i = 0; i < 40 || (lost < 5 && i < 1000); ++i) {
    const int before = adds;
    EXPECT_TRUE(Eventually([&] { return adds > before + i % 3; }));
    proxy_.Set(Mode::kSwallow);
    const Deadline soon(absl::Milliseconds(20));
    while (!soon.Expired() && Value(better_->Add("n", 0)) <= adds) {
    }
    if (Value(better_->Add("n", 0)) > adds) ++lost;
    proxy_.Set(Mode::kForward);
  }
  stop = true;
  adder.join();
  EXPECT_GE(lost, 5);
  EXPECT_EQ(Value(better_->Add("n", 0)), adds);
}

TEST_F(EtcdLostAnswerTest, ASetThatIsRepeatedDoesNotUndoALaterOne) {
  LoseAnswer([&] { ExpectOk(store_->Set("key", "first")); },
             [&] {
               if (!Value(better_->Check(Strings{"key"}))) return false;
               ExpectOk(better_->Set("key", "second"));
               return true;
             });
  EXPECT_EQ(Value(store_->Get("key", kTimeout)), "second");
}

TEST_F(EtcdLostAnswerTest, WhoCreatedAKeyIsToldSo) {
  LoseAnswer(
      [&] {
        const auto result = Value(store_->CompareSet("key", "", "mine"));
        EXPECT_TRUE(result.swapped);
        EXPECT_EQ(result.value, "mine");
      },
      [&] { return Value(better_->Check(Strings{"key"})); });
}

TEST_F(EtcdLostAnswerTest, WhoDeletedAKeyIsToldSo) {
  ExpectOk(better_->Set("key", "x"));
  LoseAnswer([&] { EXPECT_TRUE(Value(store_->Delete("key"))); },
             [&] { return !Value(better_->Check(Strings{"key"})); });
}

TEST_F(EtcdLostAnswerTest, WhoFailedToCreateAKeyIsToldSoEvenIfItIsGoneByThen) {
  ExpectOk(better_->Set("key", "theirs"));
  const auto records = [&] { return Value(witness_->Keys("job/calls/")).size(); };
  const size_t before = records();
  LoseAnswer(
      [&] {
        // Refused once; that the key is gone when the call is repeated lets it try again.
        const auto result = Value(store_->CompareSet("key", "", "mine"));
        EXPECT_TRUE(result.swapped);
      },
      [&] {
        if (records() == before) return false;
        EXPECT_TRUE(Value(better_->Delete("key")));
        return true;
      });
  EXPECT_EQ(Value(better_->Get("key", kTimeout)), "mine");
}

TEST_F(EtcdStoreTest, MoreKeysThanATransactionTakesAreOneStepAndOneRead) {
  auto store = Open(server_.endpoint());
  Strings keys, values;
  for (int i = 0; i < 3906; ++i) {
    keys.push_back(absl::StrCat("key ", i));
    values.push_back(absl::StrCat(i));
  }
  ExpectOk(store->MultiSet(keys, values));
  EXPECT_EQ(Value(store->MultiGet(keys, kTimeout)), values);
  EXPECT_EQ(Value(store->Keys("")).size(), keys.size());
  keys.push_back("one more");
  values.push_back("x");
  const absl::Status status = store->MultiSet(keys, values);
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no more than 3906 keys"));
  EXPECT_FALSE(Value(store->Check(Strings{"one more"})));
  for (const size_t n : {99, 100, 101}) {
    ExpectOk(store->MultiSet(Strings(keys.begin(), keys.begin() + n),
                             Strings(values.begin(), values.begin() + n)));
  }
}

TEST_F(EtcdStoreTest, OfAKeyThatASetNamesTwiceTheLastValueCounts) {
  auto store = Open(server_.endpoint());
  ExpectOk(store->MultiSet(Strings{"a", "b", "a"}, Strings{"1", "2", "3"}));
  EXPECT_EQ(Value(store->MultiGet(Strings{"a", "b"}, kTimeout)), (Strings{"3", "2"}));
}

TEST_F(EtcdStoreTest, AWaitForManyKeysSeesThemAll) {
  auto store = Open(server_.endpoint());
  auto another = Open(server_.endpoint());
  Strings keys;
  for (int i = 0; i < 150; ++i) keys.push_back(absl::StrCat("key ", i));
  std::thread waiter([&] { ExpectOk(store->Wait(keys, kTimeout)); });
  for (size_t i = keys.size(); i-- > 0;) ExpectOk(another->Set(keys[i], ""));
  waiter.join();
}

TEST_F(EtcdStoreTest, AValueThatIsTooLargeIsRefusedWithTheLimitsName) {
  auto store = Open(server_.endpoint());
  const absl::Status status = store->Set("key", std::string(2 << 20, 'x'));
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-request-bytes"));
  ExpectOk(store->Set("key", "small"));
}

TEST_F(EtcdStoreTest, AForkedChildIsToldToOpenItAnew) {
  auto store = Open(server_.endpoint(), absl::Seconds(30));
  const pid_t child = fork();
  if (child == 0) {
    const absl::Status status = store->Set("key", "x");
    store.reset();
    _exit(KindOf(status) == ErrorKind::kStore ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  ExpectOk(store->Set("key", "x"));
}

TEST_F(EtcdStoreTest, ContentsWithATtlOutliveTheirLastClientByThatOnly) {
  auto witness = Open(server_.endpoint(), {}, kTimeout, "");
  auto one = Open(server_.endpoint(), absl::Seconds(3), kTimeout, "/keys/job");
  auto two = Open(server_.endpoint(), absl::Seconds(3), kTimeout, "/keys/job");
  ExpectOk(one->Set("key", "x"));
  EXPECT_EQ(Value(two->Add("n", 1)), 1);
  one.reset();
  const Deadline longer(absl::Seconds(7));
  while (!longer.Expired()) {
    ASSERT_TRUE(Value(witness->Check(Strings{"job/keys/key"})));
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_EQ(Value(two->Add("n", 1)), 2);
  two.reset();
  EXPECT_TRUE(Value(witness->Check(Strings{"job/keys/key"})));
  EXPECT_TRUE(Eventually([&] { return Value(witness->Keys("job")).empty(); }));
}

TEST_F(EtcdStoreTest, ClientsThatWereCutOffForLongerThanTheTtlAreToldThatContentsAreGone) {
  auto witness = Open(server_.endpoint(), {}, kTimeout, "");
  LossyProxy proxy(server_.port());
  auto store = Open(proxy.endpoint(), absl::Seconds(3), kTimeout, "/keys/job");
  ExpectOk(store->Set("key", "x"));
  proxy.Set(Mode::kRefuse);
  EXPECT_TRUE(Eventually([&] { return Value(witness->Keys("job")).empty(); }));
  proxy.Set(Mode::kForward);
  const absl::Status status = store->Set("key", "y");
  EXPECT_EQ(KindOf(status), ErrorKind::kStore) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("expired"));
  EXPECT_TRUE(Eventually([&] { return !store->Check(Strings{"key"}).ok(); }));
  store = Open(proxy.endpoint(), absl::Seconds(10), kTimeout, "/keys/job");
  EXPECT_THAT(Value(store->Keys("")), IsEmpty());
}

}  // namespace
}  // namespace syncline::etcd_store
