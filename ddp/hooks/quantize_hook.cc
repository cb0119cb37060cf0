#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ddp/hooks/averaging.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "ddp/hooks/quantize_kernels.h"
#include "ddp/hooks/scratch.h"
#include "syncline/hooks.h"
#include "syncline/status.h"

namespace syncline {
namespace {

constexpr int64_t kWhole = 0;  // As a block size: one block.

class QuantizeAverager : public ddp::BucketAverager {
 public:
  explicit QuantizeAverager(int64_t block_size) : block_size_(block_size) {}

  std::string name() const override {
    return block_size_ == kWhole ? "quantize_per_tensor" : "quantize_per_channel";
  }

  std::string ToString() const override {
    return absl::StrCat(name(), "(", block_size_ == kWhole ? "" : absl::StrCat(block_size_), ")");
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    const DType dtype = bucket.buffer.dtype();
    if (bucket.buffer.numel() == 0) return absl::OkStatus();
    if (dtype == DType::kFloat32) return AverageAs<float>(bucket, group);
    if (dtype == DType::kFloat64) return AverageAs<double>(bucket, group);
    return ddp::AllReduceAverage(bucket.buffer, bucket.divisor, group);
  }

 private:
  // A rank's message: the quantizers of its blocks, then a byte for each element.
  template <typename T>
  absl::Status AverageAs(GradBucket& bucket, ProcessGroup& group) {
    const int64_t count = bucket.buffer.numel();
    const int64_t block = block_size_ == kWhole ? count : block_size_;
    const int64_t blocks = (count + block - 1) / block;
    const auto head = blocks * static_cast<int64_t>(sizeof(ddp::Quantizer<T>));
    const int64_t message = (head + count + 7) / 8 * 8;
    SYNCLINE_ASSIGN_OR_RETURN(const Tensor all,
                              scratch_.Take(DType::kUInt8, message * group.size()));
    std::vector<Tensor> messages;
    for (int rank = 0; rank < group.size(); ++rank) {
      messages.push_back(all.Slice(rank * message, message));
    }
    T* const values = bucket.buffer.data_as<T>();
    const auto quantizers = [&](int rank) { return messages[rank].data_as<ddp::Quantizer<T>>(); };
    const auto bytes = [&](int rank) { return messages[rank].data_as<uint8_t>() + head; };

    const int own = group.rank();
    for (int64_t b = 0, begin = 0; b < blocks; ++b, begin += block) {
      const auto size = static_cast<size_t>(std::min(block, count - begin));
      quantizers(own)[b] = ddp::Quantize(values + begin, bytes(own) + begin, size);
    }
    SYNCLINE_RETURN_IF_ERROR(group.AllGather(messages, messages[own]));
    const T factor = T(1) / static_cast<T>(bucket.divisor);
    for (int64_t b = 0, begin = 0; b < blocks; ++b, begin += block) {
      const auto size = static_cast<size_t>(std::min(block, count - begin));
      T* const out = values + begin;
      ddp::Dequantize(quantizers(0)[b], bytes(0) + begin, factor, out, size);
      for (int rank = 1; rank < group.size(); ++rank) {
        ddp::AddDequantized(quantizers(rank)[b], bytes(rank) + begin, factor, out, size);
      }
    }
    return absl::OkStatus();
  }

  const int64_t block_size_;
  ddp::Scratch scratch_;
};

}  // namespace

std::shared_ptr<CommHook> QuantizePerTensorHook() {
  return ddp::MakeBlockingHook(std::make_unique<QuantizeAverager>(kWhole));
}

absl::StatusOr<std::shared_ptr<CommHook>> QuantizePerChannelHook(int64_t block_size) {
  if (block_size < 1) {
    return ArgumentError(absl::StrCat("block_size must be positive, not ", block_size));
  }
  return ddp::MakeBlockingHook(std::make_unique<QuantizeAverager>(block_size));
}

}  // namespace syncline
