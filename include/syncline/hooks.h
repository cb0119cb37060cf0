// The communication hooks that come with Syncline: what a reducer may do in place of one all-reduce
// of each bucket. All functions are thread-safe; a hook belongs to one reducer at a time.
#ifndef SYNCLINE_HOOKS_H_
#define SYNCLINE_HOOKS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "syncline/comm_hook.h"
#include "syncline/dtype.h"
#include "syncline/process_group.h"

namespace syncline {

// On devices there are AllReduceHook, HalfHook and PostLocalSgdHook, and hooks of one's own: the
// others, which compute on the host, are an UnsupportedError when a reducer of a device is given
// one.
//
// Each of these makes a hook for Reducer::Options::hook.
//
//   Reducer::Options options;
//   SYNCLINE_ASSIGN_OR_RETURN(options.hook, HalfHook(DType::kBFloat16));

// One all-reduce in the reducer's own group: what a reducer without a hook does.
std::shared_ptr<CommHook> AllReduceHook();

// Gradients of float32 and float64 are divided by the divisor, rounded to `half`, kFloat16 or
// kBFloat16, summed over the ranks as in any all-reduce of that type, and converted back; others
// are averaged as they are. Half the bytes of float32. Bitwise equal on all ranks.
//
// float16: relative errors of about 2^-11 for each rank; what is below 2^-24 becomes 0, and above
// 65504 infinity, as mixed-precision training expects (Micikevicius et al., "Mixed Precision
// Training", ICLR 2018, section 3.2). bfloat16: 2^-8, in the range of float32.
absl::StatusOr<std::shared_ptr<CommHook>> HalfHook(DType half);

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

// Each rank sends the `fraction` of a bucket's elements that is largest in absolute value, one at
// least; it remembers the others and adds them to its next gradients (S. Stich et al., "Sparsified
// SGD with Memory", NeurIPS 2018, algorithm 1; Y. Lin et al., "Deep Gradient Compression", ICLR
// 2018, section 3.1, without its momentum correction). So the sum of what the ranks were given is
// that of the results, times the divisor, and of what they still remember. Of float32 and float64;
// other types are averaged as they are. Bitwise equal on all ranks.
//
// Each rank receives fraction * (4 bytes + the element's) from every other: less than an all-reduce
// of float32 among n ranks if fraction < 1 / n. ArgumentError if `fraction` is not in (0, 1].
absl::StatusOr<std::shared_ptr<CommHook>> TopKHook(double fraction = 0.01);

// Up to `start_step` gradients are averaged over all ranks, afterwards only over those of
// `subgroup`, or, if there is none, of this rank's host; there the sum is divided by their number,
// whatever the bucket's divisor. Parameters must then be averaged over all ranks from time to time:
// see ParameterAverager (T. Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020,
// section 3). Bitwise equal within a subgroup only.
//
// Each rank gives the subgroup that it is in. ArgumentError if `start_step` is negative.
absl::StatusOr<std::shared_ptr<CommHook>> PostLocalSgdHook(
    int64_t start_step, std::shared_ptr<ProcessGroup> subgroup = nullptr);

}  // namespace syncline

#endif  // SYNCLINE_HOOKS_H_
