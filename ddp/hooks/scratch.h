// Memory that a hook uses for one bucket after another.
#ifndef SYNCLINE_DDP_HOOKS_SCRATCH_H_
#define SYNCLINE_DDP_HOOKS_SCRATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/stream.h"
#include "syncline/tensor.h"

namespace syncline::ddp {

// Large pieces lie in memory that the ranks of a host can read directly.
class Scratch {
 public:
  // `count` elements of any value, good until the next call. On a device they are for the current
  // stream, the same in all calls until Leave; the scratch may go once that is done with them.
  absl::StatusOr<Tensor> Take(DType dtype, int64_t count, const Device& device = {});

  // Lets go of memory on a device, which stays until its stream, which must still be there, is done
  // with it: later calls are for another stream.
  void Leave();

 private:
  Stream stream_;  // That of a device's memory.
  Tensor memory_;  // Bytes.
};

}  // namespace syncline::ddp

#endif  // SYNCLINE_DDP_HOOKS_SCRATCH_H_
