// Locks on single bytes of a file, between processes and between openings of one process.
#ifndef SYNCLINE_STORE_FILE_FILE_LOCK_H_
#define SYNCLINE_STORE_FILE_FILE_LOCK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "syncline/deadline.h"

namespace syncline::file_store {

enum class FileLockMode { kShared, kExclusive };

// Locks byte `offset` of the open file `fd`, which may lie beyond its end, or changes the mode of
// a lock that `fd` holds; returns whether it could, without waiting. The lock belongs to the
// opening (F_OFD_SETLK): it goes with the last descriptor of it. One from OpenUnshared has no
// other, so its locks do not outlive the process.
absl::StatusOr<bool> TryLockByte(int fd, int64_t offset, FileLockMode mode);

// Asks `try_lock`, such as a call of TryLockByte, again and again until it returns true or an
// error, or until `deadline`; then a TimeoutError.
absl::Status RetryLock(const Deadline& deadline,
                       absl::FunctionRef<absl::StatusOr<bool>()> try_lock);

// As TryLockByte, but asks again until `deadline`; then a TimeoutError.
absl::Status LockByte(int fd, int64_t offset, FileLockMode mode, const Deadline& deadline);

void UnlockByte(int fd, int64_t offset);

}  // namespace syncline::file_store

#endif  // SYNCLINE_STORE_FILE_FILE_LOCK_H_
