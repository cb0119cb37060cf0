#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tensor/reduce_kernels.h"
#include "syncline/device.h"
#include "syncline/dtype.h"
#include "syncline/hooks.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline {
namespace {

class AllReduce : public CommHook {
 public:
  std::string name() const override { return "all_reduce"; }

  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    group_ = std::move(group);
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    if (group_ == nullptr) {
      return ArgumentError("communication hook 'all_reduce' is attached to no group");
    }
    if (bucket->divisor == group_->size()) {
      return group_->AllReduceAsync(bucket->buffer, ReduceOp::kAvg);
    }
    // On a device nobody divides afterwards.
    if (bucket->buffer.device().type != DeviceType::kCpu) {
      if (!IsFloating(bucket->buffer.dtype())) {
        return UnsupportedError(
            "integers on a device are divided by the number of ranks alone: take no hook");
      }
      return group_->AllReduceAsync(bucket->buffer, ReduceOp::kPremulSum, {},
                                    1.0 / static_cast<double>(bucket->divisor));
    }
    SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<Work> sum,
                              group_->AllReduceAsync(bucket->buffer, ReduceOp::kSum));
    auto average = std::make_shared<Work>(absl::StrCat(sum->description(), ", divided"));
    average->Start();
    sum->OnComplete([average, bucket](const absl::Status& status) {
      const Tensor& buffer = bucket->buffer;
      if (status.ok()) {
        tensor::Divide(buffer.dtype(), buffer.data(), static_cast<int>(bucket->divisor),
                       static_cast<size_t>(buffer.numel()));
      }
      average->Finish(status);
    });
    return average;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
};

}  // namespace

std::shared_ptr<CommHook> AllReduceHook() { return std::make_shared<AllReduce>(); }

}  // namespace syncline
