#include "syncline/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/types/optional.h"
#include "gtest/gtest.h"

namespace syncline {
namespace {

absl::Status Fail(absl::string_view message) { return StoreError(message); }

TEST(StatusTest, EachErrorHasItsKindAndCode) {
  const struct {
    absl::Status status;
    ErrorKind kind;
    absl::StatusCode code;
  } cases[] = {
      {ArgumentError("m"), ErrorKind::kArgument, absl::StatusCode::kInvalidArgument},
      {TypeError("m"), ErrorKind::kType, absl::StatusCode::kInvalidArgument},
      {TimeoutError("m"), ErrorKind::kTimeout, absl::StatusCode::kDeadlineExceeded},
      {NetworkError("m"), ErrorKind::kNetwork, absl::StatusCode::kUnavailable},
      {StoreError("m"), ErrorKind::kStore, absl::StatusCode::kFailedPrecondition},
      {BackendError("m"), ErrorKind::kBackend, absl::StatusCode::kAborted},
      {MismatchError("m"), ErrorKind::kMismatch, absl::StatusCode::kFailedPrecondition},
      {UnsupportedError("m"), ErrorKind::kUnsupported, absl::StatusCode::kUnimplemented},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(KindOf(c.status), c.kind) << c.status;
    EXPECT_EQ(c.status.code(), c.code) << c.status;
    EXPECT_EQ(c.status.message(), "m");
  }
}

TEST(StatusTest, AStatusMadeElsewhereHasTheKindThatFitsItsCode) {
  EXPECT_EQ(KindOf(absl::InvalidArgumentError("")), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(absl::NotFoundError("")), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(absl::DeadlineExceededError("")), ErrorKind::kTimeout);
  EXPECT_EQ(KindOf(absl::UnavailableError("")), ErrorKind::kNetwork);
  EXPECT_EQ(KindOf(absl::AbortedError("")), ErrorKind::kBackend);
  EXPECT_EQ(KindOf(absl::UnimplementedError("")), ErrorKind::kUnsupported);
  EXPECT_EQ(KindOf(absl::InternalError("")), ErrorKind::kInternal);
  EXPECT_EQ(KindOf(absl::UnknownError("")), ErrorKind::kInternal);
}

TEST(StatusTest, AKindThatThisVersionDoesNotKnowIsNotBelieved) {
  for (const char* kind : {"99", "-1", "", "x"}) {
    absl::Status status = StoreError("m");
    status.ForEachPayload([&status, kind](absl::string_view url, const absl::Cord&) {
      status.SetPayload(url, absl::Cord(kind));
    });
    EXPECT_EQ(KindOf(status), ErrorKind::kInternal) << kind;
  }
}

TEST(StatusTest, AnnotateKeepsCodeKindAndPayloads) {
  absl::Status status = MismatchError("ranks differ");
  status.SetPayload("other", absl::Cord("kept"));
  const absl::Status annotated = Annotate(status, "all_reduce #3");
  EXPECT_EQ(annotated.message(), "all_reduce #3: ranks differ");
  EXPECT_EQ(annotated.code(), status.code());
  EXPECT_EQ(KindOf(annotated), ErrorKind::kMismatch);
  ASSERT_TRUE(annotated.GetPayload("other").has_value());
  EXPECT_EQ(std::string(*annotated.GetPayload("other")), "kept");
}

TEST(StatusTest, AnnotateLeavesOkAlone) { EXPECT_TRUE(Annotate(absl::OkStatus(), "context").ok()); }

TEST(StatusTest, TheMacrosLeaveWithTheErrorAndElseGoOn) {
  const auto f = [](absl::StatusOr<int> input, const absl::Status& check) -> absl::StatusOr<int> {
    SYNCLINE_RETURN_IF_ERROR(check);
    SYNCLINE_ASSIGN_OR_RETURN(const int value, std::move(input));
    return value + 1;
  };
  EXPECT_EQ(*f(1, absl::OkStatus()), 2);
  EXPECT_EQ(f(Fail("value"), absl::OkStatus()).status(), Fail("value"));
  EXPECT_EQ(f(1, Fail("check")).status(), Fail("check"));
}

}  // namespace
}  // namespace syncline
