// A program that is linked without any backend.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/backend_registry.h"

namespace syncline {
namespace {

using ::testing::HasSubstr;

TEST(NoBackendsTest, TheErrorSaysWhatBringsThem) {
  const absl::Status status = BackendRegistry::Find("auto").status();
  EXPECT_THAT(status.message(), HasSubstr("linked with no backend"));
  EXPECT_THAT(status.message(), HasSubstr("@syncline//:syncline"));
}

}  // namespace
}  // namespace syncline
