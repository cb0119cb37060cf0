#include "tests/support/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "syncline/deadline.h"

namespace syncline {
namespace {

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

// A thread is listed for a moment after it has been joined: proc(5), flags in /proc/PID/stat.
bool IsEnding(const std::filesystem::path& task) {
  constexpr unsigned kExiting = 0x4;  // PF_EXITING
  std::ifstream file(task / "stat");
  std::string stat;
  std::getline(file, stat, '\0');
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return true;  // It has gone.
  unsigned flags = 0;
  std::sscanf(stat.c_str() + name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags);
  return (flags & kExiting) != 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>("worker")};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) Die("pipe");
  output_ = fds[0];
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) Die("fork");
  if (pid_ == 0) {
    // Stays across exec. Counts on the parent's thread living on, as that of a test does.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(fds[1], STDOUT_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  close(fds[1]);
}

Process::~Process() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(output_);
}

std::string Process::Output(absl::Duration limit) {
  const Deadline deadline(limit);
  std::string text;
  char buffer[4096];
  while (!deadline.Expired()) {
    pollfd ready = {output_, POLLIN, 0};
    const int events =
        poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(deadline.Remaining()) + 1));
    if (events == 0 || (events < 0 && errno == EINTR)) continue;
    const ssize_t n = read(output_, buffer, sizeof(buffer));
    if (n == 0) return text;
    if (n > 0) text.append(buffer, n);
    if (n < 0 && errno != EINTR) Die("read");
  }
  return absl::StrCat(text, "not ended after ", absl::FormatDuration(limit), "\n");
}

int64_t CountPossessions(int64_t expected) {
  const Deadline deadline(absl::Seconds(5));
  const bool is_given = expected != std::numeric_limits<int64_t>::max();
  int64_t previous = -1;
  for (int in_a_row = 1;; ++in_a_row) {
    const std::filesystem::directory_iterator files("/proc/self/fd"), tasks("/proc/self/task");
    const int64_t count = std::distance(begin(files), end(files)) +
                          std::count_if(begin(tasks), end(tasks),
                                        [](const auto& task) { return !IsEnding(task.path()); });
    // Threads that end while the kernel lists them cut the list short. So only what was counted
    // twice in a row counts, and fewer than are expected more often.
    if (count != previous) in_a_row = 1;
    const int enough = is_given && count < expected ? 20 : 2;
    if ((in_a_row >= enough && count <= expected) || deadline.Expired()) return count;
    previous = count;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

std::set<int> ListeningPorts() {
  std::set<int> ports;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    int descriptor = -1, listens = 0;
    socklen_t length = sizeof(listens);
    sockaddr_in address = {};
    socklen_t address_length = sizeof(address);
    if (absl::SimpleAtoi(entry->d_name, &descriptor) &&
        getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) == 0 && listens != 0 &&
        getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &address_length) == 0 &&
        address.sin_family == AF_INET) {
      ports.insert(ntohs(address.sin_port));
    }
  }
  closedir(folder);
  return ports;
}

ScratchFolder::ScratchFolder() {
  std::error_code ignored;
  std::string path = (std::filesystem::temp_directory_path(ignored) / "syncline_XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) Die("mkdtemp");
  path_ = path;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace syncline
