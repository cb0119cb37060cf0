// Averages gradients as products of thin matrices.
#ifndef SYNCLINE_DDP_HOOKS_POWER_SGD_HOOK_H_
#define SYNCLINE_DDP_HOOKS_POWER_SGD_HOOK_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "ddp/comm_hook.h"

namespace syncline {

struct PowerSgdOptions {
  enum class Feedback { kNone, kError };  // Whether what was lost is added to the next gradients.
  enum class Start { kRandom, kWarm };    // Whether a step begins with the matrices of the last.

  int64_t rank = 1;           // Of the approximation.
  int64_t start_step = 1000;  // All-reduces everything before it.
  // A matrix is compressed if that leaves less than 1 / min_compression_rate of its elements.
  double min_compression_rate = 2.0;
  Feedback feedback = Feedback::kError;
  Start start = Start::kWarm;
  double orthogonalization_epsilon = 0;  // Added to the lengths that are divided by.
  int64_t seed = 0;                      // Of the matrices to begin with.
};

// PowerSGD: T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
// Compression for Distributed Optimization", NeurIPS 2019, algorithms 1 and 2. The gradient of a
// parameter with two or more dimensions is a matrix M with as many rows as the first of them; one
// step of power iteration from Q finds P = M Q and Q = M' P, orthogonal and averaged over the
// ranks, and P Q' is the result. Each sends rank * (rows + cols) elements instead of rows * cols.
// Parameters that are not compressed are averaged exactly, together with P.
//
// Of float32 and float64; other types are averaged as they are. Bitwise equal on all ranks. A
// gradient that is infinite or NaN makes its matrix NaN in that step, and leaves no trace in the
// next. Error feedback keeps a copy of the gradients.
//
// ArgumentError if an option has no meaning.
absl::StatusOr<std::shared_ptr<CommHook>> PowerSgdHook(const PowerSgdOptions& options);

// The same on the whole bucket as one square matrix, filled up with zeros: fewer and larger
// products, less exact, as the matrix has no structure of its own. Ignores min_compression_rate.
absl::StatusOr<std::shared_ptr<CommHook>> BatchedPowerSgdHook(const PowerSgdOptions& options);

}  // namespace syncline

#endif  // SYNCLINE_DDP_HOOKS_POWER_SGD_HOOK_H_
