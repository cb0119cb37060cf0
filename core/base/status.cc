#include "syncline/status.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace syncline {
namespace {

// The payload that carries the ErrorKind, as its number.
constexpr absl::string_view kKindUrl = "syncline/error-kind";

absl::StatusCode CodeOf(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kArgument:
    case ErrorKind::kType:
      return absl::StatusCode::kInvalidArgument;
    case ErrorKind::kTimeout:
      return absl::StatusCode::kDeadlineExceeded;
    case ErrorKind::kNetwork:
      return absl::StatusCode::kUnavailable;
    case ErrorKind::kStore:
    case ErrorKind::kMismatch:
      return absl::StatusCode::kFailedPrecondition;
    case ErrorKind::kBackend:
      return absl::StatusCode::kAborted;
    case ErrorKind::kUnsupported:
      return absl::StatusCode::kUnimplemented;
    case ErrorKind::kInternal:
      break;
  }
  return absl::StatusCode::kInternal;
}

ErrorKind KindOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
      return ErrorKind::kArgument;
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorKind::kTimeout;
    case absl::StatusCode::kUnavailable:
      return ErrorKind::kNetwork;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      return ErrorKind::kBackend;
    case absl::StatusCode::kUnimplemented:
      return ErrorKind::kUnsupported;
    default:
      return ErrorKind::kInternal;
  }
}

}  // namespace

absl::Status ArgumentError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kArgument, message);
}

absl::Status TypeError(absl::string_view message) { return ErrorOfKind(ErrorKind::kType, message); }

absl::Status TimeoutError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kTimeout, message);
}

absl::Status NetworkError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kNetwork, message);
}

absl::Status StoreError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kStore, message);
}

absl::Status BackendError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kBackend, message);
}

absl::Status MismatchError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kMismatch, message);
}

absl::Status UnsupportedError(absl::string_view message) {
  return ErrorOfKind(ErrorKind::kUnsupported, message);
}

absl::Status ErrorOfKind(ErrorKind kind, absl::string_view message) {
  absl::Status status(CodeOf(kind), message);
  status.SetPayload(kKindUrl, absl::Cord(absl::StrCat(static_cast<int>(kind))));
  return status;
}

ErrorKind KindOf(const absl::Status& status) {
  // Payloads may come from another version of Syncline: a number out of range is not believed.
  const absl::optional<absl::Cord> payload = status.GetPayload(kKindUrl);
  int kind = 0;
  if (payload.has_value() && absl::SimpleAtoi(std::string(*payload), &kind) && kind >= 0 &&
      kind <= static_cast<int>(ErrorKind::kInternal)) {
    return static_cast<ErrorKind>(kind);
  }
  return KindOfCode(status.code());
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

}  // namespace syncline
