// Restricts a worker to one accelerator: --virtual-local-rank.
#ifndef SYNCLINE_LAUNCH_DEVICES_H_
#define SYNCLINE_LAUNCH_DEVICES_H_

#include "absl/status/status.h"
#include "launch/environment.h"

namespace syncline::launch {

// Changes `environment` so that the worker sees one device only, as its device 0, and LOCAL_RANK=0.
// CUDA_VISIBLE_DEVICES is reduced to its entry `local_rank`, or set to `local_rank` if it is not
// there; HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES and ASCEND_RT_VISIBLE_DEVICES are reduced where
// they are set. ArgumentError names a list that is too short. Thread-safe.
absl::Status ShowOneDevice(int local_rank, Environment* environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_DEVICES_H_
