// Tensors in memory that the other processes of this host can map, so that collectives between
// ranks of one host read them where they are.
#ifndef SYNCLINE_SHARED_MEMORY_H_
#define SYNCLINE_SHARED_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline {

// Whether a child of fork shares the elements with its parent or has its own. Its own are copied
// when it first writes them; until then it sees the parent's writes.
enum class AfterFork { kShared, kOwn };

// A new tensor on the CPU, its elements zero, in a segment of its own, which begins on a page and
// is freed with the last view. It uses one file descriptor. Views and arrays that share its bytes,
// such as NumPy's, count as shared too. Thread-safe, as all functions here. ArgumentError for an
// impossible shape; BackendError with sizes if there is not so much memory.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Tensor gradients, EmptyShared(DType::kFloat32, {1 << 24}));
//   SYNCLINE_RETURN_IF_ERROR(group->AllReduce(gradients));  // Ranks of this host read it directly.
absl::StatusOr<Tensor> EmptyShared(DType dtype, absl::Span<const int64_t> shape,
                                   AfterFork after_fork = AfterFork::kShared);

// A short text without spaces by which other processes of this user, host and pid namespace open
// the same memory, in C++, Python and Java: see docs/internals/shared_handle.md. It is good as long
// as this process runs and keeps the memory; a process that has opened it keeps the memory itself.
// The elements of a contiguous, writable tensor that EmptyShared or OpenShared has made, or of a
// part of one. ArgumentError for another tensor.
//
//   SYNCLINE_ASSIGN_OR_RETURN(const std::string handle, SharedHandle(gradients));
//   // In another process, which sees what is written here, and the other way round:
//   SYNCLINE_ASSIGN_OR_RETURN(const Tensor gradients, OpenShared(handle));
absl::StatusOr<std::string> SharedHandle(const Tensor& tensor);

// The tensor of a handle. It takes one file descriptor for each memory. ArgumentError for what is
// no handle. BackendError that names the pid of the process that made it if that has ended or has
// freed the memory, is of another host, pid namespace or user, or may not be looked into; the bytes
// of other memory never.
absl::StatusOr<Tensor> OpenShared(absl::string_view handle);

}  // namespace syncline

#endif  // SYNCLINE_SHARED_MEMORY_H_
