#include "backends/shm/failure_cell.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "backends/common/call_description.h"
#include "core/base/origin_line.h"
#include "syncline/check.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::shm {
namespace {

// A live rank writes the record in less, though it may lose its core meanwhile: it is one copy of
// some KiB. Longer means that it died, or is stopped.
constexpr absl::Duration kWriteTimeout = absl::Milliseconds(500);

}  // namespace

absl::Status FailureCell::Fail(const absl::Status& cause) {
  // A long message loses its end rather than the origin, which is short. Made before others wait.
  std::string origin = SerializeOrigin(cause);
  if (origin.size() > sizeof(record_.text)) origin.clear();
  const absl::string_view text = cause.message().substr(0, sizeof(record_.text) - origin.size());
  uint32_t state = FailureRecord::kNone;
  // The exchange decides which of several ranks is the reporter. The others leave the record alone.
  if (record_.state.compare_exchange_strong(state, FailureRecord::kBeingWritten)) {
    std::memcpy(record_.text, text.data(), text.size());
    std::memcpy(record_.text + text.size(), origin.data(), origin.size());
    record_.size = static_cast<uint32_t>(text.size());
    record_.origin_size = static_cast<uint32_t>(origin.size());
    record_.kind = static_cast<uint32_t>(KindOf(cause));
    record_.reporter = static_cast<uint32_t>(peers_.rank());
    // Pairs with the acquire load in failure(): a reader of kWritten sees the fields above.
    record_.state.store(FailureRecord::kWritten, std::memory_order_release);
    // Before all that this rank's user writes once the call has returned. Pairs with the acquire
    // fence in CheckIntact.
    Fence(std::memory_order_release);
    for (int rank = 0; rank < layout_.size(); ++rank) {
      base::WakeAll(layout_.join_flag(rank).event);
      if (!layout_.has_joined(rank)) continue;  // Its region may have no memory.
      base::WakeAll(layout_.region(rank).collective_event);
      base::WakeAll(layout_.region(rank).progress_event);
      base::WakeAll(layout_.region(rank).rest_event);
      base::WakeAll(layout_.region(rank).message_event);
    }
  }
  const absl::Status first = failure();
  return first.ok() ? cause : first;
}

absl::Status FailureCell::failure() const {
  if (!has_failed()) return absl::OkStatus();
  const Deadline deadline(kWriteTimeout);
  // Pairs with the release store in Fail.
  while (record_.state.load(std::memory_order_acquire) != FailureRecord::kWritten) {
    if (deadline.Expired()) {
      return BackendError("a rank died while it wrote why the group has failed");
    }
    sched_yield();
  }
  // Of another process, which may be broken: an unknown kind is a BackendError, and ranks that the
  // group does not have are dropped. What is parsed is a copy, which that process cannot change.
  const uint32_t kind = record_.kind;
  const bool is_kind = kind <= static_cast<uint32_t>(ErrorKind::kInternal);
  const size_t size = std::min<size_t>(record_.size, sizeof(record_.text));
  const size_t origin_size = std::min<size_t>(record_.origin_size, sizeof(record_.text) - size);
  const std::string text(record_.text, size + origin_size);
  absl::Status cause = ErrorOfKind(is_kind ? static_cast<ErrorKind>(kind) : ErrorKind::kBackend,
                                   absl::string_view(text).substr(0, size));
  absl::optional<ErrorOrigin> origin = base::ParseOriginInGroup(
      absl::string_view(text).substr(size), peers_.NumberOf(peers_.size() - 1) + 1);
  return origin.has_value() ? WithOrigin(std::move(cause), *std::move(origin)) : cause;
}

absl::Status FailureCell::ObserveFailure(const CallContext& context) const {
  SYNCLINE_DCHECK(has_failed());
  const absl::Status status = failure();
  const int reporter = static_cast<int>(record_.reporter);
  if (reporter < 0 || reporter >= peers_.size()) return status;
  if (reporter == peers_.rank() || KindOf(status) != ErrorKind::kTimeout) return status;
  const backends::CallDescription call(context);
  return WithOperation(
      Annotate(status, absl::StrCat(call.ToString(), ": ", peers_.Describe(reporter), " reported")),
      call.OperationOf(peers_.NumberOf(peers_.rank())));
}

}  // namespace syncline::shm
