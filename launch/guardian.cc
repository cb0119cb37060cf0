#include "launch/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// The protocol of the pipe: a group to add, the negative of a group to remove, or kFolder, followed
// by the length of a path and the path.
using Message = pid_t;
constexpr Message kFolder = 0;
constexpr absl::Duration kFolderRetry = absl::Milliseconds(20);
constexpr int kFolderRetries = 100;
constexpr int kEndTimeoutMs = 3000;  // More than all retries take.

void Send(int pipe, absl::string_view bytes) {
  // If the guardian has died, the write fails, and the job goes on without this second safety.
  [[maybe_unused]] const ssize_t written = write(pipe, bytes.data(), bytes.size());
}

void SendMessage(int pipe, Message message) {
  Send(pipe, {reinterpret_cast<const char*>(&message), sizeof(message)});
}

// False at the pipe's end.
bool Receive(int pipe, void* data, size_t size) {
  for (size_t at = 0; at < size;) {
    const ssize_t received = read(pipe, static_cast<char*>(data) + at, size - at);
    if (received == 0 || (received < 0 && errno != EINTR)) return false;
    if (received > 0) at += static_cast<size_t>(received);
  }
  return true;
}

// Processes that are being killed may still write into it.
void RemoveFolder(const std::string& folder) {
  std::error_code ignored;
  for (int i = 0; i < kFolderRetries && !folder.empty(); ++i) {
    std::filesystem::remove_all(folder, ignored);
    if (!std::filesystem::exists(folder, ignored)) return;
    absl::SleepFor(kFolderRetry);
  }
}

[[noreturn]] void Guard(int pipe) {
  prctl(PR_SET_NAME, "syncline-guard");
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // The guardian must not keep the launcher's output pipes open: their readers wait for the end.
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  std::set<pid_t> groups;
  std::string folder;
  for (Message message; Receive(pipe, &message, sizeof(message));) {
    if (message == kFolder) {
      size_t size = 0;
      if (!Receive(pipe, &size, sizeof(size))) break;
      std::string path(size, '\0');
      if (!Receive(pipe, path.data(), size)) break;
      folder = path;
    } else if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  RemoveFolder(folder);
  _exit(0);
}

}  // namespace

Guardian::Guardian(pid_t pid, base::UniqueFd pipe) : pid_(pid), pipe_(std::move(pipe)) {}

absl::StatusOr<Guardian> Guardian::Start() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return BackendError(absl::StrCat("no pipe for the guardian: ", std::strerror(errno)));
  }
  base::UniqueFd reader(fds[0]);
  base::UniqueFd writer(fds[1]);
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
  // A guardian that is stopped, or whose disk does not answer, finishes by itself later.
  const base::UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  pollfd ended = {process.get(), POLLIN, 0};
  if (process.valid() && poll(&ended, 1, kEndTimeoutMs) == 0) return;
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::Own(const std::string& folder) {
  const size_t size = folder.size();
  std::string message(reinterpret_cast<const char*>(&kFolder), sizeof(kFolder));
  message.append(reinterpret_cast<const char*>(&size), sizeof(size));
  Send(pipe_.get(), message + folder);
}

void Guardian::Add(pid_t group) { SendMessage(pipe_.get(), group); }

void Guardian::Remove(pid_t group) { SendMessage(pipe_.get(), -group); }

}  // namespace syncline::launch
