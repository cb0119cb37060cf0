// MPI in this process: initialised once, by Syncline or by the user, and finalised by whoever
// initialised it.
//
// MPI's functions that have no other form than a blocking one (MPI_Init_thread, MPI_Finalize, those
// that make communicators) run on threads of Syncline, so that a deadline can give them up. All
// others may be called through api(), on any thread.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_RUNTIME_H_
#define SYNCLINE_BACKENDS_MPI_MPI_RUNTIME_H_

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "backends/mpi/mpi_api.h"
#include "backends/mpi/mpi_library.h"
#include "syncline/deadline.h"
#include "syncline/fork.h"

namespace syncline::mpi {

// There is one for a process, which is never destroyed. Any thread may use it; after fork() the
// child may not, and gets an error from Get.
class MpiRuntime {
 public:
  // MPI, ready to be used: loads the library and initialises it, unless that has been done. Blocks
  // until all processes that the launcher has started do so.
  //
  // Besides the errors of MpiLibrary::Get: TimeoutError if MPI_Init_thread has not returned by the
  // deadline; UnsupportedError if the user has initialised MPI with less than MPI_THREAD_MULTIPLE;
  // BackendError if it has failed, if MPI has been finalised, if it has come up as a world of one
  // although the launcher has started more processes, or if MPI_Init_thread would end the process:
  // the library is not that launcher's. After an error of MPI_Init_thread every later call quotes
  // it: MPI can be initialised once.
  static absl::StatusOr<MpiRuntime*> Get(const Deadline& deadline);

  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  const MpiLibrary& library() const { return *library_; }
  // Any thread may call its functions, whatever thread level the library grants: see is_direct().
  const MpiApi& api() const { return *api_; }
  bool is_ours() const { return is_ours_; }  // Initialised here, not by the user.
  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }

  // Whether any thread may call MPI itself. If not, the library has granted less than
  // MPI_THREAD_MULTIPLE: the functions of api() then have one thread of Syncline make the call, and
  // wait for it, also while that thread is in a blocking call of another; they return an error if
  // it is stuck in one that was given up, or if MPI is finalised.
  bool is_direct() const { return is_direct_; }

  // Calls `function`, which returns an error code of MPI and may block, on a thread of Syncline,
  // and waits for it. `what` is the MPI function's name, for messages.
  //
  // A TimeoutError at the deadline, or an InterruptedError, leaves the call behind: `function` may
  // go on for ever, so it owns what it uses. MPI is then marked as failed; without is_direct() all
  // later calls of MPI return an error.
  absl::Status CallBlocking(absl::string_view what, const Deadline& deadline,
                            std::function<int()> function);

  // The error of the MPI function `what` that has returned `error`; OK for kMpiSuccess.
  absl::Status ToStatus(int error, absl::string_view what) const;

  // After this MPI is not finalised any more: a process of the job has died, or may have, and
  // MPI_Finalize would wait for it. What goes on among others is not touched.
  void MarkFailed() { has_failed_.store(true, std::memory_order_relaxed); }
  // After this the end of the process waits for MPI_Finalize for kDoubtfulExitTimeout at most: a
  // group has failed, so some process may not come.
  void MarkDoubtful() { is_doubtful_.store(true, std::memory_order_relaxed); }
  bool has_failed() const { return has_failed_.load(std::memory_order_relaxed); }
  // Between the two a collective has not completed, because a process has not called it: MPI is not
  // finalised meanwhile.
  void BeginPending() { pending_.fetch_add(1, std::memory_order_relaxed); }
  void EndPending() { pending_.fetch_sub(1, std::memory_order_relaxed); }

  // `function` is called when MPI_Finalize is called, by whomever, on that thread, before anything
  // is finalised: it ends what uses MPI, as MPI ends a process that uses it afterwards. Until
  // Remove has returned; Remove must not be called by `function`.
  using ObserverId = std::list<std::function<void()>>::iterator;
  ObserverId AddBeforeFinalize(std::function<void()> function)
      ABSL_LOCKS_EXCLUDED(observers_mutex_);
  void RemoveBeforeFinalize(ObserverId id) ABSL_LOCKS_EXCLUDED(observers_mutex_);

  // Finalises MPI, if it is_ours(), nothing is marked as failed or pending, and nobody has
  // finalised it; Get returns an error from then on. Blocks until all processes of the job do so,
  // by the deadline at the most. Requires that no operation is in progress and that communicators
  // are freed. Happens at the end of the process, after main() or in exit(), with kExitTimeout, if
  // it was not called.
  absl::Status Finalize(const Deadline& deadline);

  static constexpr absl::Duration kExitTimeout = absl::Minutes(5);
  static constexpr absl::Duration kDoubtfulExitTimeout = absl::Seconds(10);

 private:
  // A call on a thread of this class. Guarded by mutex_.
  struct Task {
    std::function<int()> function;
    bool has_begun = false;
    bool is_done = false;
    int result = kMpiSuccess;
  };

  MpiRuntime() = default;

  static MpiRuntime& Instance();
  static void FinalizeAtExit();
  static void BeforeFinalize();

  absl::Status StartOnce(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Start(const Deadline& deadline);
  absl::Status CheckThreadLevel();
  absl::Status CheckSrun() const;
  void WarnOfLauncher() const;
  absl::Status Initialize(const Deadline& deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CheckWorld();

  // Has the MPI thread, or one of its own, call `function`; the rest as CallBlocking.
  absl::Status AwaitTask(absl::string_view what, const Deadline& deadline,
                         std::function<int()> function, bool on_mpi_thread)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CallOnMpiThread(absl::FunctionRef<void()> function) ABSL_LOCKS_EXCLUDED(mutex_);
  void Forget(const std::shared_ptr<Task>& task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTasks() ABSL_LOCKS_EXCLUDED(mutex_);
  void RunTask(Task& task) ABSL_LOCKS_EXCLUDED(mutex_);

  const ForkGuard fork_guard_;
  // Set by Get before it first returns the object, and constant from then on.
  const MpiLibrary* library_ = nullptr;
  const MpiApi* api_ = nullptr;
  bool is_ours_ = false;
  bool is_direct_ = true;
  int world_rank_ = 0;
  int world_size_ = 1;

  std::atomic<bool> has_failed_{false}, is_doubtful_{false};
  std::atomic<int> pending_{0};

  absl::Mutex observers_mutex_;
  std::list<std::function<void()>> observers_ ABSL_GUARDED_BY(observers_mutex_);

  absl::Mutex mutex_;
  enum class State {
    kNew,
    kStarting,
    kReady,
    kUnusable
  } state_ ABSL_GUARDED_BY(mutex_) = State::kNew;
  absl::Status unusable_ ABSL_GUARDED_BY(mutex_);  // Why, in that state.
  // If is_ours_: this thread has initialised MPI, and finalises it, as MPI wants one thread for
  // both. Without is_direct_ it makes all other calls too. It runs until the process ends.
  std::thread::id mpi_thread_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Task>> tasks_ ABSL_GUARDED_BY(mutex_);  // Its queue.
};

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_RUNTIME_H_
