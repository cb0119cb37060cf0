#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ddp/hooks/averaging.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "ddp/hooks/largest.h"
#include "ddp/hooks/scratch.h"
#include "syncline/error_origin.h"
#include "syncline/hooks.h"
#include "syncline/status.h"

namespace syncline {
namespace {

class TopKAverager : public ddp::BucketAverager {
 public:
  explicit TopKAverager(double fraction) : fraction_(fraction) {}

  std::string name() const override { return "top_k"; }
  std::string ToString() const override { return absl::StrCat("top_k(", fraction_, ")"); }

  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    const int64_t count = bucket.buffer.numel();
    const DType dtype = bucket.buffer.dtype();
    if (count == 0) return absl::OkStatus();
    if (count < std::numeric_limits<uint32_t>::max()) {
      if (dtype == DType::kFloat32) return AverageAs<float>(bucket, group);
      if (dtype == DType::kFloat64) return AverageAs<double>(bucket, group);
    }
    return ddp::AllReduceAverage(bucket.buffer, bucket.divisor, group);
  }

  void Reset() override { memories_.clear(); }

 private:
  // A rank's message: the indices of its elements, then their values.
  template <typename T>
  absl::Status AverageAs(GradBucket& bucket, ProcessGroup& group) {
    const int64_t count = bucket.buffer.numel();
    const auto wanted = static_cast<int64_t>(std::ceil(fraction_ * static_cast<double>(count)));
    const int64_t k = std::clamp<int64_t>(wanted, 1, count);
    const int64_t head = (k * static_cast<int64_t>(sizeof(uint32_t)) + 7) / 8 * 8;
    const int64_t message = (head + k * static_cast<int64_t>(sizeof(T)) + 7) / 8 * 8;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor all,
                              scratch_.Take(DType::kUInt8, message * group.size()));
    SYNCLINE_ASSIGN_OR_RETURN(T* const memory, MemoryOf<T>(bucket));
    T* const values = bucket.buffer.data_as<T>();
    for (int64_t i = 0; i < count; ++i) {
      memory[i] += values[i];
      values[i] = 0;
    }

    std::vector<Tensor> messages;
    for (int rank = 0; rank < group.size(); ++rank) {
      messages.push_back(all.Slice(rank * message, message));
    }
    const auto indices = [&](int rank) { return messages[rank].data_as<uint32_t>(); };
    const auto sent = [&](int rank) {
      return reinterpret_cast<T*>(messages[rank].data_as<uint8_t>() + head);
    };
    const std::vector<uint32_t> largest =
        ddp::LargestElements(memory, static_cast<size_t>(count), static_cast<size_t>(k));
    std::copy(largest.begin(), largest.end(), indices(group.rank()));
    for (int64_t i = 0; i < k; ++i) {
      sent(group.rank())[i] = memory[largest[i]];
      memory[largest[i]] = 0;
    }
    SYNCLINE_RETURN_IF_ERROR(group.AllGather(messages, messages[group.rank()]));
    const T factor = T(1) / static_cast<T>(bucket.divisor);
    for (int rank = 0; rank < group.size(); ++rank) {
      if (ddp::AddAtIndices(factor, indices(rank), sent(rank), static_cast<size_t>(k), values,
                            static_cast<size_t>(count))) {
        continue;
      }
      return WithRanks(BackendError(absl::StrCat(
                           "rank ", rank, " sent elements that are none of a ", "bucket of ", count,
                           ": do all ranks run the same ", "version of Syncline?")),
                       {rank});
    }
    return absl::OkStatus();
  }

  // What this rank has not sent yet of a bucket's elements.
  template <typename T>
  absl::StatusOr<T*> MemoryOf(const GradBucket& bucket) {
    Tensor& memory = memories_[bucket.index];
    const Tensor& buffer = bucket.buffer;
    if (memory.numel() != buffer.numel() || memory.dtype() != buffer.dtype()) {
      SYNCLINE_ASSIGN_OR_RETURN(memory, Tensor::TryZeros(buffer.dtype(), {buffer.numel()}));
    }
    return memory.data_as<T>();
  }

  const double fraction_;
  ddp::Scratch scratch_;
  std::map<int64_t, Tensor> memories_;  // By the bucket's index.
};

}  // namespace

absl::StatusOr<std::shared_ptr<CommHook>> TopKHook(double fraction) {
  if (!(fraction > 0 && fraction <= 1)) {
    return ArgumentError(
        absl::StrCat("fraction must be more than 0 and at most 1, not ", fraction));
  }
  return ddp::MakeBlockingHook(std::make_unique<TopKAverager>(fraction));
}

}  // namespace syncline
