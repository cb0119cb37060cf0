#include "core/base/errno_payload.h"

#include <cerrno>

#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

TEST(ErrnoPayloadTest, AnErrorHasTheErrnoThatItWasGiven) {
  const absl::Status status = WithErrno(NetworkError("cannot connect"), ECONNREFUSED);
  EXPECT_EQ(ErrnoOf(status), ECONNREFUSED);
  EXPECT_EQ(ErrnoOf(Annotate(status, "rank 1")), ECONNREFUSED);
  EXPECT_EQ(KindOf(status), ErrorKind::kNetwork);
}

TEST(ErrnoPayloadTest, WhatThisHostLacksIsItsOwnFault) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOBUFS}) {
    EXPECT_TRUE(IsOwnShortage(Annotate(WithErrno(NetworkError("no socket"), error), "rank 1")));
  }
  EXPECT_FALSE(IsOwnShortage(WithErrno(NetworkError("cannot connect"), ECONNREFUSED)));
  EXPECT_FALSE(IsOwnShortage(NetworkError("cannot connect")));
  EXPECT_FALSE(IsOwnShortage(absl::OkStatus()));
}

TEST(ErrnoPayloadTest, OtherErrorsHaveNone) {
  EXPECT_EQ(ErrnoOf(NetworkError("Connection refused")), 0);
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), 0);
  EXPECT_TRUE(WithErrno(absl::OkStatus(), ECONNREFUSED).ok());
}

}  // namespace
}  // namespace syncline::base
