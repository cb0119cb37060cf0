#include "launch/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

// What goes through the pipe: a group to add, or the negative of one to remove.
using Message = pid_t;

void Send(int pipe, Message message) {
  // If the guardian is gone there is nobody to tell; what it does is a second safety.
  [[maybe_unused]] const ssize_t written = write(pipe, &message, sizeof(message));
}

[[noreturn]] void Guard(int pipe) {
  prctl(PR_SET_NAME, "syncline-guard");
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Whoever reads the launcher's output is not to wait for the guardian.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  std::set<pid_t> groups;
  for (;;) {
    Message message = 0;
    const ssize_t size = read(pipe, &message, sizeof(message));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(message)) break;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

Guardian::Guardian(pid_t pid, UniqueFd pipe) : pid_(pid), pipe_(std::move(pipe)) {}

absl::StatusOr<Guardian> Guardian::Start() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return BackendError(absl::StrCat("no pipe for the guardian: ", std::strerror(errno)));
  }
  UniqueFd reader(fds[0]);
  UniqueFd writer(fds[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return BackendError(absl::StrCat("no process for the guardian: ", std::strerror(errno)));
  }
  if (pid == 0) {
    writer.reset();
    Guard(reader.get());
  }
  return Guardian(pid, std::move(writer));
}

Guardian::~Guardian() {
  if (!pipe_.valid()) return;
  pipe_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::Add(pid_t group) { Send(pipe_.get(), group); }

void Guardian::Remove(pid_t group) { Send(pipe_.get(), -group); }

}  // namespace syncline
