#include "launch/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"

namespace syncline {
namespace {

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return BackendError(absl::StrCat("no pipe for a worker: ", std::strerror(errno),
                                     ". Raise the limit of open files (ulimit -n)"));
  }
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& string : strings) pointers.push_back(const_cast<char*>(string.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, made before the fork: other threads may hold any lock at that moment,
// so that the child may only make system calls.
struct ChildPlan {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int input;  // -1: inherited.
  int out;
  int err;
  int report;  // Takes errno if the program cannot be run; closed by exec.
  pid_t parent;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  setpgid(0, 0);
  bool ready = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0;
  if (getppid() != plan.parent) _exit(127);  // It died before prctl.
  // The launcher ignores it, and what is ignored stays so across exec.
  struct sigaction defaults = {};
  defaults.sa_handler = SIG_DFL;
  sigaction(SIGPIPE, &defaults, nullptr);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  ready = ready && (plan.input < 0 || dup2(plan.input, STDIN_FILENO) >= 0) &&
          dup2(plan.out, STDOUT_FILENO) >= 0 && dup2(plan.err, STDERR_FILENO) >= 0;
  if (ready) execve(plan.program, plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(plan.report, &error, sizeof(error));
  _exit(127);
}

// 0 once the child has become the program, otherwise the errno that prevented it.
int AwaitExec(int report) {
  int error = 0;
  ssize_t size;
  do {
    size = read(report, &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  return size == sizeof(error) ? error : 0;
}

bool IsExecutableFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

Worker::Worker(pid_t pid, UniqueFd out, UniqueFd err)
    : pid_(pid), out_(std::move(out)), err_(std::move(err)) {}

absl::StatusOr<Worker> Worker::Start(const WorkerSpec& spec) {
  SYNCLINE_ASSIGN_OR_RETURN(Pipe out, MakePipe());
  SYNCLINE_ASSIGN_OR_RETURN(Pipe err, MakePipe());
  SYNCLINE_ASSIGN_OR_RETURN(Pipe report, MakePipe());
  UniqueFd input;
  if (spec.input == WorkerSpec::Input::kNone)
    input = UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  fcntl(out.reader.get(), F_SETFL, O_NONBLOCK);
  fcntl(err.reader.get(), F_SETFL, O_NONBLOCK);
  const std::vector<char*> arguments = Pointers(spec.arguments);
  const std::vector<char*> environment = Pointers(spec.environment);
  const ChildPlan plan = {spec.program.c_str(), arguments.data(), environment.data(),  input.get(),
                          out.writer.get(),     err.writer.get(), report.writer.get(), getpid()};
  const pid_t pid = fork();
  if (pid == 0) RunChild(plan);
  if (pid < 0) {
    return BackendError(absl::StrCat("no process for a worker: ", std::strerror(errno),
                                     ". Check the limits of processes (ulimit -u) and memory"));
  }
  report.writer.reset();
  if (const int error = AwaitExec(report.reader.get()); error != 0) {
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    return ArgumentError(
        absl::StrCat("'", spec.program, "' cannot be run: ", std::strerror(error)));
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

}  // namespace syncline
