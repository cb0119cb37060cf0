#include "syncline/reducer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ddp/reducer_impl.h"
#include "syncline/status.h"

namespace syncline {

absl::StatusOr<std::shared_ptr<Reducer>> Reducer::Create(std::shared_ptr<ProcessGroup> group,
                                                         const std::vector<Tensor>& parameters,
                                                         Options options) {
  if (group == nullptr) return ArgumentError("a reducer needs a process group");
  auto impl = std::make_unique<Impl>(std::move(group), parameters, std::move(options));
  SYNCLINE_RETURN_IF_ERROR(impl->Connect());
  return std::shared_ptr<Reducer>(new Reducer(std::move(impl)));
}

Reducer::Reducer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reducer::~Reducer() = default;

absl::Status Reducer::BeginStep(const Step& step) { return impl_->BeginStep(step); }
absl::StatusOr<Tensor> Reducer::gradient(int64_t index) const { return impl_->gradient(index); }
absl::Status Reducer::MarkReady(int64_t index) { return impl_->MarkReady(index); }
absl::Status Reducer::CopyReady(int64_t index, const Tensor& value) {
  return impl_->CopyReady(index, value);
}
absl::Status Reducer::MarkReadySparse(int64_t index, const Rows& rows) {
  return impl_->MarkReadySparse(index, rows);
}
absl::StatusOr<bool> Reducer::AwaitBucket(int64_t b) { return impl_->AwaitBucket(b); }

absl::Status Reducer::Finish() { return impl_->Finish(); }
absl::StatusOr<bool> Reducer::is_used(int64_t index) const { return impl_->is_used(index); }
absl::StatusOr<Reducer::Rows> Reducer::rows(int64_t index) const { return impl_->rows(index); }
absl::StatusOr<int64_t> Reducer::CountActive(Activity mine) { return impl_->CountActive(mine); }
absl::Status Reducer::ShadowStep(int64_t divisor) { return impl_->ShadowStep(divisor); }
absl::Status Reducer::SetHook(std::shared_ptr<CommHook> hook) {
  return impl_->SetHook(std::move(hook));
}
absl::Status Reducer::ReplaceGroup(std::shared_ptr<ProcessGroup> group) {
  return impl_->ReplaceGroup(std::move(group));
}
std::vector<std::vector<int64_t>> Reducer::buckets() const { return impl_->buckets(); }
int64_t Reducer::generation() const { return impl_->generation(); }
ReducerStats Reducer::stats() const { return impl_->stats(); }

absl::StatusOr<bool> Reducer::Impl::is_used(int64_t index) const {
  SYNCLINE_RETURN_IF_ERROR(CheckIndex(index));
  absl::MutexLock lock(&mutex_);
  if (used_.empty()) return ArgumentError("no step has communicated yet");
  return used_[index] != 0;
}

absl::StatusOr<Reducer::Rows> Reducer::Impl::rows(int64_t index) const {
  SYNCLINE_RETURN_IF_ERROR(CheckKind(index, true));
  absl::MutexLock lock(&mutex_);
  if (gathered_.empty()) return ArgumentError("no step has communicated yet");
  return gathered_[sparse_place_[index]];
}

std::vector<std::vector<int64_t>> Reducer::Impl::buckets() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::vector<int64_t>> buckets = layout_.buckets;
  for (int64_t index : sparse_) buckets.push_back({index});
  return buckets;
}

int64_t Reducer::Impl::generation() const {
  absl::MutexLock lock(&mutex_);
  return generation_;
}

ReducerStats Reducer::Impl::stats() {
  absl::MutexLock lock(&mutex_);
  if (last_times_ != nullptr) FillTimes(*last_times_);
  return stats_;
}

}  // namespace syncline
