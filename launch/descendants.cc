#include "launch/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_state.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// The parent of a living process; 0 if it is gone or a zombie.
pid_t ParentOf(pid_t pid) {
  const absl::StatusOr<base::ProcessState> process = base::ReadProcess(pid);
  return process.ok() && !process->is_zombie ? process->parent : 0;
}

std::multimap<pid_t, pid_t> ChildrenByParent() {
  std::multimap<pid_t, pid_t> children;
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return children;
  while (const dirent* const entry = readdir(folder)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid)) continue;
    const pid_t parent = ParentOf(pid);
    if (parent != 0) children.emplace(parent, pid);
  }
  closedir(folder);
  return children;
}

}  // namespace

Descendants::Descendants() {
  const std::vector<pid_t> present = Find();
  strangers_.insert(present.begin(), present.end());
}

absl::Status Descendants::Adopt() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) == 0) return absl::OkStatus();
  return UnsupportedError(
      absl::StrCat("the kernel does not hand over orphaned processes (PR_SET_CHILD_SUBREAPER): ",
                   std::strerror(errno), ". What workers leave behind may survive the launcher"));
}

std::vector<pid_t> Descendants::Find() const {
  const std::multimap<pid_t, pid_t> children = ChildrenByParent();
  std::vector<pid_t> found = {getpid()};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto range = children.equal_range(found[i]);
    for (auto child = range.first; child != range.second; ++child) {
      if (strangers_.count(child->second) == 0) found.push_back(child->second);
    }
  }
  found.erase(found.begin());
  return found;
}

void Descendants::SignalAll(int signal) const {
  for (const pid_t pid : Find()) kill(pid, signal);
}

}  // namespace syncline::launch
