// SegmentHandle: says where a segment of one process is, so that others can open it.
#ifndef SYNCLINE_CORE_TENSOR_SEGMENT_HANDLE_H_
#define SYNCLINE_CORE_TENSOR_SEGMENT_HANDLE_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/segment.h"

namespace syncline::tensor {

// A segment, by the process that has it open, its owner, and the descriptor there. A value. Its
// fields as text are those of docs/internals/shared_handle.md.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const SegmentHandle handle, SegmentHandle::Make(descriptor));
//   Send(absl::StrJoin(handle.Fields(), ","));
//   // In another process:
//   SYNCLINE_ASSIGN_OR_RETURN(const SegmentHandle handle, SegmentHandle::Parse(fields));
//   SYNCLINE_ASSIGN_OR_RETURN(const int descriptor, handle.Open());
struct SegmentHandle {
  static constexpr size_t kFields = 9;

  // That of a descriptor of the calling process. BackendError if the kernel does not say what it
  // is.
  static absl::StatusOr<SegmentHandle> Make(int descriptor);

  // ArgumentError, which says which field is wrong.
  static absl::StatusOr<SegmentHandle> Parse(absl::Span<const absl::string_view> fields);
  std::vector<std::string> Fields() const;

  // A descriptor of the segment, which is the caller's. BackendError that names the owner's pid if
  // it has ended, has closed the descriptor, is of another host, pid namespace or user, or may not
  // be looked into.
  absl::StatusOr<int> Open() const;

  std::string boot_id;
  std::string pid_namespace;  // Its number; "-" if it is not known.
  uint64_t user = 0;          // The owner's effective user id.
  int pid = 0;                // The owner's.
  int64_t started = 0;        // When it began: see base::ProcessState.
  int descriptor = 0;         // The owner's.
  Segment::Identity identity;
  size_t size = 0;
};

// The number that decimal digits, and nothing else, say; nothing if it is larger than `most`.
std::optional<uint64_t> ParseDigits(absl::string_view text,
                                    uint64_t most = std::numeric_limits<uint64_t>::max());

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_SEGMENT_HANDLE_H_
