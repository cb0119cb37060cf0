// Keeps models together that are trained apart.
#ifndef SYNCLINE_PARAMETER_AVERAGER_H_
#define SYNCLINE_PARAMETER_AVERAGER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "syncline/process_group.h"
#include "syncline/tensor.h"

namespace syncline {

// Averages parameters over all ranks of a group in every so many steps: what post-local SGD and
// local SGD do between steps in which ranks go on by themselves (T. Lin et al., "Don't Use Large
// Mini-Batches, Use Local SGD", ICLR 2020, section 3).
//
//   SYNCLINE_ASSIGN_OR_RETURN(auto averager, ParameterAverager::Create(world->group(), 10, 100));
//   for (each step) {
//     Train();  // With PostLocalSgdHook(100), say.
//     SYNCLINE_RETURN_IF_ERROR(averager->Average(parameters).status());
//   }
//
// For one thread at a time.
class ParameterAverager {
 public:
  // The first average is in step `warmup_steps`, counted from 0, then in every `period`th one.
  // ArgumentError if `period` is not positive or `warmup_steps` negative.
  static absl::StatusOr<std::shared_ptr<ParameterAverager>> Create(
      std::shared_ptr<ProcessGroup> group, int64_t period, int64_t warmup_steps = 0);

  // A step has been made: if it is one of those, replaces the parameters by their averages, which
  // is collective. Returns whether it did.
  absl::StatusOr<bool> Average(const std::vector<Tensor>& parameters);

 private:
  ParameterAverager(std::shared_ptr<ProcessGroup> group, int64_t period, int64_t warmup_steps);

  const std::shared_ptr<ProcessGroup> group_;
  const int64_t period_;
  int64_t until_next_;  // Steps.
};

}  // namespace syncline

#endif  // SYNCLINE_PARAMETER_AVERAGER_H_
