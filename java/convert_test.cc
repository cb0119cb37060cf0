#include "java/convert.h"

#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io_syncline_NativeMemory.h"
#include "java/fake_jvm.h"
#include "java/jvm.h"
#include "syncline/dtype.h"

namespace syncline::java {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr jint kLongest = std::numeric_limits<jint>::max();

// A JVM that has loaded the library.
class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() { EXPECT_EQ(JNI_OnLoad(jvm_.vm(), nullptr), JNI_VERSION_10); }
  ~ConvertTest() override { EXPECT_THAT(jvm_.misused, IsEmpty()); }

  std::string Pending() const {
    return jvm_.pending == nullptr ? "none" : jvm_.pending->class_name + ": " + jvm_.pending->text;
  }

  FakeJvm jvm_;
  JNIEnv* const env_ = jvm_.env();
};

TEST(LoadTest, AClassThatIsMissingIsTheErrorOfLoadingAndNothingElseIsLookedUp) {
  for (const char* name : {"[B", "io/syncline/Tensor", "io/syncline/DistException",
                           "java/lang/OutOfMemoryError", "io/syncline/WorkFuture"}) {
    FakeJvm jvm;
    jvm.missing_class = name;
    EXPECT_EQ(JNI_OnLoad(jvm.vm(), nullptr), JNI_ERR) << name;
    EXPECT_THAT(jvm.misused, IsEmpty()) << name;
    ASSERT_NE(jvm.pending, nullptr) << name;
    EXPECT_EQ(jvm.pending->text, name);
  }
}

TEST_F(ConvertTest, ArgumentsAreConvertedInOrderAndTheResultHandedBack) {
  const auto convert = [&] {
    return std::tuple{FromJava<int64_t>(env_, jlong{40}), FromJava<bool>(env_, jboolean{JNI_TRUE})};
  };
  const jlong sum =
      Call<int64_t>(env_, convert, [](int64_t a, bool b) -> int64_t { return a + 2 * b; });
  EXPECT_EQ(sum, 42);
  EXPECT_EQ(Call<bool>(env_, [] { return true; }), JNI_TRUE);
  EXPECT_EQ(Pending(), "none");
}

TEST_F(ConvertTest, WantOfMemoryForAnArgumentIsAnOutOfMemoryErrorAndNoCall) {
  bool called = false;
  const auto convert = []() -> std::tuple<std::string> { throw std::bad_alloc(); };
  Call<void>(env_, convert, [&](const std::string&) { called = true; });
  EXPECT_FALSE(called);
  EXPECT_THAT(Pending(), HasSubstr("java/lang/OutOfMemoryError: no memory outside the heap"));
}

TEST_F(ConvertTest, AnExceptionOfJavaAmongTheArgumentsMeansNoCall) {
  bool called = false;
  const auto convert = [&] {
    env_->ThrowNew(GetJvm().thread, "first");
    jobject keys = jvm_.New({"byte[][]"});
    return std::tuple{FromJava<std::vector<Bytes>>(env_, static_cast<jobjectArray>(keys))};
  };
  Call<void>(env_, convert, [&](const std::vector<std::string>&) { called = true; });
  EXPECT_FALSE(called);
  EXPECT_THAT(Pending(), HasSubstr("first"));
}

TEST_F(ConvertTest, WhatCppThrowsIsADistExceptionWithItsMessage) {
  Call<void>(env_, [] { throw std::runtime_error("no more threads"); });
  EXPECT_EQ(Pending(), "io/syncline/DistException: no more threads");
}

TEST_F(ConvertTest, AnErrorOfACallIsThrownByItsKind) {
  EXPECT_EQ(Call<Bytes>(env_,
                        []() -> absl::StatusOr<std::string> {
                          return absl::DeadlineExceededError("too late");
                        }),
            nullptr);
  EXPECT_EQ(Pending(), "kind 2: too late");
}

TEST_F(ConvertTest, AValueThatNoArrayHoldsIsUnsupportedAndSaysHowLongItIs) {
  const absl::string_view value("", size_t{1} << 31);  // Never read.
  EXPECT_EQ(NewByteArray(env_, value), nullptr);
  EXPECT_THAT(Pending(), HasSubstr("kind 7: "));
  EXPECT_THAT(Pending(), HasSubstr("2147483648"));
}

TEST_F(ConvertTest, AnArrayMayHaveAsManyElementsAsAnIntCounts) {
  EXPECT_EQ(ArrayLength(env_, 0), 0);
  EXPECT_EQ(ArrayLength(env_, kLongest), kLongest);
  EXPECT_EQ(Pending(), "none");
  EXPECT_FALSE(ArrayLength(env_, std::numeric_limits<size_t>::max()).has_value());
}

TEST_F(ConvertTest, TheLongestArrayIsCopiedPieceByPieceToItsEnd) {
  jobject array = jvm_.New({"byte[]", "", kLongest});
  Java_io_syncline_NativeMemory_copyIn(env_, nullptr, array, static_cast<jint>(DType::kInt8),
                                       reinterpret_cast<jlong>(this));
  int64_t next = 0;
  for (const auto& [first, count] : jvm_.regions) {
    ASSERT_EQ(first, next);
    ASSERT_GT(count, 0);
    next += count;
  }
  EXPECT_EQ(next, kLongest);
}

}  // namespace
}  // namespace syncline::java
