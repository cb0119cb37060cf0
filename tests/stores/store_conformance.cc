#include "tests/stores/store_conformance.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "syncline/extended_store.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr absl::Duration kTimeout = absl::Seconds(30);      // For what must happen.
constexpr absl::Duration kMoment = absl::Milliseconds(30);  // For what must not.

using Strings = std::vector<std::string>;

// Runs body(0) … body(n - 1), each on a thread of its own; a status that is not OK is a failure.
template <typename Body>
void RunThreads(int n, Body body) {
  std::vector<absl::Status> results(n);
  std::vector<std::thread> threads;
  for (int i = 0; i < n; ++i) threads.emplace_back([&, i] { results[i] = body(i); });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < n; ++i) EXPECT_TRUE(results[i].ok()) << "thread " << i << ": " << results[i];
}

// A value, or a failure that shows the error.
template <typename T>
T Value(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : T();
}

void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

void ExpectKind(const absl::Status& status, ErrorKind kind) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(KindOf(status), kind) << status;
}

TEST_P(StoreConformance, WhatOneClientSetsAnotherGets) {
  auto clients = Open(2);
  ExpectOk(clients[0]->Set("key", "value"));
  EXPECT_EQ(Value(clients[1]->Get("key", kTimeout)), "value");
  ExpectOk(clients[1]->Set("key", "another"));
  EXPECT_EQ(Value(clients[0]->Get("key", kTimeout)), "another");
}

TEST_P(StoreConformance, AnEmptyValueIsAValue) {
  auto store = Open();
  ExpectOk(store->Set("key", ""));
  EXPECT_EQ(Value(store->Get("key", kTimeout)), "");
  EXPECT_TRUE(Value(store->Check(Strings{"key"})));
}

TEST_P(StoreConformance, KeysAndValuesAreBytes) {
  auto clients = Open(2);
  std::string bytes(256, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  ExpectOk(clients[0]->Set(bytes, bytes));
  EXPECT_EQ(Value(clients[1]->Get(bytes, kTimeout)), bytes);
  EXPECT_THAT(Value(clients[1]->Keys("")), ElementsAre(bytes));
}

TEST_P(StoreConformance, AMebibyteIsNotTooLarge) {
  auto clients = Open(2);
  const std::string large(size_t{1} << 20, 'x');
  ExpectOk(clients[0]->Set("large", large));
  EXPECT_TRUE(Value(clients[1]->Get("large", kTimeout)) == large);
}

TEST_P(StoreConformance, AnEmptyKeyIsRefused) {
  auto store = Open();
  const Strings keys = {"a", ""};
  ExpectKind(store->Set("", "x"), ErrorKind::kArgument);
  ExpectKind(store->Get("", kMoment).status(), ErrorKind::kArgument);
  ExpectKind(store->Add("", 1).status(), ErrorKind::kArgument);
  ExpectKind(store->CompareSet("", "", "x").status(), ErrorKind::kArgument);
  ExpectKind(store->Wait(keys, kMoment), ErrorKind::kArgument);
  ExpectKind(store->Check(keys).status(), ErrorKind::kArgument);
  ExpectKind(store->Delete("").status(), ErrorKind::kArgument);
  ExpectKind(store->Append("", "x"), ErrorKind::kArgument);
  ExpectKind(store->MultiGet(keys, kMoment).status(), ErrorKind::kArgument);
  ExpectKind(store->MultiSet(keys, keys), ErrorKind::kArgument);
  EXPECT_THAT(Value(store->Keys("")), IsEmpty());
}

TEST_P(StoreConformance, AddCountsFromZeroAndReturnsTheSum) {
  auto clients = Open(2);
  EXPECT_EQ(Value(clients[0]->Add("n", 5)), 5);
  EXPECT_EQ(Value(clients[1]->Add("n", -7)), -2);
  EXPECT_EQ(Value(clients[0]->Add("n", 0)), -2);
  EXPECT_EQ(Value(clients[1]->Get("n", kTimeout)), "-2");
}

TEST_P(StoreConformance, AddGoesOnFromANumberThatWasSet) {
  auto store = Open();
  ExpectOk(store->Set("n", "41"));
  EXPECT_EQ(Value(store->Add("n", 1)), 42);
}

TEST_P(StoreConformance, AddToWhatIsNoNumberFailsAndChangesNothing) {
  auto store = Open();
  for (const std::string value : {"seven", "7 apples", "", "1.5", "9223372036854775808"}) {
    ExpectOk(store->Set("n", value));
    absl::Status status = store->Add("n", 1).status();
    ExpectKind(status, ErrorKind::kStore);
    EXPECT_THAT(status.message(), HasSubstr("n'"));
    EXPECT_EQ(Value(store->Get("n", kTimeout)), value);
  }
}

TEST_P(StoreConformance, ASumThatOverflowsFailsAndChangesNothing) {
  auto store = Open();
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Value(store->Add("n", most)), most);
  ExpectKind(store->Add("n", 1).status(), ErrorKind::kStore);
  EXPECT_EQ(Value(store->Add("n", 0)), most);
}

TEST_P(StoreConformance, AddsFromManyThreadsAndClientsSumExactly) {
  auto clients = Open(4);
  RunThreads(8, [&](int i) {
    absl::Status status;
    for (int n = 0; n < 25 && status.ok(); ++n) status = clients[i % 4]->Add("n", i).status();
    return status;
  });
  EXPECT_EQ(Value(clients[0]->Add("n", 0)), 25 * (0 + 1 + 2 + 3 + 4 + 5 + 6 + 7));
}

TEST_P(StoreConformance, CompareSetCreatesSwapsAndFails) {
  auto clients = Open(2);
  auto created = Value(clients[0]->CompareSet("key", "", "one"));
  EXPECT_TRUE(created.swapped);
  EXPECT_EQ(created.value, "one");
  auto failed = Value(clients[1]->CompareSet("key", "zero", "two"));
  EXPECT_FALSE(failed.swapped);
  EXPECT_EQ(failed.value, "one");
  auto exists = Value(clients[1]->CompareSet("key", "", "two"));
  EXPECT_FALSE(exists.swapped);
  EXPECT_EQ(exists.value, "one");
  auto swapped = Value(clients[1]->CompareSet("key", "one", "two"));
  EXPECT_TRUE(swapped.swapped);
  EXPECT_EQ(swapped.value, "two");
  EXPECT_EQ(Value(clients[0]->Get("key", kTimeout)), "two");
}

TEST_P(StoreConformance, CompareSetOfAnAbsentKeyToAValueItDoesNotHoldFails) {
  auto store = Open();
  auto result = Value(store->CompareSet("key", "something", "x"));
  EXPECT_FALSE(result.swapped);
  EXPECT_EQ(result.value, "");
  EXPECT_FALSE(Value(store->Check(Strings{"key"})));
}

TEST_P(StoreConformance, CompareSetTellsAnEmptyValueFromAnAbsentKey) {
  auto store = Open();
  EXPECT_TRUE(Value(store->CompareSet("key", "", "")).swapped);
  EXPECT_TRUE(Value(store->Check(Strings{"key"})));
  EXPECT_FALSE(Value(store->CompareSet("key", "", "x")).swapped);
}

TEST_P(StoreConformance, OfManyWhoCreateAKeyOneWins) {
  auto clients = Open(4);
  std::vector<Store::CompareSetResult> results(8);
  RunThreads(8, [&](int i) {
    auto result = clients[i % 4]->CompareSet("key", "", absl::StrCat("thread ", i));
    if (result.ok()) results[i] = *result;
    return result.status();
  });
  const std::string winner = Value(clients[0]->Get("key", kTimeout));
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(results[i].value, winner);
    EXPECT_EQ(results[i].swapped, winner == absl::StrCat("thread ", i));
  }
}

TEST_P(StoreConformance, AGetWaitsForAnotherClientsSet) {
  auto clients = Open(4);
  absl::Notification waiting;
  RunThreads(4, [&](int i) -> absl::Status {
    if (i == 0) {
      waiting.WaitForNotification();
      return clients[0]->Set("late", "value");
    }
    if (i == 1) waiting.Notify();
    auto value = clients[i]->Get("late", kTimeout);
    if (value.ok() && *value != "value") return absl::InternalError(*value);
    return value.status();
  });
}

TEST_P(StoreConformance, EveryWayToSetAKeyWakesWhoWaitsForIt) {
  auto clients = Open(2);
  const Strings keys = {"set", "add", "compare_set", "append", "multi_set"};
  RunThreads(static_cast<int>(keys.size()) + 1, [&](int i) -> absl::Status {
    if (i > 0) return clients[1]->Get(keys[i - 1], kTimeout).status();
    SYNCLINE_RETURN_IF_ERROR(clients[0]->Set("set", "x"));
    SYNCLINE_RETURN_IF_ERROR(clients[0]->Add("add", 1).status());
    SYNCLINE_RETURN_IF_ERROR(clients[0]->CompareSet("compare_set", "", "x").status());
    SYNCLINE_RETURN_IF_ERROR(clients[0]->Append("append", "x"));
    return clients[0]->MultiSet(Strings{"multi_set"}, Strings{"x"});
  });
}

TEST_P(StoreConformance, WaitWaitsForAllKeys) {
  auto clients = Open(2);
  RunThreads(3, [&](int i) -> absl::Status {
    if (i == 0) return clients[0]->Wait(Strings{"a", "b", "c", "a"}, kTimeout);
    if (i == 1) return clients[1]->Set("b", "x");
    SYNCLINE_RETURN_IF_ERROR(clients[1]->Wait(Strings{"b"}, kTimeout));
    SYNCLINE_RETURN_IF_ERROR(clients[1]->Set("c", "x"));
    return clients[1]->Set("a", "x");
  });
  ExpectOk(clients[1]->Wait(Strings{"a", "b", "c"}, absl::ZeroDuration()));
}

TEST_P(StoreConformance, WaitingForNoKeysIsOverAtOnce) {
  auto store = Open();
  ExpectOk(store->Wait({}, absl::ZeroDuration()));
  EXPECT_THAT(Value(store->MultiGet({}, absl::ZeroDuration())), IsEmpty());
  EXPECT_TRUE(Value(store->Check({})));
  ExpectOk(store->MultiSet({}, {}));
}

TEST_P(StoreConformance, ATimeoutNamesTheStoreTheMissingKeysAndHowLong) {
  auto store = Open();
  ExpectOk(store->Set("there", "x"));
  const Strings keys = {"first", "there", "second"};
  for (const absl::Status& status :
       {store->Wait(keys, kMoment), store->MultiGet(keys, kMoment).status()}) {
    ExpectKind(status, ErrorKind::kTimeout);
    EXPECT_THAT(status.message(), HasSubstr("://"));
    EXPECT_THAT(status.message(), HasSubstr("first'"));
    EXPECT_THAT(status.message(), HasSubstr("second' not set after 30ms"));
    EXPECT_THAT(status.message(), Not(HasSubstr("there'")));
  }
  absl::Status status = store->Get("never", kMoment).status();
  ExpectKind(status, ErrorKind::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("never' not set after 30ms"));
}

TEST_P(StoreConformance, ATimeoutIsKept) {
  auto store = Open();
  const absl::Time start = absl::Now();
  ExpectKind(store->Get("never", absl::Milliseconds(200)).status(), ErrorKind::kTimeout);
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(200));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  ExpectKind(store->Get("never", absl::ZeroDuration()).status(), ErrorKind::kTimeout);
  ExpectKind(store->Get("never", -absl::Seconds(1)).status(), ErrorKind::kTimeout);
}

TEST_P(StoreConformance, AWaitThatTimedOutIsForgotten) {
  auto clients = Open(2);
  ExpectKind(clients[0]->Get("key", kMoment).status(), ErrorKind::kTimeout);
  ExpectOk(clients[1]->Set("key", "value"));
  EXPECT_EQ(Value(clients[0]->Get("key", kTimeout)), "value");
}

TEST_P(StoreConformance, AnInterruptEndsAWaitAndNothingElse) {
  auto store = Open();
  for (const auto& wait : std::vector<std::function<absl::Status()>>{
           [&] { return store->Get("key", kTimeout).status(); },
           [&] { return store->Wait(Strings{"key"}, kTimeout); },
           [&] { return store->MultiGet(Strings{"key"}, kTimeout).status(); }}) {
    const auto check = [] { return InterruptedError("interrupted"); };
    const InterruptScope scope(check);
    const absl::Time start = absl::Now();
    const absl::Status status = wait();
    EXPECT_TRUE(IsInterrupted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("interrupted"));
    EXPECT_LT(absl::Now() - start, kTimeout / 2);
  }
  ExpectOk(store->Set("key", "value"));
  EXPECT_EQ(Value(store->Get("key", kTimeout)), "value");
}

TEST_P(StoreConformance, ABlockedGetDoesNotBlockOtherThreadsOfTheSameClient) {
  auto store = Open();
  RunThreads(9, [&](int i) -> absl::Status {
    if (i > 0) return store->Get(absl::StrCat("late ", i), kTimeout).status();
    for (int n = 0; n < 50; ++n) {
      SYNCLINE_RETURN_IF_ERROR(store->Set("other", absl::StrCat(n)));
      SYNCLINE_RETURN_IF_ERROR(store->Get("other", kTimeout).status());
    }
    for (int late = 8; late > 0; --late) {
      SYNCLINE_RETURN_IF_ERROR(store->Set(absl::StrCat("late ", late), "x"));
    }
    return absl::OkStatus();
  });
}

TEST_P(StoreConformance, CheckAsksForAllKeys) {
  auto store = Open();
  EXPECT_FALSE(Value(store->Check(Strings{"a"})));
  ExpectOk(store->Set("a", "x"));
  EXPECT_TRUE(Value(store->Check(Strings{"a"})));
  EXPECT_FALSE(Value(store->Check(Strings{"a", "b"})));
}

TEST_P(StoreConformance, DeleteRemovesAKeyAndTellsWhetherItWasThere) {
  auto clients = Open(2);
  ExpectOk(clients[0]->Set("key", "x"));
  EXPECT_TRUE(Value(clients[1]->Delete("key")));
  EXPECT_FALSE(Value(clients[0]->Delete("key")));
  EXPECT_FALSE(Value(clients[0]->Check(Strings{"key"})));
  ExpectKind(clients[0]->Get("key", kMoment).status(), ErrorKind::kTimeout);
  EXPECT_EQ(Value(clients[0]->Add("key", 1)), 1);
}

TEST_P(StoreConformance, KeysAreThoseWithThePrefixInOrder) {
  auto clients = Open(2);
  for (const char* key : {"b/2", "a", "b/10", "c", "b", "b0", "b/"}) {
    ExpectOk(clients[0]->Set(key, "x"));
  }
  EXPECT_TRUE(Value(clients[0]->Delete("b/2")));
  EXPECT_THAT(Value(clients[1]->Keys("")), ElementsAre("a", "b", "b/", "b/10", "b0", "c"));
  EXPECT_THAT(Value(clients[1]->Keys("b/")), ElementsAre("b/", "b/10"));
  EXPECT_THAT(Value(clients[1]->Keys("d")), IsEmpty());
}

TEST_P(StoreConformance, AppendCreatesAndLengthens) {
  auto clients = Open(2);
  ExpectOk(clients[0]->Append("key", "one,"));
  ExpectOk(clients[1]->Append("key", ""));
  ExpectOk(clients[1]->Append("key", std::string("t\0o", 3)));
  EXPECT_EQ(Value(clients[0]->Get("key", kTimeout)), std::string("one,t\0o", 7));
}

TEST_P(StoreConformance, AppendsFromManyThreadsAndClientsStayWhole) {
  auto clients = Open(4);
  RunThreads(8, [&](int i) {
    absl::Status status;
    for (int n = 0; n < 20 && status.ok(); ++n) {
      status = clients[i % 4]->Append("key", absl::StrCat("<", i, ".", n, ">;"));
    }
    return status;
  });
  Strings expected;
  for (int i = 0; i < 8; ++i) {
    for (int n = 0; n < 20; ++n) expected.push_back(absl::StrCat("<", i, ".", n, ">"));
  }
  Strings pieces = absl::StrSplit(Value(clients[0]->Get("key", kTimeout)), ';', absl::SkipEmpty());
  EXPECT_THAT(pieces, testing::UnorderedElementsAreArray(expected));
}

TEST_P(StoreConformance, MultiGetReturnsTheValuesInTheOrderOfTheKeys) {
  auto clients = Open(2);
  ExpectOk(clients[0]->MultiSet(Strings{"a", "b", "c"}, Strings{"1", "", "3"}));
  EXPECT_THAT(Value(clients[1]->MultiGet(Strings{"c", "a", "b", "c"}, kTimeout)),
              ElementsAre("3", "1", "", "3"));
}

TEST_P(StoreConformance, MultiSetOfUnequalLengthsIsRefusedAndChangesNothing) {
  auto store = Open();
  ExpectKind(store->MultiSet(Strings{"a", "b"}, Strings{"1"}), ErrorKind::kArgument);
  ExpectKind(store->MultiSet(Strings{"a"}, Strings{"1", "2"}), ErrorKind::kArgument);
  EXPECT_THAT(Value(store->Keys("")), IsEmpty());
}

TEST_P(StoreConformance, MultiSetIsOneStepForAllWhoRead) {
  auto clients = Open(3);
  const Strings keys = {"left", "right"};
  ExpectOk(clients[0]->MultiSet(keys, Strings{"0", "0"}));
  RunThreads(3, [&](int i) -> absl::Status {
    for (int n = 0; n < 40; ++n) {
      if (i == 0) {
        SYNCLINE_RETURN_IF_ERROR(
            clients[0]->MultiSet(keys, Strings{absl::StrCat(n), absl::StrCat(n)}));
        continue;
      }
      SYNCLINE_ASSIGN_OR_RETURN(Strings values, clients[i]->MultiGet(keys, kTimeout));
      if (values[0] != values[1]) return absl::InternalError(absl::StrJoin(values, " != "));
    }
    return absl::OkStatus();
  });
}

TEST_P(StoreConformance, WhatALeavingClientSetStays) {
  auto clients = Open(2);
  ExpectOk(clients[1]->Set("key", "value"));
  clients.pop_back();
  EXPECT_EQ(Value(clients[0]->Get("key", kTimeout)), "value");
}

TEST_P(StoreConformance, TwoStoresShareNothing) {
  auto one = Open();
  auto two = Open();
  ExpectOk(one->Set("key", "value"));
  EXPECT_FALSE(Value(two->Check(Strings{"key"})));
}

// `store` as what it can besides, or an error of kind kUnsupported.
absl::StatusOr<ExtendedStore*> Extended(const std::shared_ptr<Store>& store) {
  return ExtendedStore::Of(*store);
}

TEST_P(StoreConformance, WhatItLacksIsUnsupported) {
  auto store = Open();
  auto extended = Extended(store);
  const auto push = [&] {
    return extended.ok() ? (*extended)->QueuePush("q", "v") : extended.status();
  };
  const auto clone = [&] {
    return extended.ok() ? (*extended)->Clone().status() : extended.status();
  };
  if (GetParam().extension == StoreCase::Extension::kQueues) {
    ExpectOk(push());
  } else {
    ExpectKind(push(), ErrorKind::kUnsupported);
  }
  if (GetParam().extension == StoreCase::Extension::kNone) {
    ExpectKind(clone(), ErrorKind::kUnsupported);
  } else {
    ExpectOk(clone());
  }
}

TEST_P(StoreConformance, ACloneHasTheContentsAndATimeoutOfItsOwn) {
  if (GetParam().extension == StoreCase::Extension::kNone) GTEST_SKIP() << "it has no clones";
  auto store = Open();
  (*Extended(store))->set_timeout(kTimeout);
  std::shared_ptr<Store> clone = Value((*Extended(store))->Clone());
  (*Extended(clone))->set_timeout(absl::Seconds(7));
  EXPECT_EQ(store->timeout(), kTimeout);
  EXPECT_EQ(clone->timeout(), absl::Seconds(7));
  ExpectOk(clone->Set("key", "value"));
  EXPECT_EQ(Value(store->Get("key", kTimeout)), "value");
  store.reset();
  if (!clone->is_hosted_here() && clone->address().empty()) {
    EXPECT_EQ(Value(clone->Get("key", kTimeout)), "value");
  }
}

TEST_P(StoreConformance, AQueueIsInTheOrderOfItsPushes) {
  if (GetParam().extension != StoreCase::Extension::kQueues) GTEST_SKIP() << "it has no queues";
  auto clients = Open(2);
  ExtendedStore& writer = **Extended(clients[0]);
  ExtendedStore& reader = **Extended(clients[1]);
  EXPECT_EQ(Value(reader.QueueTryPop("q")), std::nullopt);
  ExpectOk(writer.QueuePush("q", "first"));
  ExpectOk(writer.QueuePush("q", ""));
  EXPECT_EQ(Value(reader.QueueLength("q")), 2);
  EXPECT_TRUE(Value(reader.Check(Strings{"q"})));
  EXPECT_THAT(Value(reader.Keys("")), IsEmpty());
  ExpectOk(reader.Wait(Strings{"q"}, kTimeout));
  EXPECT_EQ(Value(reader.QueuePop("q", kTimeout)), "first");
  EXPECT_EQ(Value(reader.QueueTryPop("q")), "");
  EXPECT_FALSE(Value(reader.Check(Strings{"q"})));
  EXPECT_EQ(Value(reader.QueueLength("q")), 0);
  ExpectKind(reader.QueuePop("q", kMoment).status(), ErrorKind::kTimeout);
  ExpectKind(writer.QueuePush("", "v"), ErrorKind::kArgument);
}

TEST_P(StoreConformance, EachValueOfAQueueGoesToOnePop) {
  if (GetParam().extension != StoreCase::Extension::kQueues) GTEST_SKIP() << "it has no queues";
  constexpr int kClients = 4, kValues = 100;
  auto clients = Open(kClients);
  absl::Mutex mutex;
  std::multiset<std::string> popped;
  RunThreads(2 * kClients, [&](int i) -> absl::Status {
    ExtendedStore& queues = **Extended(clients[i % kClients]);
    for (int n = 0; n < kValues; ++n) {
      if (i < kClients) {
        SYNCLINE_RETURN_IF_ERROR(queues.QueuePush("q", absl::StrCat(i, "/", n)));
      } else {
        SYNCLINE_ASSIGN_OR_RETURN(std::string value, queues.QueuePop("q", kTimeout));
        absl::MutexLock lock(&mutex);
        popped.insert(std::move(value));
      }
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(popped.size(), kClients * kValues);
  EXPECT_EQ(std::set<std::string>(popped.begin(), popped.end()).size(), kClients * kValues);
}

TEST_P(StoreConformance, APopThatGaveUpTakesNothing) {
  if (GetParam().extension != StoreCase::Extension::kQueues) GTEST_SKIP() << "it has no queues";
  auto clients = Open(2);
  ExpectKind((*Extended(clients[1]))->QueuePop("q", kMoment).status(), ErrorKind::kTimeout);
  ExpectOk((*Extended(clients[0]))->QueuePush("q", "kept"));
  EXPECT_EQ(Value((*Extended(clients[0]))->QueueTryPop("q")), "kept");
}

}  // namespace
}  // namespace syncline
