#include "ddp/hooks/blocking_hook.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/device/device_runtime.h"
#include "core/device/stream_handle.h"
#include "core/group/operation_queue.h"
#include "ddp/device_lane.h"
#include "ddp/host_exchange.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
#include "syncline/stream.h"
#include "syncline/subgroups.h"

namespace syncline::ddp {
namespace {

// For a bucket in flight to end once its group has been aborted. What still computes then is left
// to end by itself.
constexpr absl::Duration kToEnd = absl::Seconds(5);

std::string NameOf(const BucketAverager& averager) {
  return absl::StrCat("communication hook '", averager.name(), "'");
}

// What is done in one group. Buckets in flight keep it alive.
class Session {
 public:
  // `lane` is where buckets of a device are averaged; null on the CPU.
  Session(std::shared_ptr<BucketAverager> averager, std::shared_ptr<ProcessGroup> group,
          std::shared_ptr<DeviceLane> lane)
      : averager_(std::move(averager)),
        group_(std::move(group)),
        averagers_(averager_->own_group()),
        lane_(std::move(lane)) {}

  ProcessGroup& group() { return *group_; }

  // OK, or why what is in flight does not end well.
  absl::Status GroupStatus() const {
    SYNCLINE_RETURN_IF_ERROR(group_->status());
    return averagers_ == nullptr ? absl::OkStatus() : averagers_->status();
  }

  // Peers may still be reading what this rank has sent.
  void Close() {
    group_->Close();
    if (averagers_ != nullptr) averagers_->Close();
  }

  // Starts `work` on `bucket`, behind earlier ones; the session lives until it has ended. On a
  // device the bucket is ready behind the current stream.
  static absl::Status Post(std::shared_ptr<Session> self, std::shared_ptr<Work> work,
                           std::shared_ptr<GradBucket> bucket) {
    Session& session = *self;
    std::shared_ptr<device::Event> ready;
    if (session.lane_ != nullptr) {
      SYNCLINE_ASSIGN_OR_RETURN(ready, session.lane_->RecordCurrent());
    }
    ++session.in_flight_;
    const absl::Status posted = session.queue_.Post([&](uint64_t) -> std::function<void()> {
      return [self = std::move(self), work = std::move(work), bucket = std::move(bucket),
              ready = std::move(ready)] {
        work->Start();
        if (ready != nullptr) return AverageOnDevice(self, work, bucket, *ready);
        const absl::Status status = self->Average(*bucket);
        --self->in_flight_;  // First: whoever has waited for the work may end the session.
        work->Finish(status);
      };
    });
    if (!posted.ok()) --session.in_flight_;
    return posted;
  }

  // Lets go of a session on its queue's thread. On the thread that ends calls on devices a group
  // must not be closed: its own calls may end there.
  static void Release(std::shared_ptr<Session> self) {
    Session& session = *self;
    session.queue_
        .Post([&](uint64_t) -> std::function<void()> { return [self = std::move(self)] {}; })
        .IgnoreError();
  }

  // Whether no bucket is being averaged or queued. The queue may still be telling who waits.
  bool IsDone() const { return in_flight_ == 0; }
  // Waits for the queue until `deadline`; not at all on its own thread.
  void AwaitIdle(const Deadline& deadline) const { queue_.AwaitIdle(deadline); }

  absl::Status Average(GradBucket& bucket, const device::Event* ready = nullptr) {
    SYNCLINE_RETURN_IF_ERROR(cause());
    absl::Status status = ready == nullptr ? absl::OkStatus() : ready->EnqueueWait(lane_->stream());
    if (status.ok()) status = AverageOrCatch(bucket);
    if (status.ok()) return status;
    const absl::Status failure = Annotate(status, absl::StrCat("rank ", group_->rank()));
    End(Annotate(failure, absl::StrCat(NameOf(*averager_), ", bucket ", bucket.index, " of ",
                                       bucket.count)));
    return failure;
  }

  // Fails what is in flight, here and on the peers, and what comes later.
  void End(const absl::Status& cause) {
    {
      absl::MutexLock lock(&mutex_);
      if (cause_.ok()) cause_ = cause;
    }
    group_->Abort(cause.message());
    averager_->Abort(cause.message());
  }

  absl::Status cause() const {
    absl::MutexLock lock(&mutex_);
    return cause_;
  }

 private:
  static void AverageOnDevice(const std::shared_ptr<Session>& self,
                              const std::shared_ptr<Work>& work,
                              const std::shared_ptr<GradBucket>& bucket,
                              const device::Event& ready);

  // On the queue's thread nobody else catches what is thrown, such as for want of memory.
  absl::Status AverageOrCatch(GradBucket& bucket) {
    try {
      return averager_->Average(bucket, *group_);
    } catch (const std::bad_alloc&) {
      return BackendError("out of memory: no memory for the buffers of the hook");
    } catch (const std::exception& error) {
      return BackendError(absl::StrCat("unexpected error: ", error.what()));
    }
  }

  const std::shared_ptr<BucketAverager> averager_;
  const std::shared_ptr<ProcessGroup> group_;
  const std::shared_ptr<ProcessGroup> averagers_;  // The averager's own; null if it has none.
  const std::shared_ptr<DeviceLane> lane_;
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> in_flight_{0};  // Buckets.
  group::OperationQueue queue_;
};

// The end of a bucket that is averaged on a device: of the work on the session's stream, and well
// only if the session's group is still whole.
class SessionHandle final : public device::StreamHandle {
 public:
  SessionHandle(std::shared_ptr<const device::Event> end, std::weak_ptr<Session> session)
      : StreamHandle(std::move(end)), session_(std::move(session)) {}

 private:
  std::optional<absl::Status> Verdict() override {
    auto session = session_.lock();
    if (session == nullptr) return absl::OkStatus();
    const absl::Status status = session->GroupStatus();
    Session::Release(std::move(session));
    return status;
  }

  const std::weak_ptr<Session> session_;
};

void Session::AverageOnDevice(const std::shared_ptr<Session>& self,
                              const std::shared_ptr<Work>& work,
                              const std::shared_ptr<GradBucket>& bucket,
                              const device::Event& ready) {
  const Stream& stream = self->lane_->stream();
  absl::Status status;
  {
    const StreamScope scope(stream);
    status = self->Average(*bucket, &ready);
  }
  const auto end = self->lane_->runtime().Record(stream);
  --self->in_flight_;
  status.Update(end.status());
  if (!end.ok()) return work->Finish(status);
  // Also what has failed may have left work behind, which uses the bucket.
  const auto handle = std::make_shared<SessionHandle>(*end, self);
  if (status.ok()) work->Enqueued(stream.device, handle);
  if (!status.ok()) work->Finish(status);
  handle->OnDone([session = self, bucket = bucket,
                  work = status.ok() ? work : nullptr](const absl::StatusOr<int>& outcome) mutable {
    if (work != nullptr) work->Finish(outcome.status());
    Release(std::move(session));
  });
  const absl::Status watched =
      device::StreamWatcher::Get().Watch(handle, Deadline(absl::InfiniteDuration()));
  if (!watched.ok()) handle->End(watched);
}

// That all ranks do the same.
absl::Status CheckEqualOnAllRanks(const HostExchange& exchange, const BucketAverager& averager) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            exchange.AllGatherBytes(averager.ToString()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const absl::Status mismatch =
        MismatchError(absl::StrCat("the communication hooks differ: rank 0 has ", all[0], ", rank ",
                                   rank, " has ", all[rank], "; give all ranks the same"));
    return WithRanks(mismatch, {0, static_cast<int>(rank)});
  }
  return absl::OkStatus();
}

class BlockingHook : public CommHook {
 public:
  explicit BlockingHook(std::unique_ptr<BucketAverager> averager)
      : averager_(std::move(averager)) {}

  ~BlockingHook() override {
    // A forked child has no thread to wait for, and its parent's connections are not its own.
    if (session_ != nullptr && !session_->group().CheckProcess().ok()) {
      new std::shared_ptr<Session>(std::move(session_));
      return;
    }
    EndSession("its reducer was dropped").IgnoreError();
  }

  std::string name() const override { return averager_->name(); }

  absl::Status SetDevice(const Device& device) override {
    SYNCLINE_RETURN_IF_ERROR(averager_->SetDevice(device));
    device_ = device;
    return absl::OkStatus();
  }

  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    SYNCLINE_RETURN_IF_ERROR(EndSession("it was given another group"));
    std::vector<int> all(group->size());
    std::iota(all.begin(), all.end(), 0);
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> own, Split(*group, {all}));
    std::shared_ptr<DeviceLane> lane;
    if (device_.type != DeviceType::kCpu) {
      SYNCLINE_ASSIGN_OR_RETURN(lane, DeviceLane::Make(device_));
    }
    SYNCLINE_RETURN_IF_ERROR(CheckEqualOnAllRanks({*own, lane.get()}, *averager_));
    averager_->Reset();
    SYNCLINE_RETURN_IF_ERROR(averager_->Attach(own));
    lane_ = lane;  // The averager has let go of what it used on the one before.
    session_ = std::make_shared<Session>(averager_, std::move(own), std::move(lane));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Work>> Start(std::shared_ptr<GradBucket> bucket) override {
    if (session_ == nullptr) {
      return ArgumentError(absl::StrCat(NameOf(*averager_), " is attached to no group"));
    }
    SYNCLINE_RETURN_IF_ERROR(session_->cause());
    auto work = std::make_shared<Work>(
        absl::StrCat(NameOf(*averager_), ", bucket ", bucket->index, " of ", bucket->count));
    SYNCLINE_RETURN_IF_ERROR(Session::Post(session_, work, std::move(bucket)));
    return work;
  }

  void Reset() override { averager_->Reset(); }

 private:
  // BackendError if the averager does not notice.
  absl::Status EndSession(absl::string_view why) {
    const std::shared_ptr<Session> session = std::move(session_);
    if (session == nullptr) return absl::OkStatus();
    if (session->IsDone()) {
      session->Close();
      return absl::OkStatus();
    }
    session->End(BackendError(absl::StrCat(NameOf(*averager_), " has ended: ", why)));
    session->AwaitIdle(Deadline(kToEnd));
    if (session->IsDone()) return absl::OkStatus();
    return BackendError(absl::StrCat(NameOf(*averager_), " is still at work on a bucket ",
                                     absl::FormatDuration(kToEnd), " after its group was aborted"));
  }

  const std::shared_ptr<BucketAverager> averager_;
  Device device_;
  // Of the last session, which may have gone: the averager's memory is still used there.
  std::shared_ptr<DeviceLane> lane_;
  std::shared_ptr<Session> session_;
};

}  // namespace

absl::Status BucketAverager::SetDevice(const Device& device) {
  if (device.type == DeviceType::kCpu) return absl::OkStatus();
  return UnsupportedError(absl::StrCat(
      "it works on gradients in memory of the host, and these are on ", syncline::ToString(device),
      ": there, take none, all_reduce, float16_compress, bfloat16_compress, post_local_sgd or a "
      "hook of your own"));
}

std::shared_ptr<CommHook> MakeBlockingHook(std::unique_ptr<BucketAverager> averager) {
  return std::make_shared<BlockingHook>(std::move(averager));
}

}  // namespace syncline::ddp
