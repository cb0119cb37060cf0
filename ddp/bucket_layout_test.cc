#include "ddp/bucket_layout.h"

#include <sys/wait.h>
#include <unistd.h>

#include "core/tensor/shared_place.h"
#include "gtest/gtest.h"

namespace syncline::ddp {
namespace {

constexpr int64_t kCount = 8 << 20;  // Of a bucket that other ranks read directly.

TEST(BucketLayoutTest, AForkedChildHasGradientsOfItsOwn) {
  const Tensor parameter(nullptr, DType::kFloat32, {kCount});
  const BucketLayout layout = Allocate({{0}}, {parameter}).value();
  auto* const gradient = layout.gradients[0].data_as<float>();
  ASSERT_TRUE(tensor::FindShared(gradient, layout.gradients[0].nbytes()).has_value());
  gradient[0] = gradient[kCount - 1] = 1;
  const pid_t child = fork();
  if (child == 0) {
    const bool sees_them = gradient[0] == 1 && gradient[kCount - 1] == 1;
    gradient[0] = gradient[kCount - 1] = 2;
    _exit(sees_them ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(gradient[0], 1);
  EXPECT_EQ(gradient[kCount - 1], 1);
}

}  // namespace
}  // namespace syncline::ddp
