#include "core/base/hmac.h"

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace syncline::base {
namespace {

TEST(HmacTest, TheVectorOfRfc4231Holds) {
  EXPECT_EQ(absl::BytesToHexString(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HmacSha256("", "").size(), kHmacBytes);
}

TEST(HmacTest, RandomBytesDoNotRepeat) {
  EXPECT_EQ(RandomBytes(16).size(), 16u);
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
}

TEST(HmacTest, BytesAreTheSameOnlyIfAllAre) {
  EXPECT_TRUE(SameBytes("abc", "abc"));
  EXPECT_FALSE(SameBytes("abc", "abd"));
  EXPECT_FALSE(SameBytes("abc", "ab"));
  EXPECT_TRUE(SameBytes("", ""));
}

}  // namespace
}  // namespace syncline::base
