#include "ddp/reducer.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/shared_memory.h"
#include "core/status.h"

namespace syncline {
namespace {

// Bytes of a bucket. All-reduces of less gain nothing by being read in place; see benchmarks/.
constexpr size_t kLeastShared = 16 << 20;

std::string NameIn(const std::vector<std::string>& names, int64_t index) {
  if (names.empty()) return absl::StrCat("parameter ", index);
  return absl::StrCat("parameter '", names[index], "' (index ", index, ")");
}

// All ranks' `mine`, by rank.
absl::StatusOr<std::vector<std::vector<int64_t>>> Exchange(ProcessGroup& group,
                                                           std::vector<int64_t> mine) {
  std::vector<std::vector<int64_t>> all(group.size(), std::vector<int64_t>(mine.size()));
  std::vector<Tensor> outputs;
  for (std::vector<int64_t>& one : all) outputs.push_back(Tensor::Of(one));
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(outputs, Tensor::Of(mine)));
  return all;
}

// Compares every rank's parameters and caps with rank 0's, so that all ranks come to the same
// verdict.
absl::Status CheckEqualOnAllRanks(ProcessGroup& group, const std::vector<Tensor>& parameters,
                                  const std::vector<std::string>& names, const BucketCaps& caps) {
  const int64_t count = static_cast<int64_t>(parameters.size());
  SYNCLINE_ASSIGN_OR_RETURN(auto plans, Exchange(group, {count, caps.first, caps.others}));
  for (int64_t rank = 1; rank < group.size(); ++rank) {
    if (plans[rank] == plans[0]) continue;
    auto describe = [&](int64_t r) {
      return absl::StrCat("rank ", r, " has ", plans[r][0], " parameters and bucket caps of ",
                          plans[r][1], " and ", plans[r][2], " bytes");
    };
    return MismatchError(absl::StrCat("the reducers differ: ", describe(0), ", ", describe(rank)));
  }
  std::vector<int64_t> mine;
  for (const Tensor& parameter : parameters) {
    mine.push_back(static_cast<int64_t>(parameter.dtype()));
    mine.push_back(parameter.numel());
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto all, Exchange(group, std::move(mine)));
  auto describe = [&](int64_t rank, int64_t i) {
    return absl::StrCat(all[rank][2 * i + 1], " elements of ",
                        Name(static_cast<DType>(all[rank][2 * i])));
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    for (int64_t rank = 1; rank < group.size(); ++rank) {
      if (all[rank][2 * i] == all[0][2 * i] && all[rank][2 * i + 1] == all[0][2 * i + 1]) continue;
      return MismatchError(absl::StrCat("the models differ in ", NameIn(names, i), ": rank 0 has ",
                                        describe(0, i), ", rank ", rank, " has ",
                                        describe(rank, i)));
    }
  }
  return absl::OkStatus();
}

// Zeros. Where it pays, in memory that other ranks of the host can read in place.
Tensor MakeBucket(DType dtype, int64_t count) {
  if (static_cast<size_t>(count) * SizeOf(dtype) >= kLeastShared) {
    absl::StatusOr<Tensor> shared = EmptyShared(dtype, {count});
    if (shared.ok()) return *std::move(shared);
  }
  return Tensor::Zeros(dtype, {count});
}

}  // namespace

absl::StatusOr<std::shared_ptr<Reducer>> Reducer::Create(std::shared_ptr<ProcessGroup> group,
                                                         const std::vector<Tensor>& parameters,
                                                         Options options) {
  if (group == nullptr) return ArgumentError("a reducer needs a process group");
  if (parameters.empty()) return ArgumentError("a reducer needs at least one parameter");
  if (!options.names.empty() && options.names.size() != parameters.size()) {
    return ArgumentError(absl::StrCat(options.names.size(), " names for ", parameters.size(),
                                      " parameters: give one for each, or none"));
  }
  if (options.caps.first <= 0 || options.caps.others <= 0) {
    return ArgumentError("bucket caps must be positive");
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    absl::Status averages = CheckReduction(parameters[i].dtype(), ReduceOp::kAvg);
    if (!averages.ok()) return Annotate(averages, NameIn(options.names, i));
    if (parameters[i].device().type != DeviceType::kCpu) {
      return ArgumentError(absl::StrCat(NameIn(options.names, i), " is on ",
                                        ToString(parameters[i].device()),
                                        ": gradients are reduced on the CPU"));
    }
  }
  SYNCLINE_RETURN_IF_ERROR(CheckEqualOnAllRanks(*group, parameters, options.names, options.caps));
  return std::shared_ptr<Reducer>(new Reducer(std::move(group), parameters, std::move(options)));
}

Reducer::Reducer(std::shared_ptr<ProcessGroup> group, const std::vector<Tensor>& parameters,
                 Options options)
    : group_(std::move(group)),
      options_(std::move(options)),
      buckets_(AssignBuckets(parameters, options_.caps)),
      gradients_(parameters.size()),
      bucket_of_(parameters.size()),
      state_(buckets_.size()) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    int64_t total = 0;
    for (int64_t i : buckets_[b]) total += parameters[i].numel();
    state_[b].flat = MakeBucket(parameters[buckets_[b].front()].dtype(), total);
    int64_t offset = 0;
    for (int64_t i : buckets_[b]) {
      bucket_of_[i] = b;
      gradients_[i] =
          state_[b].flat.Slice(offset, parameters[i].numel()).Reshape(parameters[i].shape());
      offset += parameters[i].numel();
    }
  }
  absl::MutexLock lock(&mutex_);
  BeginStep();
}

absl::StatusOr<Tensor> Reducer::gradient(int64_t index) const {
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  return gradients_[index];
}

absl::Status Reducer::MarkReady(int64_t index) {
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  absl::MutexLock lock(&mutex_);
  if (ready_[index]) {
    return ArgumentError(absl::StrCat("the gradient of ", NameOf(index),
                                      " was marked ready twice in one step: call finish() between "
                                      "steps, and mark each parameter once"));
  }
  ready_[index] = true;
  --state_[bucket_of_[index]].pending;
  return StartReadyBuckets();
}

absl::Status Reducer::CopyReady(int64_t index, const Tensor& value) {
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  const Tensor& place = gradients_[index];
  if (value.dtype() != place.dtype() || value.numel() != place.numel() || !value.is_contiguous() ||
      value.device() != place.device()) {
    return ArgumentError(absl::StrCat("the gradient of ", NameOf(index), " must be contiguous ",
                                      place.ToString(), ", not ",
                                      value.is_contiguous() ? "" : "strided ", value.ToString()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (!ready_[index] && value.nbytes() > 0) {
      std::memcpy(place.data(), value.data(), value.nbytes());
    }
  }
  return MarkReady(index);
}

absl::Status Reducer::Finish() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> missing;
  for (size_t i = 0; i < ready_.size(); ++i) {
    if (!ready_[i]) missing.push_back(NameOf(i));
  }
  if (!missing.empty()) {
    return ArgumentError(
        absl::StrCat("rank ", group_->rank(), ": no gradient was marked ready for ",
                     absl::StrJoin(missing, ", "),
                     "; mark every parameter in every step, with zeros where it has no gradient"));
  }
  SYNCLINE_RETURN_IF_ERROR(StartReadyBuckets());
  absl::Status first_error;
  for (Bucket& bucket : state_) {
    absl::Status status = bucket.work->Wait();  // Bounded: the operation has the group's timeout.
    if (first_error.ok()) first_error = status;
  }
  BeginStep();
  return first_error;
}

absl::Status Reducer::CheckIndex(int64_t index) const {
  if (index >= 0 && index < static_cast<int64_t>(gradients_.size())) return absl::OkStatus();
  return ArgumentError(absl::StrCat("there is no parameter ", index, ": indices go from 0 to ",
                                    gradients_.size() - 1));
}

std::string Reducer::NameOf(int64_t index) const { return NameIn(options_.names, index); }

absl::Status Reducer::StartReadyBuckets() {
  for (; next_bucket_ < state_.size() && state_[next_bucket_].pending == 0; ++next_bucket_) {
    Bucket& bucket = state_[next_bucket_];
    SYNCLINE_ASSIGN_OR_RETURN(bucket.work, group_->AllReduceAsync(bucket.flat, ReduceOp::kAvg));
  }
  return absl::OkStatus();
}

void Reducer::BeginStep() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    state_[b].pending = buckets_[b].size();
    state_[b].work = nullptr;
  }
  ready_.assign(gradients_.size(), false);
  next_bucket_ = 0;
}

}  // namespace syncline
