// The kernels that Syncline brings along, for what NCCL does not do.
#ifndef SYNCLINE_CORE_DEVICE_KERNELS_H_
#define SYNCLINE_CORE_DEVICE_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "syncline/dtype.h"
#include "syncline/reduce_op.h"
#include "syncline/stream.h"

namespace syncline::device {

// A part of a copy of many: `bytes` bytes of device memory.
struct CopySpan {
  void* to;
  const void* from;
  size_t bytes;
};

// The kernels of one device. Each function enqueues its work on `stream`, of that device, and
// returns; memory stays until that has ended. Results are bitwise those of the host's kernels
// (core/tensor/reduce_kernels.h), for the same order of inputs. Thread-safe. BackendError with the
// driver's name of the error if a launch fails.
class Kernels {
 public:
  virtual ~Kernels() = default;

  // All copies in as few launches as their number allows: packs tensors into one buffer, or
  // unpacks them. The parts do not overlap.
  virtual absl::Status CopyMany(absl::Span<const CopySpan> copies, const Stream& stream) const = 0;

  // to[i] = inputs[0][i] op inputs[1][i] ..., in that order, float16 and bfloat16 computed in
  // float32. `to` may be one of the inputs. avg divides by the number of inputs. Requires
  // CheckReduction(dtype, op).ok(), no float8, and at least one input. UnsupportedError for more
  // than 4,000, which is what the parameters of one launch hold.
  virtual absl::Status Reduce(DType dtype, ReduceOp op, void* to,
                              absl::Span<const void* const> inputs, int64_t count,
                              const Stream& stream) const = 0;

  // Multiplies floats by `factor`, as premul_sum does; divides by `divisor`, as avg does.
  virtual absl::Status Scale(DType dtype, void* data, double factor, int64_t count,
                             const Stream& stream) const = 0;
  virtual absl::Status Divide(DType dtype, void* data, int divisor, int64_t count,
                              const Stream& stream) const = 0;

  // to[i] = from[i] in another floating type, rounded to nearest even: the compression of hooks.
  // Of float16, bfloat16, float32 and float64.
  virtual absl::Status Convert(DType to_dtype, void* to, DType from_dtype, const void* from,
                               int64_t count, const Stream& stream) const = 0;
};

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_KERNELS_H_
