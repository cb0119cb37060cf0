// Errors: absl::Status, with the kind that bindings turn into typed exceptions. Pure functions, for
// any thread.
#ifndef SYNCLINE_STATUS_H_
#define SYNCLINE_STATUS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline {

// What went wrong, seen from the user. Python raises, and Java throws, one type for each.
enum class ErrorKind {
  kArgument,     // ValueError: a value the call does not accept.
  kType,         // TypeError: an object of a kind the call does not accept.
  kTimeout,      // DistTimeoutError
  kNetwork,      // DistNetworkError: a connection could not be made or was lost.
  kStore,        // DistStoreError
  kBackend,      // DistBackendError: a backend failed, or its group is broken or closed.
  kMismatch,     // DistMismatchError: ranks called different operations.
  kUnsupported,  // NotImplementedError: outside the backend's capabilities.
  kInternal,     // DistError
};

absl::Status ArgumentError(absl::string_view message);     // INVALID_ARGUMENT
absl::Status TypeError(absl::string_view message);         // INVALID_ARGUMENT
absl::Status TimeoutError(absl::string_view message);      // DEADLINE_EXCEEDED
absl::Status NetworkError(absl::string_view message);      // UNAVAILABLE
absl::Status StoreError(absl::string_view message);        // FAILED_PRECONDITION
absl::Status BackendError(absl::string_view message);      // ABORTED
absl::Status MismatchError(absl::string_view message);     // FAILED_PRECONDITION
absl::Status UnsupportedError(absl::string_view message);  // UNIMPLEMENTED

// The one of these for `kind`; INTERNAL for kInternal.
absl::Status ErrorOfKind(ErrorKind kind, absl::string_view message);

// The kind that one of the functions above gave `status`; for a status made elsewhere, the kind
// that fits its code. kInternal for OK.
ErrorKind KindOf(const absl::Status& status);

// The same error, its message preceded by "`context`: ". OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace syncline

// Leaves the function with the error of `expr`, if it has one.
#define SYNCLINE_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    absl::Status syncline_status_ = (expr);              \
    if (!syncline_status_.ok()) return syncline_status_; \
  } while (false)

// Assigns the value of `expr`, an absl::StatusOr, to `lhs`, or leaves with its error.
#define SYNCLINE_ASSIGN_OR_RETURN(lhs, expr) \
  SYNCLINE_ASSIGN_OR_RETURN_IMPL_(SYNCLINE_CONCAT_(syncline_statusor_, __LINE__), lhs, expr)
#define SYNCLINE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = *std::move(tmp)
#define SYNCLINE_CONCAT_(a, b) SYNCLINE_CONCAT_IMPL_(a, b)
#define SYNCLINE_CONCAT_IMPL_(a, b) a##b

#endif  // SYNCLINE_STATUS_H_
