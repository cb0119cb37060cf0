#include "store/common/listen_address.h"

#include <cerrno>

#include "core/base/errno_payload.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::store {
namespace {

TEST(ListenTest, AnErrorHasTheErrnoOfItsCall) {
  const auto remote = Listen("192.0.2.1", 0);  // RFC 5737: in documentation only.
  EXPECT_EQ(KindOf(remote.status()), ErrorKind::kNetwork) << remote.status();
  EXPECT_EQ(base::ErrnoOf(remote.status()), EADDRNOTAVAIL) << remote.status();
  EXPECT_EQ(WithoutAdvice(remote.status().message()),
            "cannot listen on 192.0.2.1:0: this host does not have that address");

  const auto first = Listen("127.0.0.1", 0);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Listen("127.0.0.1", first->port);
  EXPECT_EQ(KindOf(second.status()), ErrorKind::kNetwork) << second.status();
  EXPECT_EQ(base::ErrnoOf(second.status()), EADDRINUSE) << second.status();
}

}  // namespace
}  // namespace syncline::store
