// Averages buckets in 8 bits.
#ifndef SYNCLINE_DDP_HOOKS_QUANTIZE_HOOK_H_
#define SYNCLINE_DDP_HOOKS_QUANTIZE_HOOK_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ddp/comm_hook.h"

namespace syncline {

// Both quantise gradients of float32 and float64 to 8 bits with a scale and a zero point (Jacob et
// al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
// Inference", CVPR 2018, section 2.1), gather the bytes of all ranks, and average what they stand
// for; other types are averaged as they are. Each rank receives a byte for every element and other
// rank, so this is less than an all-reduce of float32 among fewer than 8 ranks. Errors are at most
// the mean of the ranks' scales: (largest - smallest gradient) / 255. Bitwise equal on all ranks.

// One scale for the bucket.
std::shared_ptr<CommHook> QuantizePerTensorHook();

// One scale for each `block_size` elements in a row. ArgumentError if that is not positive.
absl::StatusOr<std::shared_ptr<CommHook>> QuantizePerChannelHook(int64_t block_size = 512);

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_QUANTIZE_HOOK_H_
