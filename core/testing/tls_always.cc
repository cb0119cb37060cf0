// Every test that this is linked into runs with TLS, and so do the processes that it starts: the
// job's secret is in a file of the first one.
#include <stdlib.h>

#include <optional>

#include "core/testing/tls_environment.h"
#include "core/tls/context.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

class Always {
 public:
  Always() {
    if (getenv("SYNCLINE_TLS") == nullptr) environment_.emplace().Set(tls::Mode::kSecret);
  }

 private:
  std::optional<TlsEnvironment> environment_;
};

const Always always;

TEST(TlsAlwaysTest, IsOn) {
  const auto context = tls::Context::FromEnvironment();
  ASSERT_TRUE(context.ok()) << context.status();
  ASSERT_NE(*context, nullptr);
  EXPECT_EQ((*context)->mode(), tls::Mode::kSecret);
}

}  // namespace
}  // namespace syncline
