// A store in a file, for the processes of one host or of hosts that share a file system.
#ifndef SYNCLINE_FILE_STORE_H_
#define SYNCLINE_FILE_STORE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "syncline/deadline.h"
#include "syncline/extended_store.h"
#include "syncline/store.h"

namespace syncline {

namespace base {
class UnsharedFd;
}
namespace file_store {
enum class FileLockMode;
}
namespace store {
class Contents;
struct Change;
}  // namespace store

// The file is a log of changes, which every client replays; waits poll it. It lives as long as
// somebody has it open: the last client to leave removes it, and what a killed job has left behind
// is cleared by the first client of the next. Nothing is ever removed from the log.
//
// A store cannot be used in a fork()ed child of the process that opened it: calls fail there. Nor
// does such a child keep the file alive.
class FileStore final : public ExtendedStore {
 public:
  // Opens, and if need be creates, the file at `path`. Its folder must exist. StoreError if it is
  // a file of another kind, which is left as it is.
  static absl::StatusOr<std::shared_ptr<FileStore>> Open(
      absl::string_view path, absl::Duration timeout = kDefaultStoreTimeout);
  ~FileStore() override;

  // Absolute.
  const std::string& path() const { return path_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override;
  absl::Status Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override;
  absl::Duration timeout() const override { return timeout_.Get(); }
  void set_timeout(absl::Duration timeout) override { timeout_.Set(timeout); }
  absl::StatusOr<std::shared_ptr<Store>> Clone() override;
  std::string ToString() const override;

 private:
  FileStore(std::string path, std::unique_ptr<base::UnsharedFd> file, absl::Duration timeout);

  // Requires that the log is locked in exclusive mode. Enters the job that lives in the file, or
  // begins a new one. False if the file is no longer the one at `path_`.
  absl::StatusOr<bool> Enter();

  // Runs `body` with the log locked and `contents_` up to date. Errors come annotated.
  absl::Status Locked(file_store::FileLockMode mode, const Deadline& deadline,
                      absl::FunctionRef<absl::Status()> body);

  // For `body`: reads what is new in the log; writes one record and applies it.
  absl::Status Replay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write(const std::vector<store::Change>& changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const std::unique_ptr<base::UnsharedFd> file_;
  const int fd_;  // Its number.
  AtomicDuration timeout_;
  const pid_t pid_;       // The process that opened it.
  bool entered_ = false;  // Set before the store is handed out.

  absl::Mutex mutex_;  // A lock on the file does not keep two threads of one opening apart.
  const std::unique_ptr<store::Contents> contents_ ABSL_PT_GUARDED_BY(mutex_);
  int64_t replayed_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes of the log that contents_ reflects.
  int64_t size_ ABSL_GUARDED_BY(mutex_) = 0;      // Of the file; more if a writer was killed.
};

}  // namespace syncline

#endif  // SYNCLINE_FILE_STORE_H_
