#include "ddp/hooks/blocking_hook.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/group/operation_queue.h"
#include "syncline/byte_collectives.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"
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
  Session(std::shared_ptr<BucketAverager> averager, std::shared_ptr<ProcessGroup> group)
      : averager_(std::move(averager)), group_(std::move(group)) {}

  ProcessGroup& group() { return *group_; }

  // Starts `work` on `bucket`, behind earlier ones; the session lives until it has ended.
  static absl::Status Post(std::shared_ptr<Session> self, std::shared_ptr<Work> work,
                           std::shared_ptr<GradBucket> bucket) {
    Session& session = *self;
    ++session.in_flight_;
    const absl::Status posted = session.queue_.Post([&](uint64_t) -> std::function<void()> {
      return [self = std::move(self), work = std::move(work), bucket = std::move(bucket)] {
        work->Start();
        const absl::Status status = self->Average(*bucket);
        --self->in_flight_;  // First: whoever has waited for the work may end the session.
        work->Finish(status);
      };
    });
    if (!posted.ok()) --session.in_flight_;
    return posted;
  }

  // Whether no bucket is being averaged or queued. The queue may still be telling who waits.
  bool IsDone() const { return in_flight_ == 0; }
  // Waits for the queue until `deadline`; not at all on its own thread.
  void AwaitIdle(const Deadline& deadline) const { queue_.AwaitIdle(deadline); }

  absl::Status Average(GradBucket& bucket) {
    SYNCLINE_RETURN_IF_ERROR(cause());
    const absl::Status status = AverageOrCatch(bucket);
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
  mutable absl::Mutex mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> in_flight_{0};  // Buckets.
  group::OperationQueue queue_;
};

// That all ranks do the same.
absl::Status CheckEqualOnAllRanks(ProcessGroup& group, const BucketAverager& averager) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            AllGatherBytes(group, averager.ToString()));
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

  absl::Status Attach(std::shared_ptr<ProcessGroup> group) override {
    SYNCLINE_RETURN_IF_ERROR(EndSession("it was given another group"));
    std::vector<int> all(group->size());
    std::iota(all.begin(), all.end(), 0);
    SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> own, Split(*group, {all}));
    SYNCLINE_RETURN_IF_ERROR(CheckEqualOnAllRanks(*own, *averager_));
    averager_->Reset();
    SYNCLINE_RETURN_IF_ERROR(averager_->Attach(own));
    session_ = std::make_shared<Session>(averager_, std::move(own));
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
      session->group().Close();  // Peers may still be reading what this rank has sent.
      return absl::OkStatus();
    }
    session->End(BackendError(absl::StrCat(NameOf(*averager_), " has ended: ", why)));
    session->AwaitIdle(Deadline(kToEnd));
    if (session->IsDone()) return absl::OkStatus();
    return BackendError(absl::StrCat(NameOf(*averager_), " is still at work on a bucket ",
                                     absl::FormatDuration(kToEnd), " after its group was aborted"));
  }

  const std::shared_ptr<BucketAverager> averager_;
  std::shared_ptr<Session> session_;
};

}  // namespace

std::shared_ptr<CommHook> MakeBlockingHook(std::unique_ptr<BucketAverager> averager) {
  return std::make_shared<BlockingHook>(std::move(averager));
}

}  // namespace syncline::ddp
