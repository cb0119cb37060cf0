#include "core/base/errno_payload.h"

#include <cerrno>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace syncline::base {
namespace {

constexpr absl::string_view kErrnoUrl = "syncline/errno";

}  // namespace

absl::Status WithErrno(absl::Status status, int error) {
  if (!status.ok()) status.SetPayload(kErrnoUrl, absl::Cord(absl::StrCat(error)));
  return status;
}

int ErrnoOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kErrnoUrl);
  int error = 0;
  return payload.has_value() && absl::SimpleAtoi(std::string(*payload), &error) ? error : 0;
}

bool IsOwnShortage(const absl::Status& status) {
  switch (ErrnoOf(status)) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOBUFS:
      return true;
    default:
      return false;
  }
}

}  // namespace syncline::base
