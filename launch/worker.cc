#include "launch/worker.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launch/descriptor_limit.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

struct Pipe {
  base::UniqueFd reader;
  base::UniqueFd writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return BackendError(absl::StrCat("no pipe for a worker: ", std::strerror(errno),
                                     ". Raise the limit of open files (ulimit -n)"));
  }
  return Pipe{base::UniqueFd(fds[0]), base::UniqueFd(fds[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, prepared before it exists, because it may only make system calls.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int input;  // -1: inherited.
  int out;    // As input.
  int err;
  const cpu_set_t* cpus;  // Null: inherited.
  size_t cpus_size;
  rlimit descriptors;
  pid_t parent;
  int error = 0;  // Set by the child if the program cannot be run.
};

// Resets what a program would inherit from the launcher across exec: ignored and blocked signals,
// the session, the CPUs, the limit of descriptors. Returns 0 or errno.
int PrepareChild(const ChildPlan& plan) {
  setsid();
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (getppid() != plan.parent) return ESRCH;  // It died before prctl.
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &defaults, nullptr);
  sigaction(SIGXFSZ, &defaults, nullptr);
  // A shell without job control lets what it starts in the background ignore the first two. SIGHUP
  // stays as it is, for nohup.
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM}) sigaction(signal, &defaults, nullptr);
  if (plan.cpus != nullptr && sched_setaffinity(0, plan.cpus_size, plan.cpus) != 0) return errno;
  // A soft limit below the numbers of descriptors that are open is no error.
  if (setrlimit(RLIMIT_NOFILE, &plan.descriptors) != 0) return errno;
  if (plan.input >= 0 && dup2(plan.input, STDIN_FILENO) < 0) return errno;
  if (plan.out >= 0 && dup2(plan.out, STDOUT_FILENO) < 0) return errno;
  if (plan.err >= 0 && dup2(plan.err, STDERR_FILENO) < 0) return errno;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  return 0;
}

int RunChild(void* argument) {
  ChildPlan& plan = *static_cast<ChildPlan*>(argument);
  plan.error = PrepareChild(plan);
  if (plan.error == 0) {
    execve(plan.program, plan.arguments, plan.environment);
    plan.error = errno;
  }
  syscall(SYS_exit_group, 127);  // Not _exit(), which sanitizers take as the launcher's end.
  return 127;
}

// As vfork: the child borrows this process's memory, on a stack of its own, until its program runs.
// Copying the launcher's page tables instead (fork) takes four times as long, and posix_spawn can
// set neither the signal at the parent's death nor the CPUs. The child may only make system calls;
// with all signals blocked no handler runs in it. -1 with errno if there is no child.
pid_t StartChild(ChildPlan* plan) {
  constexpr size_t kStackSize = 64 << 10;
  const std::unique_ptr<char[]> stack(new char[kStackSize]);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid =
      clone(RunChild, stack.get() + kStackSize, CLONE_VM | CLONE_VFORK | SIGCHLD, plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const int count = *std::max_element(cpus.begin(), cpus.end()) + 1;
    size_ = CPU_ALLOC_SIZE(count);
    set_ = CPU_ALLOC(count);
    CPU_ZERO_S(size_, set_);
    for (const int cpu : cpus) CPU_SET_S(cpu, size_, set_);
  }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  ~CpuSet() {
    if (set_ != nullptr) CPU_FREE(set_);
  }

  const cpu_set_t* get() const { return set_; }
  size_t size() const { return size_; }

 private:
  size_t size_ = 0;
  cpu_set_t* set_ = nullptr;
};

bool IsExecutableFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

Worker::Worker(pid_t pid, base::UniqueFd out, base::UniqueFd err)
    : pid_(pid), out_(std::move(out)), err_(std::move(err)) {}

absl::StatusOr<Worker> Worker::Start(const WorkerSpec& spec) {
  SYNCLINE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  SYNCLINE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  base::UniqueFd input;
  if (spec.input == WorkerSpec::Input::kNone)
    input = base::UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  fcntl(out.reader.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.reader.get(), F_SETFL, O_NONBLOCK);
  const std::vector<char*> arguments = Pointers(spec.arguments);
  const std::vector<char*> environment = Pointers(spec.environment);
  const CpuSet cpus(spec.cpus);
  if (spec.output == WorkerSpec::Output::kInherited) {
    out.writer.reset();
    err.writer.reset();
  }
  ChildPlan plan = {spec.program.c_str(),       arguments.data(), environment.data(), input.get(),
                    out.writer.get(),           err.writer.get(), cpus.get(),         cpus.size(),
                    InheritedDescriptorLimit(), getpid()};
  const pid_t pid = StartChild(&plan);
  if (pid < 0) {
    return BackendError(absl::StrCat("no process for a worker: ", std::strerror(errno),
                                     ". Check the limits of processes (ulimit -u) and memory"));
  }
  if (plan.error != 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return ArgumentError(
        absl::StrCat("'", spec.program, "' cannot be run: ", std::strerror(plan.error)));
  }
  return Worker(pid, std::move(out.reader), std::move(err.reader));
}

void Worker::Signal(int signal) const {
  if (!reaped_) kill(pid_, signal);
}

void Worker::SignalGroup(int signal) const {
  if (!reaped_) kill(-pid_, signal);
}

absl::StatusOr<std::string> FindProgram(absl::string_view name, absl::string_view path) {
  if (name.find('/') != absl::string_view::npos) {
    std::string file(name);
    if (IsExecutableFile(file)) return file;
    return ArgumentError(absl::StrCat("'", name, "' is not an executable file"));
  }
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    std::string file = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (IsExecutableFile(file)) return file;
  }
  return ArgumentError(absl::StrCat("there is no program '", name, "' in PATH (", path,
                                    "). Write ./", name, " for one in this folder"));
}

}  // namespace syncline::launch
