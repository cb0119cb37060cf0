// A call that has been enqueued on streams, as a Completion::Handle.
#ifndef SYNCLINE_CORE_DEVICE_STREAM_HANDLE_H_
#define SYNCLINE_CORE_DEVICE_STREAM_HANDLE_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/device/device_runtime.h"
#include "syncline/completion.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/fork.h"

namespace syncline::device {

// A call whose work ends with an event. Somebody has to ask: IsDone and Wait do, and a thread that
// serves OnDone calls Poll, such as a StreamWatcher's. Thread-safe.
//
// Callbacks run in the order in which they were added: on a thread that is in IsDone or Wait, else
// on TaskThread::Callbacks(). What they hold is let go of once the work has ended, also if the call
// has ended before by End: the device may use it until then.
class StreamHandle : public Completion::Handle {
 public:
  // `source` is the outcome of a call that succeeds: the rank that sent, for a receive, else 0.
  // `others` are devices besides that of the event which have tensors of the call: their current
  // streams wait for it too, with the one that is passed to EnqueueWait.
  explicit StreamHandle(std::shared_ptr<const Event> end, int source = 0,
                        std::vector<Device> others = {})
      : end_(std::move(end)),
        source_(source),
        others_(std::move(others)),
        state_(std::make_shared<State>()) {}

  // Asks the device, and ends the call if it is done. Returns whether the call has ended. Neither
  // this nor End waits, or runs a callback: threads that watch calls use both.
  bool Poll();

  // Ends the call with `outcome` unless it has ended.
  void End(const absl::StatusOr<int>& outcome);

  absl::StatusOr<int> Wait(const Deadline& deadline) override;
  bool IsDone() const override;
  void OnDone(std::function<void(const absl::StatusOr<int>&)> callback) override;
  bool is_stream_ordered() const override { return true; }

  // Whether this thread is in a callback of a handle, or lets go of one. What such a thread waits
  // for may have to be ended by itself.
  static bool IsCallingBack();
  absl::Status EnqueueWait(const Stream& stream) override;

 protected:
  // What the outcome depends on besides the device, once that is done: OK or the error of the call,
  // or nothing while it is not known. Called without locks, possibly by several threads at once.
  virtual std::optional<absl::Status> Verdict() { return absl::OkStatus(); }

  // Called once with the outcome, by the thread that ends the call. Must not wait.
  virtual void Ended(const absl::StatusOr<int>& outcome) { static_cast<void>(outcome); }

 private:
  using Callbacks = std::vector<std::function<void(const absl::StatusOr<int>&)>>;

  // Shared with the task that runs the callbacks.
  struct State {
    absl::Mutex mutex;
    std::optional<absl::StatusOr<int>> outcome ABSL_GUARDED_BY(mutex);
    Callbacks callbacks ABSL_GUARDED_BY(mutex);  // That nobody has begun to run.
  };

  bool HasEnded() const;
  // Poll; if the call has ended, this thread runs the callbacks that nobody has begun.
  bool PollAndCallBack();
  // The outcome if the device and Verdict know it.
  std::optional<absl::StatusOr<int>> FindOutcome();
  // Ends the call unless it has ended. Returns whether there are callbacks to be run.
  bool SetOutcome(const absl::StatusOr<int>& outcome);

  static void RunCallbacks(State& state, const std::shared_ptr<const Event>& end);
  static void LetGo(Callbacks callbacks, const std::shared_ptr<const Event>& end);

  const std::shared_ptr<const Event> end_;
  const int source_;
  const std::vector<Device> others_;
  const std::shared_ptr<State> state_;
};

// Ends the calls that it is given when their work ends, or at their deadlines, with a TimeoutError.
// One thread serves all of a process, and sleeps while there is no call. Thread-safe.
class StreamWatcher {
 public:
  // The one of the process, which lives as long.
  static StreamWatcher& Get();

  // Polls `handle` until it has ended. BackendError if no thread can be started, UnsupportedError
  // in a child of fork whose parent has called Get: its thread is not there.
  absl::Status Watch(std::shared_ptr<StreamHandle> handle, const Deadline& deadline);

 private:
  struct Watched {
    std::shared_ptr<StreamHandle> handle;
    Deadline deadline;
  };

  StreamWatcher() = default;
  void Loop();

  const ForkGuard fork_guard_;
  absl::Mutex mutex_;
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Watched> added_ ABSL_GUARDED_BY(mutex_);
};

// Keeps `held` until `event` has passed; TaskThread::Callbacks() lets go of it. Errors are those of
// StreamWatcher::Watch: then it is not kept, and whoever calls waits for the event.
absl::Status KeepUntil(std::shared_ptr<const Event> event, std::shared_ptr<const void> held);

}  // namespace syncline::device

#endif  // SYNCLINE_CORE_DEVICE_STREAM_HANDLE_H_
