// Compiles against the headers of the C++ API alone: Bazel refuses an #include of anything that
// //include:syncline does not name, and the linker a need for what is not inline in them.
#include <string>

#include "gtest/gtest.h"
#include "syncline/syncline.h"

namespace syncline {
namespace {

TEST(HeadersTest, DescribeACallWithoutTheLibrary) {
  const Tensor nothing;
  const Collective collective = Collective::AllReduce(nothing, ReduceOp::kMax);
  EXPECT_EQ(collective.kind, OpKind::kAllReduce);
  EXPECT_EQ(collective.reduce_op, ReduceOp::kMax);
  EXPECT_EQ(collective.tensor, &nothing);
  EXPECT_EQ(Completion(3).source(), 3);
}

TEST(HeadersTest, TheVersionIsWhatItsPartsAre) {
  const std::string parts = std::to_string(SYNCLINE_VERSION_MAJOR) + "." +
                            std::to_string(SYNCLINE_VERSION_MINOR) + "." +
                            std::to_string(SYNCLINE_VERSION_PATCH);
  EXPECT_EQ(SYNCLINE_VERSION, parts);
}

}  // namespace
}  // namespace syncline
