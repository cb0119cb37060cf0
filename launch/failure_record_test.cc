#include "launch/failure_record.h"

#include <signal.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

using testing::HasSubstr;
using testing::Not;
using Record = WorkerExit::Record;

FailureRecord Failure(int rank, Record record, int signal, double time) {
  FailureRecord failure;
  failure.rank = rank;
  failure.record = record;
  failure.signal = signal;
  failure.code = signal == 0 ? 1 : 0;
  failure.time = absl::UnixEpoch() + absl::Seconds(time);
  return failure;
}

TEST(FailureRecordTest, ComesBackFromJsonAsItWas) {
  FailureRecord sent = Failure(7, Record::kError, SIGKILL, 1700000000.25);
  sent.local_rank = 3;
  sent.host = "box";
  sent.pid = 4242;
  sent.after = absl::Milliseconds(1500);
  sent.round = 2;
  sent.restarts = 1;
  sent.max_restarts = 4;
  sent.explanation = "memory";
  sent.message = "ValueError: \"x\"\nsecond line";
  sent.last_lines = {"a", "", "c"};
  sent.log = "/logs/stderr.log";
  sent.also_failed = {"rank 8 (exit code 1)"};
  sent.stopped = {"rank 9 (SIGTERM)"};
  const std::string json = ToJson(sent);
  EXPECT_THAT(json, Not(HasSubstr("\n")));
  const absl::StatusOr<FailureRecord> got = FailureFromJson(json);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(ToJson(*got), json);
  EXPECT_EQ(got->time, sent.time);
  EXPECT_EQ(got->after, sent.after);
  EXPECT_EQ(got->record, Record::kError);
  EXPECT_EQ(got->last_lines, sent.last_lines);
  EXPECT_EQ(got->ShellCode(), 137);
}

TEST(FailureRecordTest, BytesThatAreNoTextDoNotSpoilTheJson) {
  FailureRecord sent;
  sent.last_lines = {std::string("a\0b\xff\xfe", 5)};
  sent.message = "\xc3";
  const absl::StatusOr<FailureRecord> got = FailureFromJson(ToJson(sent));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->last_lines[0].substr(0, 3), std::string("a\0b", 3));
}

TEST(FailureRecordTest, FieldsThatAreMissingOrUnknownAreNoErrors) {
  const absl::StatusOr<FailureRecord> got = FailureFromJson(R"({"rank": 3, "future": [1]})");
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->rank, 3);
  EXPECT_EQ(got->record, Record::kNone);
}

TEST(FailureRecordTest, AnythingElseIsAnErrorThatSaysWhat) {
  for (const char* text : {"", "[]", "3", "{", "null"}) {
    EXPECT_FALSE(FailureFromJson(text).ok()) << text;
  }
  EXPECT_THAT(FailureFromJson(R"({"rank": "3"})").status().message(), HasSubstr("rank"));
  EXPECT_THAT(FailureFromJson(R"({"last_lines": 1})").status().message(), HasSubstr("last_lines"));
}

TEST(FailureRecordTest, WhatExplainsItselfComesBeforeABareCodeAndThatBeforeAPeersReport) {
  const FailureRecord killed = Failure(3, Record::kNone, SIGKILL, 9);
  const FailureRecord recorded = Failure(2, Record::kError, 0, 8);
  const FailureRecord bare = Failure(1, Record::kNone, 0, 2);
  const FailureRecord peer = Failure(0, Record::kPeerError, 0, 1);
  EXPECT_TRUE(IsLikelierCause(recorded, killed));
  EXPECT_TRUE(IsLikelierCause(killed, bare));
  EXPECT_TRUE(IsLikelierCause(bare, peer));
  EXPECT_FALSE(IsLikelierCause(peer, killed));
}

TEST(FailureRecordTest, AllNodesAgreeOnTheOrderOfSimultaneousFailures) {
  const FailureRecord low = Failure(1, Record::kError, 0, 5);
  const FailureRecord high = Failure(2, Record::kError, 0, 5);
  EXPECT_TRUE(IsLikelierCause(low, high));
  EXPECT_FALSE(IsLikelierCause(high, low));
  EXPECT_FALSE(IsLikelierCause(low, low));
}

}  // namespace
}  // namespace syncline
