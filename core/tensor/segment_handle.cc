#include "core/tensor/segment_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

constexpr size_t kMostBootId = 64;

// The number in "pid:[4026531836]".
std::string NumberOfPidNamespace() {
  std::string digits;
  for (const char c : base::PidNamespace()) {
    if (absl::ascii_isdigit(c)) digits.push_back(c);
  }
  return digits.empty() ? "-" : digits;
}

bool IsBootId(absl::string_view text) {
  return !text.empty() && text.size() <= kMostBootId &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isxdigit(c) || c == '-'; });
}

bool IsPidNamespace(absl::string_view text) { return text == "-" || ParseDigits(text); }

}  // namespace

std::optional<uint64_t> ParseDigits(absl::string_view text, uint64_t most) {
  uint64_t number = 0;
  const bool is_number = !text.empty() &&
                         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
                         absl::SimpleAtoi(text, &number);
  return is_number && number <= most ? std::optional<uint64_t>(number) : std::nullopt;
}

absl::StatusOr<SegmentHandle> SegmentHandle::Make(int descriptor) {
  SegmentHandle handle;
  SYNCLINE_ASSIGN_OR_RETURN(handle.boot_id, base::BootId());
  handle.pid_namespace = NumberOfPidNamespace();
  handle.user = geteuid();
  handle.pid = getpid();
  SYNCLINE_ASSIGN_OR_RETURN(const base::ProcessState self, base::ReadProcess(handle.pid));
  handle.started = self.started;
  handle.descriptor = descriptor;
  struct stat status;
  if (fstat(descriptor, &status) != 0) {
    return BackendError(absl::StrCat("cannot look at descriptor ", descriptor,
                                     " of shared memory: ", std::strerror(errno)));
  }
  handle.identity = {status.st_dev, status.st_ino};
  handle.size = static_cast<size_t>(status.st_size);
  return handle;
}

absl::StatusOr<SegmentHandle> SegmentHandle::Parse(absl::Span<const absl::string_view> fields) {
  if (fields.size() != kFields) {
    return ArgumentError(
        absl::StrCat("it has ", fields.size(), " fields of a segment, not ", size_t{kFields}));
  }
  constexpr uint64_t kMostInt = std::numeric_limits<int>::max();
  constexpr uint64_t kMostInt64 = std::numeric_limits<int64_t>::max();
  const auto user = ParseDigits(fields[2], std::numeric_limits<uint32_t>::max());
  const auto pid = ParseDigits(fields[3], kMostInt);
  const auto started = ParseDigits(fields[4], kMostInt64);
  const auto descriptor = ParseDigits(fields[5], kMostInt);
  const auto device = ParseDigits(fields[6]);
  const auto inode = ParseDigits(fields[7]);
  const auto size = ParseDigits(fields[8], kMostInt64);
  if (!IsBootId(fields[0])) return ArgumentError("its boot id is none");
  if (!IsPidNamespace(fields[1])) return ArgumentError("its pid namespace is no number");
  if (!user) return ArgumentError("its user is no number");
  if (!pid || *pid == 0) return ArgumentError("its pid is none");
  if (!started) return ArgumentError("its time of beginning is no number");
  if (!descriptor) return ArgumentError("its descriptor is none");
  if (!device || !inode) return ArgumentError("its device or inode is no number");
  if (!size) return ArgumentError("its size is no number");
  SegmentHandle handle;
  handle.boot_id = std::string(fields[0]);
  handle.pid_namespace = std::string(fields[1]);
  handle.user = *user;
  handle.pid = static_cast<int>(*pid);
  handle.started = static_cast<int64_t>(*started);
  handle.descriptor = static_cast<int>(*descriptor);
  handle.identity = {*device, *inode};
  handle.size = static_cast<size_t>(*size);
  return handle;
}

std::vector<std::string> SegmentHandle::Fields() const {
  return {boot_id,
          pid_namespace,
          absl::StrCat(user),
          absl::StrCat(pid),
          absl::StrCat(started),
          absl::StrCat(descriptor),
          absl::StrCat(identity.device),
          absl::StrCat(identity.inode),
          absl::StrCat(size)};
}

absl::StatusOr<int> SegmentHandle::Open() const {
  const std::string owner = absl::StrCat("process ", pid, ", which made the handle,");
  SYNCLINE_ASSIGN_OR_RETURN(const std::string own_boot_id, base::BootId());
  if (boot_id != own_boot_id) {
    return BackendError(absl::StrCat(
        owner,
        " ran on another host, or before this one was started again: memory is shared by "
        "processes of one host"));
  }
  if (pid_namespace != NumberOfPidNamespace()) {
    return BackendError(
        absl::StrCat(owner, " is of another pid namespace (container), and not known here"));
  }
  if (user != geteuid()) {
    return BackendError(absl::StrCat(owner, " is of user ", user, ", this process of user ",
                                     geteuid(), ": memory is shared by processes of one user"));
  }
  // Opened as a place alone: what lies there now may be a device, or a pipe that waits.
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", descriptor);
  const base::UniqueFd place(open(path.c_str(), O_PATH | O_CLOEXEC));
  const int error = errno;
  // After that: a process that has this pid still had it then. Once its first thread has ended, the
  // folder is empty, though others may run.
  const absl::StatusOr<base::ProcessState> state = base::ReadThread(pid);
  if (!state.ok() && !absl::IsNotFound(state.status())) return state.status();
  if (!state.ok() || state->is_ending || state->started != started) {
    return BackendError(absl::StrCat(owner, " has ended"));
  }
  const absl::Status freed = BackendError(absl::StrCat(owner, " has freed the memory"));
  if (!place.valid() && error == ENOENT) return freed;
  if (!place.valid()) {
    return BackendError(absl::StrCat(owner, " cannot be looked into: ", path, ": ",
                                     std::strerror(error),
                                     error == EACCES || error == EPERM
                                         ? "; its user, user namespace or capabilities are others, "
                                           "or it is not dumpable"
                                         : ""));
  }
  struct stat status;
  if (fstat(place.get(), &status) != 0) {
    return BackendError(absl::StrCat("cannot look at ", path, ": ", std::strerror(errno)));
  }
  if (!(Segment::Identity{status.st_dev, status.st_ino} == identity)) return freed;
  if (static_cast<uint64_t>(status.st_size) != size) {
    return BackendError(absl::StrCat("the memory of process ", pid, " has ", status.st_size,
                                     " bytes, but its handle says ", size));
  }
  const std::string through = absl::StrCat("/proc/self/fd/", place.get());
  const int opened = open(through.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) {
    return BackendError(
        absl::StrCat("cannot open the memory of process ", pid, ": ", std::strerror(errno)));
  }
  return opened;
}

}  // namespace syncline::tensor
