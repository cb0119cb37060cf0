#include "core/base/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

// PF_EXITING of the kernel. Set before a process's connections are closed, so that whoever sees
// them close also sees this; it becomes a zombie only later.
constexpr int64_t kExiting = 0x4;

absl::Status Failed(const std::string& path) {
  // The process may end between the two calls; then the second one fails with ESRCH.
  const bool is_gone = errno == ENOENT || errno == ESRCH;
  const std::string text = absl::StrCat("cannot read ", path, ": ", std::strerror(errno));
  return is_gone ? absl::NotFoundError(text) : BackendError(text);
}

// A thread of a process, or its first one.
struct ThreadState {
  ProcessState process;
  int threads = 0;  // Of the process.
};

// proc(5), /proc/pid/stat: of the fields after the command, which may itself hold spaces and
// parentheses, the first is the state, the 7th the kernel's flags and the 20th the start time. The
// file of the process's first thread says the same. qemu-user, by which containers of another
// architecture run, makes up /proc/pid/stat for a process that reads its own, with a start time
// that its peers do not see.
absl::StatusOr<ThreadState> ReadStat(int pid, absl::string_view thread) {
  const std::string path = absl::StrCat("/proc/", pid, "/task/", thread, "/stat");
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Failed(path);
  char buffer[4096];  // A line of at most 52 numbers and a command of 64 bytes.
  const ssize_t size = read(file.get(), buffer, sizeof(buffer));
  if (size < 0) return Failed(path);
  const absl::string_view text(buffer, size);
  const size_t command = text.find('('), command_end = text.rfind(')');
  if (command_end == text.npos) return absl::NotFoundError(absl::StrCat(path, " is empty"));
  const std::vector<absl::string_view> fields =
      absl::StrSplit(text.substr(command_end + 1), absl::MaxSplits(' ', 21), absl::SkipEmpty());
  ThreadState state;
  ProcessState& process = state.process;
  int64_t flags;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[1], &process.parent) ||
      !absl::SimpleAtoi(fields[6], &flags) || !absl::SimpleAtoi(fields[17], &state.threads) ||
      !absl::SimpleAtoi(fields[19], &process.started)) {
    return BackendError(absl::StrCat(path, " is not understood"));
  }
  process.program = std::string(text.substr(command + 1, command_end - command - 1));
  process.is_zombie = fields[0] == "Z" || fields[0] == "X";
  process.is_ending = process.is_zombie || (flags & kExiting) != 0;
  process.is_stopped = fields[0] == "T" || fields[0] == "t";
  return state;
}

// A thread that does not end, if there is any.
absl::StatusOr<std::optional<ProcessState>> FindLivingThread(int pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/task");
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) return Failed(path);
  const absl::Cleanup close = [folder] { closedir(folder); };
  while (const dirent* const entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    const absl::StatusOr<ThreadState> thread = ReadStat(pid, entry->d_name);
    if (absl::IsNotFound(thread.status())) continue;
    SYNCLINE_RETURN_IF_ERROR(thread.status());
    if (!thread->process.is_ending) return thread->process;
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<ProcessState> ReadThread(int tid) {
  SYNCLINE_ASSIGN_OR_RETURN(const ThreadState thread, ReadStat(tid, absl::StrCat(tid)));
  return thread.process;
}

// The first thread may end before the others, by pthread_exit(3).
absl::StatusOr<ProcessState> ReadProcess(int pid) {
  SYNCLINE_ASSIGN_OR_RETURN(ThreadState first, ReadStat(pid, absl::StrCat(pid)));
  ProcessState& process = first.process;
  if (!process.is_ending || first.threads < 2) return process;
  SYNCLINE_ASSIGN_OR_RETURN(const std::optional<ProcessState> living, FindLivingThread(pid));
  if (!living.has_value()) return process;
  process.is_zombie = process.is_ending = false;
  process.is_stopped = living->is_stopped;
  return process;
}

std::string PidNamespace() {
  char link[64] = {};
  return readlink("/proc/self/ns/pid", link, sizeof(link) - 1) > 0 ? link : "-";
}

}  // namespace syncline::base
