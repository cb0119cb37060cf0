#include "core/base/process_state.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

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

}  // namespace

// proc(5), /proc/pid/stat: of the fields after the command, which may itself hold spaces and
// parentheses, the first is the state, the 7th the kernel's flags and the 20th the start time. The
// file of the process's first thread says the same. qemu-user, by which containers of another
// architecture run, makes up /proc/pid/stat for a process that reads its own, with a start time
// that its peers do not see.
absl::StatusOr<ProcessState> ReadProcess(int pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/task/", pid, "/stat");
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
  ProcessState process;
  int64_t flags;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[1], &process.parent) ||
      !absl::SimpleAtoi(fields[6], &flags) || !absl::SimpleAtoi(fields[19], &process.started)) {
    return BackendError(absl::StrCat(path, " is not understood"));
  }
  process.program = std::string(text.substr(command + 1, command_end - command - 1));
  process.is_zombie = fields[0] == "Z" || fields[0] == "X";
  process.is_ending = process.is_zombie || (flags & kExiting) != 0;
  process.is_stopped = fields[0] == "T" || fields[0] == "t";
  return process;
}

std::string PidNamespace() {
  char link[64] = {};
  return readlink("/proc/self/ns/pid", link, sizeof(link) - 1) > 0 ? link : "-";
}

}  // namespace syncline::base
