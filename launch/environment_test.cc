#include "launch/environment.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncline::launch {
namespace {

using testing::Contains;
using testing::Key;
using testing::Not;
using testing::Pair;

TEST(EnvironmentTest, WorkersDoNotInheritThePasswordOfTheRendezvous) {
  for (const char* name : {"SYNCLINE_RDZV_CONF", "PET_RDZV_CONF"}) {
    Environment environment = {{name, "user=u,password=secret"}, {"OTHER", "password=own"}};
    DescribeJob(JobFacts(), WorkerFacts(), &environment);
    EXPECT_THAT(environment, Not(Contains(Key(name))));
    EXPECT_THAT(environment, Contains(Pair("OTHER", "password=own")));
  }
}

TEST(EnvironmentTest, WhatSetsNoPasswordIsInherited) {
  Environment environment = {{"PET_RDZV_CONF", "join_timeout=9,password_file=f"}};
  DescribeJob(JobFacts(), WorkerFacts(), &environment);
  EXPECT_THAT(environment, Contains(Key("PET_RDZV_CONF")));
}

TEST(EnvironmentTest, FilesAreTheWorkersOwnAndNeverInherited) {
  Environment environment = {{"SYNCLINE_STALL_FILE", "of another job"},
                             {"SYNCLINE_HEARTBEAT_FILE", "of another job"}};
  WorkerFacts worker;
  worker.stall_file = "stalls";
  DescribeJob(JobFacts(), worker, &environment);
  EXPECT_THAT(environment, Contains(Pair("SYNCLINE_STALL_FILE", "stalls")));
  EXPECT_THAT(environment, Not(Contains(Key("SYNCLINE_HEARTBEAT_FILE"))));
}

}  // namespace
}  // namespace syncline::launch
