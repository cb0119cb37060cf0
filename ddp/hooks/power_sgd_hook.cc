#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ddp/hooks/averaging.h"
#include "ddp/hooks/blocking_hook.h"
#include "ddp/hooks/bucket_averager.h"
#include "ddp/hooks/low_rank.h"
#include "ddp/hooks/power_sgd_layout.h"
#include "syncline/hooks.h"
#include "syncline/reduce_op.h"
#include "syncline/status.h"

namespace syncline {
namespace {

enum class Shape { kPerParameter, kSquare };

// What is kept for a bucket from step to step.
struct BucketMemory {
  ddp::PowerSgdLayout layout;
  Tensor delta;  // What was lost; during a step, that and the gradients.
  Tensor p;      // The vectors of P, and what is not compressed.
  Tensor q;      // The vectors of Q: zeros where they have to be drawn again.
};

template <typename T>
bool IsFinite(const T* values, int64_t count) {
  return std::all_of(values, values + count, [](T value) { return std::isfinite(value); });
}

// Every bit of `seeds` counts: a seed_seq takes 32 bits of each of its elements.
std::mt19937_64 Generator(std::initializer_list<int64_t> seeds) {
  std::vector<uint32_t> words;
  for (const int64_t seed : seeds) {
    words.push_back(static_cast<uint32_t>(seed));
    words.push_back(static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32));
  }
  std::seed_seq sequence(words.begin(), words.end());
  return std::mt19937_64(sequence);
}

// Standard normal vectors in place of those that are 0: they would stay so. All ranks do the same,
// as Q is equal on all.
template <typename T>
void RenewZeroVectors(T* vectors, int64_t length, int64_t rank, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  for (int64_t k = 0; k < rank; ++k) {
    T* const vector = vectors + k * length;
    if (std::any_of(vector, vector + length, [](T value) { return value != 0; })) continue;
    for (int64_t i = 0; i < length; ++i) vector[i] = static_cast<T>(normal(random));
  }
}

class PowerSgd : public ddp::BucketAverager {
 public:
  PowerSgd(Shape shape, const PowerSgdOptions& options) : shape_(shape), options_(options) {}

  std::string name() const override {
    return shape_ == Shape::kSquare ? "batched_power_sgd" : "power_sgd";
  }

  std::string ToString() const override {
    return absl::StrCat(
        name(), "(rank=", options_.rank, ", start_step=", options_.start_step,
        ", min_compression_rate=", options_.min_compression_rate,
        options_.feedback == PowerSgdOptions::Feedback::kNone ? ", no" : ",", " error feedback, ",
        options_.start == PowerSgdOptions::Start::kWarm ? "warm" : "random",
        " start, epsilon=", options_.orthogonalization_epsilon, ", seed=", options_.seed, ")");
  }

  absl::Status Average(GradBucket& bucket, ProcessGroup& group) override {
    if (bucket.buffer.numel() == 0) return absl::OkStatus();
    if (bucket.step >= options_.start_step) {
      if (bucket.buffer.dtype() == DType::kFloat32) return AverageAs<float>(bucket, group);
      if (bucket.buffer.dtype() == DType::kFloat64) return AverageAs<double>(bucket, group);
    }
    return ddp::AllReduceAverage(bucket.buffer, bucket.divisor, group);
  }

  void Reset() override { memories_.clear(); }

 private:
  template <typename T>
  absl::Status AverageAs(GradBucket& bucket, ProcessGroup& group) {
    SYNCLINE_ASSIGN_OR_RETURN(BucketMemory* const memory, MemoryOf(bucket));
    if (memory->layout.matrices.empty()) {
      return ddp::AllReduceAverage(bucket.buffer, bucket.divisor, group);
    }
    AddGradients<T>(bucket, *memory);
    MultiplyByQ<T>(bucket, *memory);
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(memory->p, ReduceOp::kSum));
    MultiplyByP<T>(*memory);
    SYNCLINE_RETURN_IF_ERROR(group.AllReduce(memory->q, ReduceOp::kSum));
    Decompress<T>(bucket, *memory);
    return absl::OkStatus();
  }

  absl::StatusOr<BucketMemory*> MemoryOf(const GradBucket& bucket) {
    const auto found = memories_.find(bucket.index);
    if (found != memories_.end()) return &found->second;
    BucketMemory memory;
    memory.layout = shape_ == Shape::kSquare ? ddp::LayOutSquare(bucket, options_.rank)
                                             : ddp::LayOutParameters(bucket, options_.rank,
                                                                     options_.min_compression_rate);
    const ddp::PowerSgdLayout& layout = memory.layout;
    const DType dtype = bucket.buffer.dtype();
    if (!layout.matrices.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(memory.delta, Tensor::TryZeros(dtype, {layout.total}));
      SYNCLINE_ASSIGN_OR_RETURN(memory.p,
                                Tensor::TryZeros(dtype, {layout.p_count + layout.rest_count}));
      SYNCLINE_ASSIGN_OR_RETURN(memory.q, Tensor::TryZeros(dtype, {layout.q_count}));
    }
    return &memories_.emplace(bucket.index, std::move(memory)).first->second;
  }

  // delta += gradients.
  template <typename T>
  void AddGradients(const GradBucket& bucket, BucketMemory& memory) {
    const T* const gradients = bucket.buffer.data_as<T>();
    T* const delta = memory.delta.data_as<T>();
    const int64_t count = bucket.buffer.numel();
    if (options_.feedback == PowerSgdOptions::Feedback::kNone) {
      std::copy(gradients, gradients + count, delta);
    } else {
      for (int64_t i = 0; i < count; ++i) delta[i] += gradients[i];
    }
    std::fill(delta + count, delta + memory.layout.total, T(0));
  }

  // P = delta Q, and behind it what is not compressed.
  template <typename T>
  void MultiplyByQ(const GradBucket& bucket, BucketMemory& memory) {
    const ddp::PowerSgdLayout& layout = memory.layout;
    T* const q = memory.q.data_as<T>();
    T* const p = memory.p.data_as<T>();
    if (options_.start == PowerSgdOptions::Start::kRandom) {
      std::fill(q, q + layout.q_count, T(0));
    }
    std::mt19937_64 random = Generator({options_.seed, bucket.step, bucket.index});
    for (const ddp::PowerSgdMatrix& matrix : layout.matrices) {
      RenewZeroVectors(q + matrix.q, matrix.shape.cols, matrix.rank, random);
      ddp::Orthogonalize(q + matrix.q, matrix.shape.cols, matrix.rank,
                         options_.orthogonalization_epsilon);
      ddp::MultiplyRows(memory.delta.data_as<T>() + matrix.begin, matrix.shape, q + matrix.q,
                        matrix.rank, p + matrix.p);
    }
    T* to = p + layout.p_count;
    for (const ddp::PowerSgdPiece& piece : layout.rest) {
      const T* const from = bucket.buffer.data_as<T>() + piece.begin;
      to = std::copy(from, from + piece.count, to);
    }
  }

  // P is made orthogonal, Q = delta' P; what that does not catch of this rank's own is kept.
  template <typename T>
  void MultiplyByP(BucketMemory& memory) {
    T* const p = memory.p.data_as<T>();
    T* const q = memory.q.data_as<T>();
    for (const ddp::PowerSgdMatrix& matrix : memory.layout.matrices) {
      T* const delta = memory.delta.data_as<T>() + matrix.begin;
      ddp::Orthogonalize(p + matrix.p, matrix.shape.rows, matrix.rank,
                         options_.orthogonalization_epsilon);
      ddp::MultiplyColumns(delta, matrix.shape, p + matrix.p, matrix.rank, q + matrix.q);
      if (options_.feedback == PowerSgdOptions::Feedback::kError) {
        ddp::SubtractExpanded(p + matrix.p, q + matrix.q, matrix.rank, matrix.shape, delta);
      }
    }
  }

  template <typename T>
  void Decompress(GradBucket& bucket, BucketMemory& memory) {
    const ddp::PowerSgdLayout& layout = memory.layout;
    const T divisor = static_cast<T>(bucket.divisor);
    T* const p = memory.p.data_as<T>();
    T* const q = memory.q.data_as<T>();
    T* const out = bucket.buffer.data_as<T>();
    for (int64_t i = 0; i < layout.q_count; ++i) q[i] /= divisor;
    for (const ddp::PowerSgdMatrix& matrix : layout.matrices) {
      const int64_t limit = std::min(matrix.count(), bucket.buffer.numel() - matrix.begin);
      ddp::Expand(p + matrix.p, q + matrix.q, matrix.rank, matrix.shape, limit, out + matrix.begin);
      if (!IsFinite(q + matrix.q, matrix.rank * matrix.shape.cols))
        ClearFeedback<T>(matrix, memory);
    }
    const T* from = p + layout.p_count;
    for (const ddp::PowerSgdPiece& piece : layout.rest) {
      for (int64_t i = 0; i < piece.count; ++i) out[piece.begin + i] = *from++ / divisor;
    }
  }

  // Otherwise values that are not finite would stay in the error feedback for ever.
  template <typename T>
  void ClearFeedback(const ddp::PowerSgdMatrix& matrix, BucketMemory& memory) {
    T* const delta = memory.delta.data_as<T>() + matrix.begin;
    std::fill(delta, delta + matrix.count(), T(0));
    T* const q = memory.q.data_as<T>() + matrix.q;
    std::fill(q, q + matrix.rank * matrix.shape.cols, T(0));
  }

  const Shape shape_;
  const PowerSgdOptions options_;
  std::map<int64_t, BucketMemory> memories_;  // By the bucket's index.
};

absl::Status Check(const PowerSgdOptions& options) {
  if (options.rank < 1) {
    return ArgumentError(absl::StrCat("rank must be positive, not ", options.rank));
  }
  if (options.start_step < 0) {
    return ArgumentError(
        absl::StrCat("start_step must not be negative, but is ", options.start_step));
  }
  if (!(options.min_compression_rate > 0)) {
    return ArgumentError(
        absl::StrCat("min_compression_rate must be positive, not ", options.min_compression_rate));
  }
  if (!(options.orthogonalization_epsilon >= 0)) {
    return ArgumentError(absl::StrCat("orthogonalization_epsilon must not be negative, but is ",
                                      options.orthogonalization_epsilon));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<CommHook>> Make(Shape shape, const PowerSgdOptions& options) {
  SYNCLINE_RETURN_IF_ERROR(Check(options));
  return ddp::MakeBlockingHook(std::make_unique<PowerSgd>(shape, options));
}

}  // namespace

absl::StatusOr<std::shared_ptr<CommHook>> PowerSgdHook(const PowerSgdOptions& options) {
  return Make(Shape::kPerParameter, options);
}

absl::StatusOr<std::shared_ptr<CommHook>> BatchedPowerSgdHook(const PowerSgdOptions& options) {
  return Make(Shape::kSquare, options);
}

}  // namespace syncline
