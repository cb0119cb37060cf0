// The part of adapters.h for communication hooks.
#ifndef SYNCLINE_API_HOOK_ADAPTERS_H_
#define SYNCLINE_API_HOOK_ADAPTERS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "syncline/comm_hook.h"
#include "syncline/process_group.h"

namespace syncline::api {

absl::StatusOr<std::shared_ptr<CommHook>> CommHookAllReduce();
absl::StatusOr<std::shared_ptr<CommHook>> CommHookFloat16Compress();
absl::StatusOr<std::shared_ptr<CommHook>> CommHookBfloat16Compress();
absl::StatusOr<std::shared_ptr<CommHook>> CommHookPowerSgd(int64_t rank, int64_t start_step,
                                                           double min_compression_rate,
                                                           bool use_error_feedback, bool warm_start,
                                                           double orthogonalization_epsilon,
                                                           int64_t seed);
absl::StatusOr<std::shared_ptr<CommHook>> CommHookBatchedPowerSgd(int64_t rank, int64_t start_step,
                                                                  bool use_error_feedback,
                                                                  bool warm_start,
                                                                  double orthogonalization_epsilon,
                                                                  int64_t seed);
absl::StatusOr<std::shared_ptr<CommHook>> CommHookQuantizePerTensor();
absl::StatusOr<std::shared_ptr<CommHook>> CommHookQuantizePerChannel(int64_t block_size);
absl::StatusOr<std::shared_ptr<CommHook>> CommHookTopK(double fraction);
absl::StatusOr<std::shared_ptr<CommHook>> CommHookPostLocalSgd(
    int64_t start_step, std::shared_ptr<ProcessGroup> subgroup);

}  // namespace syncline::api

#endif  // SYNCLINE_API_HOOK_ADAPTERS_H_
