#include "core/process_state.h"

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncline {
namespace {

// PF_EXITING of the kernel. Set before a process's connections are closed, so that whoever sees
// them close also sees this; it becomes a zombie only later.
constexpr int64_t kExiting = 0x4;

}  // namespace

// proc(5), /proc/pid/stat: of the fields after the command, which may itself hold spaces and
// parentheses, the first is the state, the 7th the kernel's flags and the 20th the start time.
std::optional<ProcessState> ReadProcess(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  // Fails, where an iterator throws, if the process goes meanwhile.
  std::getline(file, text, '\0');
  const size_t command_end = text.rfind(')');
  if (command_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(text.substr(command_end + 1), ' ', absl::SkipEmpty());
  ProcessState process;
  int64_t flags;
  if (fields.size() < 20 || !absl::SimpleAtoi(fields[6], &flags) ||
      !absl::SimpleAtoi(fields[19], &process.started)) {
    return std::nullopt;
  }
  process.is_ending = fields[0] == "Z" || fields[0] == "X" || (flags & kExiting) != 0;
  process.is_stopped = fields[0] == "T" || fields[0] == "t";
  return process;
}

}  // namespace syncline
