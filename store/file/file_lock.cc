#include "store/file/file_lock.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/status.h"

namespace syncline::file_store {
namespace {

int SetLock(int fd, int64_t offset, short type) {
  struct flock lock = {};  // l_pid must be 0.
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = 1;
  return fcntl(fd, F_OFD_SETLK, &lock);
}

}  // namespace

absl::StatusOr<bool> TryLockByte(int fd, int64_t offset, FileLockMode mode) {
  while (SetLock(fd, offset, mode == FileLockMode::kShared ? F_RDLCK : F_WRLCK) != 0) {
    if (errno == EAGAIN || errno == EACCES) return false;
    if (errno == EINTR) continue;
    return StoreError(absl::StrCat("cannot lock: ", std::strerror(errno),
                                   "; choose a path on a file system that has locks"));
  }
  return true;
}

// The locks are held for microseconds unless their holder is stopped, so it pays to ask a few
// times at once. There is no F_OFD_SETLKW with a deadline.
absl::Status RetryLock(const Deadline& deadline,
                       absl::FunctionRef<absl::StatusOr<bool>()> try_lock) {
  constexpr int kYields = 20;
  absl::Duration pause = absl::Microseconds(20);
  for (int tries = 0;; ++tries) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool locked, try_lock());
    if (locked) return absl::OkStatus();
    if (deadline.Expired()) {
      return TimeoutError(absl::StrCat("another process has held the lock for ",
                                       absl::FormatDuration(deadline.timeout()),
                                       "; see whether one of the job's processes is stopped"));
    }
    if (tries < kYields) {
      sched_yield();
      continue;
    }
    absl::SleepFor(std::min(pause, deadline.Remaining()));
    pause = std::min(2 * pause, absl::Milliseconds(10));
  }
}

absl::Status LockByte(int fd, int64_t offset, FileLockMode mode, const Deadline& deadline) {
  return RetryLock(deadline, [&] { return TryLockByte(fd, offset, mode); });
}

void UnlockByte(int fd, int64_t offset) { SetLock(fd, offset, F_UNLCK); }

}  // namespace syncline::file_store
