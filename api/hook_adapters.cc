#include "api/hook_adapters.h"

#include <utility>

#include "syncline/dtype.h"
#include "syncline/hooks.h"

namespace syncline::api {
namespace {

PowerSgdOptions ToOptions(int64_t rank, int64_t start_step, bool use_error_feedback,
                          bool warm_start, double orthogonalization_epsilon, int64_t seed) {
  PowerSgdOptions options;
  options.rank = rank;
  options.start_step = start_step;
  options.feedback =
      use_error_feedback ? PowerSgdOptions::Feedback::kError : PowerSgdOptions::Feedback::kNone;
  options.start = warm_start ? PowerSgdOptions::Start::kWarm : PowerSgdOptions::Start::kRandom;
  options.orthogonalization_epsilon = orthogonalization_epsilon;
  options.seed = seed;
  return options;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CommHook>> CommHookAllReduce() { return AllReduceHook(); }

absl::StatusOr<std::shared_ptr<CommHook>> CommHookFloat16Compress() {
  return HalfHook(DType::kFloat16);
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookBfloat16Compress() {
  return HalfHook(DType::kBFloat16);
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookPowerSgd(int64_t rank, int64_t start_step,
                                                           double min_compression_rate,
                                                           bool use_error_feedback, bool warm_start,
                                                           double orthogonalization_epsilon,
                                                           int64_t seed) {
  PowerSgdOptions options =
      ToOptions(rank, start_step, use_error_feedback, warm_start, orthogonalization_epsilon, seed);
  options.min_compression_rate = min_compression_rate;
  return PowerSgdHook(options);
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookBatchedPowerSgd(int64_t rank, int64_t start_step,
                                                                  bool use_error_feedback,
                                                                  bool warm_start,
                                                                  double orthogonalization_epsilon,
                                                                  int64_t seed) {
  return BatchedPowerSgdHook(
      ToOptions(rank, start_step, use_error_feedback, warm_start, orthogonalization_epsilon, seed));
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookQuantizePerTensor() {
  return QuantizePerTensorHook();
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookQuantizePerChannel(int64_t block_size) {
  return QuantizePerChannelHook(block_size);
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookTopK(double fraction) {
  return TopKHook(fraction);
}

absl::StatusOr<std::shared_ptr<CommHook>> CommHookPostLocalSgd(
    int64_t start_step, std::shared_ptr<ProcessGroup> subgroup) {
  return PostLocalSgdHook(start_step, std::move(subgroup));
}

}  // namespace syncline::api
