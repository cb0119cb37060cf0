#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "ddp/device_lane.h"
#include "ddp/hooks/averaging.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "ddp/host_exchange.h"
#include "syncline/hooks.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"
#include "syncline/subgroups.h"

namespace syncline {
namespace {

// The ranks of each host.
absl::StatusOr<std::vector<std::vector<int>>> Hosts(const ddp::HostExchange& exchange) {
  SYNCLINE_ASSIGN_OR_RETURN(const Peer self, base::IdentifyThisProcess());
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> identities,
                            exchange.AllGatherBytes(self.identity));
  std::map<std::string, std::vector<int>> ranks;
  for (size_t rank = 0; rank < identities.size(); ++rank) {
    ranks[identities[rank]].push_back(static_cast<int>(rank));
  }
  std::vector<std::vector<int>> hosts;
  for (auto& [identity, of_host] : ranks) hosts.push_back(std::move(of_host));
  return hosts;
}

class PostLocalSgd : public ddp::BucketAverager {
 public:
  PostLocalSgd(int64_t start_step, std::shared_ptr<ProcessGroup> subgroup)
      : start_step_(start_step), given_(std::move(subgroup)) {}

  std::string name() const override { return "post_local_sgd"; }

  std::string ToString() const override {
    return absl::StrCat("post_local_sgd(start_step=", start_step_, ", ",
                        given_ == nullptr ? "subgroups by host" : "given subgroups", ")");
  }

  absl::Status SetDevice(const Device& device) override {
    device_ = device;
    return absl::OkStatus();
  }

  // The subgroup's operations, too, must not mix with others.
  absl::Status Attach(const std::shared_ptr<ProcessGroup>& group) override {
    std::vector<std::vector<int>> groups(1);
    if (given_ == nullptr) {
      std::unique_ptr<ddp::DeviceLane> lane;
      if (device_.type != DeviceType::kCpu) {
        SYNCLINE_ASSIGN_OR_RETURN(lane, ddp::DeviceLane::Make(device_));
      }
      SYNCLINE_ASSIGN_OR_RETURN(groups, Hosts({*group, lane.get()}));
    } else {
      groups[0].resize(given_->size());
      std::iota(groups[0].begin(), groups[0].end(), 0);
    }
    SYNCLINE_ASSIGN_OR_RETURN(own_, Split(given_ == nullptr ? *group : *given_, groups));
    return absl::OkStatus();
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    if (bucket.step >= start_step_) return own_->AllReduce(bucket.buffer, ReduceOp::kAvg);
    return ddp::AllReduceAverage(bucket.buffer, bucket.divisor, group);
  }

  std::shared_ptr<ProcessGroup> own_group() const override { return own_; }

  void Abort(absl::string_view reason) override {
    if (own_ != nullptr) own_->Abort(reason);
  }

 private:
  const int64_t start_step_;
  const std::shared_ptr<ProcessGroup> given_;
  Device device_;
  std::shared_ptr<ProcessGroup> own_;  // Set before the first bucket.
};

}  // namespace

absl::StatusOr<std::shared_ptr<CommHook>> PostLocalSgdHook(int64_t start_step,
                                                           std::shared_ptr<ProcessGroup> subgroup) {
  if (start_step < 0) {
    return ArgumentError(absl::StrCat("start_step must not be negative, but is ", start_step));
  }
  return ddp::MakeBlockingHook(std::make_unique<PostLocalSgd>(start_step, std::move(subgroup)));
}

}  // namespace syncline
