#include "backends/mpi/mpi_runtime.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "backends/mpi/leftovers.h"
#include "backends/mpi/one_thread_api.h"
#include "backends/mpi/signal_handlers.h"
#include "core/base/env.h"
#include "core/base/thread.h"
#include "core/join/cluster_task.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

// How to start a job that the library can join.
absl::string_view LauncherOf(MpiFamily family) {
  switch (family) {
    case MpiFamily::kOpenMpi:
      return "mpirun of Open MPI, or srun --mpi=pmix";
    case MpiFamily::kMpich:
      return "mpiexec of MPICH, or srun --mpi=pmi2";
    case MpiFamily::kStandardAbi:
      break;
  }
  return "the mpiexec that is installed with it, or srun with the --mpi that it was built for";
}

// Which --mpi of srun has started this process, as far as its environment says.
absl::string_view SrunOption() {
  const std::optional<MpiFamily> served = FamilyOfLauncher(&base::GetEnv);
  if (!served.has_value()) return "without --mpi=pmix or --mpi=pmi2";
  return *served == MpiFamily::kMpich ? "with --mpi=pmi2" : "with --mpi=pmix";
}

// What to do where the launcher that has started this process does not serve `library`.
std::string Advice(const MpiLibrary& library) {
  return absl::StrCat(
      "Start the job with ", LauncherOf(library.family()),
      FamilyOfLauncher(&base::GetEnv).has_value()
          ? ", or set SYNCLINE_MPI_LIBRARY to the library of an MPI that this launcher serves"
          : "");
}

absl::Status FinalizedError() {
  return BackendError("MPI has been finalised in this process, and cannot be initialised again");
}

void LogIfError(const absl::Status& status) {
  if (!status.ok()) Log(LogLevel::kWarning, status.message());
}

}  // namespace

MpiRuntime& MpiRuntime::Instance() {
  static MpiRuntime* const instance = new MpiRuntime;
  return *instance;
}

absl::StatusOr<MpiRuntime*> MpiRuntime::Get(const Deadline& deadline) {
  MpiRuntime& runtime = Instance();
  // Before the mutex: another thread may have held it when the process was forked.
  if (runtime.fork_guard_.InChild()) {
    return BackendError(
        "MPI cannot be used in this process: it was forked from one that uses MPI. Start it with "
        "exec, or use MPI after the fork only");
  }
  SYNCLINE_RETURN_IF_ERROR(runtime.StartOnce(deadline));
  int is_finalized = 0;
  runtime.api_->finalized(&is_finalized);
  if (is_finalized != 0) return FinalizedError();
  return &runtime;
}

absl::Status MpiRuntime::StartOnce(const Deadline& deadline) {
  {
    absl::MutexLock lock(&mutex_);
    const auto is_settled = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state_ != State::kStarting;
    };
    if (!deadline.AwaitInterruptibly(mutex_, absl::Condition(&is_settled))) {
      SYNCLINE_RETURN_IF_ERROR(Interruption());
      return TimeoutError(absl::StrCat("another thread has been initialising MPI for ",
                                       absl::FormatDuration(deadline.timeout())));
    }
    if (state_ == State::kReady) return absl::OkStatus();
    if (state_ == State::kUnusable) return unusable_;
    state_ = State::kStarting;
  }
  // Where no library is found, one may be loaded later. MPI can be initialised once.
  const KeepSignalHandlers kept;
  absl::StatusOr<const MpiLibrary*> library = MpiLibrary::Get();
  absl::Status status = library.status();
  if (library.ok()) {
    library_ = *library;
    api_ = &library_->api();
    status = Start(deadline);
  }
  absl::MutexLock lock(&mutex_);
  if (state_ == State::kUnusable) return status;  // A call was given up.
  state_ = status.ok() ? State::kReady : library.ok() ? State::kUnusable : State::kNew;
  if (state_ == State::kUnusable) unusable_ = status;
  return status;
}

absl::Status MpiRuntime::Start(const Deadline& deadline) {
  int is_finalized = 0;
  SYNCLINE_RETURN_IF_ERROR(ToStatus(api_->finalized(&is_finalized), "MPI_Finalized"));
  if (is_finalized != 0) return FinalizedError();
  int is_initialized = 0;
  SYNCLINE_RETURN_IF_ERROR(ToStatus(api_->initialized(&is_initialized), "MPI_Initialized"));
  if (is_initialized != 0) {
    SYNCLINE_RETURN_IF_ERROR(CheckThreadLevel());
  } else {
    SYNCLINE_RETURN_IF_ERROR(CheckSrun());
    SYNCLINE_RETURN_IF_ERROR(Initialize(deadline));
  }
  SYNCLINE_RETURN_IF_ERROR(ToStatus(api_->before_finalize(&BeforeFinalize), "MPI_Comm_set_attr"));
  const absl::Status checked = CheckWorld();
  // A world of one finalises without waiting for anybody.
  if (!checked.ok() && is_ours_) {
    LogIfError(AwaitTask("MPI_Finalize", Deadline(absl::Seconds(10)), api_->finalize, true));
  }
  return checked;
}

// What the user has initialised.
absl::Status MpiRuntime::CheckThreadLevel() {
  MpiThreadLevel level = MpiThreadLevel::kSingle;
  SYNCLINE_RETURN_IF_ERROR(ToStatus(api_->query_thread(&level), "MPI_Query_thread"));
  if (level == MpiThreadLevel::kMultiple) return absl::OkStatus();
  return UnsupportedError(absl::StrCat(
      "MPI was initialised in this process with a thread level below MPI_THREAD_MULTIPLE, so that "
      "Syncline cannot call it beside the program: ask for that level in MPI_Init_thread, or leave "
      "the initialisation to Syncline (",
      library_->Describe(), ")"));
}

// In a step of Slurm Open MPI 4 never becomes a world of one: where nothing leads it to the other
// processes, MPI_Init ends this one, and says that Open MPI should have been built otherwise.
absl::Status MpiRuntime::CheckSrun() const {
  const auto is_set = [](absl::string_view name) { return base::GetEnv(name).has_value(); };
  if (!is_set("SLURM_STEP_ID") || !is_set("SLURM_NODELIST") || is_set("PMIX_NAMESPACE") ||
      is_set("OMPI_COMM_WORLD_SIZE") || library_->family() != MpiFamily::kOpenMpi ||
      !NeedsPmix(library_->path(), &base::GetEnv)) {
    return absl::OkStatus();
  }
  return BackendError(absl::StrCat(
      "MPI cannot be initialised: srun of Slurm has started this process ", SrunOption(), ", and ",
      library_->Describe(), " finds the others by PMIx alone. ", Advice(*library_)));
}

// Some libraries end the process in MPI_Init where the launcher is not theirs; the last word then
// is this one.
void MpiRuntime::WarnOfLauncher() const {
  const std::optional<MpiFamily> served = FamilyOfLauncher(&base::GetEnv);
  const bool is_served = !served.has_value() || *served == library_->family() ||
                         library_->family() == MpiFamily::kStandardAbi;
  if (is_served) return;
  Log(LogLevel::kWarning,
      absl::StrCat("initialising ", library_->Describe(), " in a process whose launcher serves ",
                   NameOf(*served), ": they may not find each other, and MPI_Init may end the ",
                   "process. ", Advice(*library_)));
}

absl::Status MpiRuntime::Initialize(const Deadline& deadline) {
  WarnOfLauncher();
  absl::StatusOr<std::thread> thread = base::StartThread("MPI", [this] { RunTasks(); });
  SYNCLINE_RETURN_IF_ERROR(thread.status());
  {
    absl::MutexLock lock(&mutex_);
    mpi_thread_ = thread->get_id();
  }
  thread->detach();
  const auto level = std::make_shared<MpiThreadLevel>(MpiThreadLevel::kSingle);
  SYNCLINE_RETURN_IF_ERROR(AwaitTask(
      "MPI_Init_thread", deadline, [api = api_, level] { return api->init_thread(level.get()); },
      true));
  is_ours_ = true;
  is_direct_ = *level == MpiThreadLevel::kMultiple;
  if (!is_direct_) {
    api_ = MakeOneThreadApi(library_->api(), [](absl::FunctionRef<void()> function) {
      return Instance().CallOnMpiThread(function).ok();
    });
  }
  std::atexit(&FinalizeAtExit);
  return absl::OkStatus();
}

absl::Status MpiRuntime::CheckWorld() {
  int error = api_->comm_rank(api_->comm_world(), &world_rank_);
  if (error == kMpiSuccess) error = api_->comm_size(api_->comm_world(), &world_size_);
  SYNCLINE_RETURN_IF_ERROR(ToStatus(error, "MPI_Comm_size"));
  const std::optional<join::ClusterTask> task = join::DetectTask(&base::GetEnv);
  if (world_size_ > 1 || !task.has_value() || !task->defect.empty() || task->size == 1) {
    return absl::OkStatus();
  }
  const bool is_slurm = task->launcher == "Slurm";
  return BackendError(absl::StrCat(
      "MPI has come up as a world of one process, but ", task->command, " of ", task->launcher,
      " has started ", task->size, " (", task->size_from, ")", is_slurm ? " " : "",
      is_slurm ? SrunOption() : "", ": ", library_->Describe(),
      is_slurm ? " does not find the others that way. " : " is not the MPI of that launcher. ",
      Advice(*library_)));
}

absl::Status MpiRuntime::ToStatus(int error, absl::string_view what) const {
  if (error == kMpiSuccess) return absl::OkStatus();
  std::array<char, 2048> text{};
  api_->error_string(error, text.data(), text.size());
  return BackendError(absl::StrCat(
      what, ": ", absl::StrReplaceAll(absl::StripAsciiWhitespace(text.data()), {{"\n", "; "}}),
      "; ", library_->Describe()));
}

absl::Status MpiRuntime::CallBlocking(absl::string_view what, const Deadline& deadline,
                                      std::function<int()> function) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ == State::kUnusable) return unusable_;
  }
  return AwaitTask(what, deadline, std::move(function), !is_direct_);
}

absl::Status MpiRuntime::AwaitTask(absl::string_view what, const Deadline& deadline,
                                   std::function<int()> function, bool on_mpi_thread) {
  const auto task = std::make_shared<Task>();
  task->function = std::move(function);
  if (!on_mpi_thread) {
    absl::StatusOr<std::thread> thread = base::StartThread(what, [this, task] { RunTask(*task); });
    SYNCLINE_RETURN_IF_ERROR(thread.status());
    thread->detach();
  }
  absl::MutexLock lock(&mutex_);
  if (on_mpi_thread) tasks_.push_back(task);
  if (deadline.AwaitInterruptibly(mutex_, absl::Condition(&task->is_done))) {
    return ToStatus(task->result, what);
  }
  MarkFailed();
  absl::Status status = Interruption();
  if (status.ok()) {
    status = TimeoutError(absl::StrCat(
        what, " has not returned within ", absl::FormatDuration(deadline.timeout()),
        ": it waits for all processes that are to take part in it; ", library_->Describe()));
  }
  if (on_mpi_thread) {
    Forget(task);
    state_ = State::kUnusable;
    unusable_ = BackendError(
        absl::StrCat("MPI cannot be used in this process any more: ", status.message()));
  }
  return status;
}

absl::Status MpiRuntime::CallOnMpiThread(absl::FunctionRef<void()> function) {
  absl::ReleasableMutexLock lock(&mutex_);
  if (std::this_thread::get_id() == mpi_thread_) {
    lock.Release();
    function();
    return absl::OkStatus();
  }
  if (state_ == State::kUnusable) return unusable_;
  const auto task = std::make_shared<Task>();
  task->function = [function] {
    function();
    return kMpiSuccess;
  };
  tasks_.push_back(task);
  // What the thread has begun it ends, as `function` does not block. It begins, unless a call
  // before is given up.
  const auto is_settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return task->is_done || (!task->has_begun && state_ == State::kUnusable);
  };
  mutex_.Await(absl::Condition(&is_settled));
  if (task->is_done) return absl::OkStatus();
  Forget(task);
  return unusable_;
}

void MpiRuntime::Forget(const std::shared_ptr<Task>& task) {
  tasks_.erase(std::remove(tasks_.begin(), tasks_.end(), task), tasks_.end());
}

void MpiRuntime::RunTasks() {
  while (true) {
    std::shared_ptr<Task> task;
    {
      const auto has_task = [this]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !tasks_.empty(); };
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_task));
      task = std::move(tasks_.front());
      tasks_.pop_front();
      task->has_begun = true;
    }
    RunTask(*task);
  }
}

void MpiRuntime::RunTask(Task& task) {
  const int result = task.function();
  absl::MutexLock lock(&mutex_);
  task.result = result;
  task.is_done = true;
}

absl::Status MpiRuntime::Finalize(const Deadline& deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (state_ != State::kReady || !is_ours_ || has_failed() || pending_ > 0) {
      return absl::OkStatus();
    }
    // The thread that would finalise has called exit(): the process ends without it.
    if (std::this_thread::get_id() == mpi_thread_) return absl::OkStatus();
    state_ = State::kUnusable;
    unusable_ = FinalizedError();
  }
  const auto finalize = [api = api_] {
    // The program may have done it. No other call is allowed then.
    int is_finalized = 0;
    api->finalized(&is_finalized);
    if (is_finalized != 0) return kMpiSuccess;
    // The leave messages of peers are on their way: what they find no receive for, UCX warns of.
    const Deadline arriving(absl::Milliseconds(100));
    while (!SweepLeftovers(Sweep::kNow) && !arriving.Expired())
      absl::SleepFor(absl::Microseconds(50));
    SweepLeftovers(Sweep::kBeforeFinalize);
    return api->finalize();
  };
  return AwaitTask("MPI_Finalize", deadline, finalize, true);
}

MpiRuntime::ObserverId MpiRuntime::AddBeforeFinalize(std::function<void()> function) {
  absl::MutexLock lock(&observers_mutex_);
  return observers_.insert(observers_.end(), std::move(function));
}

void MpiRuntime::RemoveBeforeFinalize(ObserverId id) {
  absl::MutexLock lock(&observers_mutex_);
  observers_.erase(id);
}

void MpiRuntime::BeforeFinalize() {
  MpiRuntime& runtime = Instance();
  if (runtime.fork_guard_.InChild()) return;
  {
    absl::MutexLock lock(&runtime.mutex_);
    runtime.state_ = State::kUnusable;
    runtime.unusable_ = FinalizedError();
  }
  {
    absl::MutexLock lock(&runtime.observers_mutex_);
    for (const std::function<void()>& observer : runtime.observers_) observer();
  }
  SweepLeftovers(Sweep::kBeforeFinalize);
  AbandonLeftovers();
}

void MpiRuntime::FinalizeAtExit() {
  MpiRuntime& runtime = Instance();
  if (runtime.fork_guard_.InChild()) return;
  const Uninterruptible until_finalized;
  LogIfError(
      runtime.Finalize(Deadline(runtime.is_doubtful_ ? kDoubtfulExitTimeout : kExitTimeout)));
}

}  // namespace syncline::mpi
