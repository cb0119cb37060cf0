#include "syncline/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/unshared_fd.h"
#include "store/common/contents.h"
#include "store/common/errors.h"
#include "store/file/file_lock.h"
#include "store/file/record_log.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using file_store::DecodeRecords;
using file_store::EncodeRecord;
using file_store::FileLockMode;
using file_store::LockByte;
using file_store::RetryLock;
using file_store::TryLockByte;
using file_store::UnlockByte;
using store::AnnotateStore;
using store::Change;
using store::CheckKey;
using store::CheckKeys;
using store::CheckPairs;
using store::NotSetError;

constexpr absl::string_view kMagic = "syncline store 1\n";

// Far beyond any data, so that locks on them touch nothing.
constexpr int64_t kLogByte = int64_t{1} << 62;  // Held while the log is read or written.
constexpr int64_t kLiveByte = kLogByte + 1;     // Shared by all clients for as long as they live.

// A wait that is short or over must still outlast other clients' use of the log.
constexpr absl::Duration kLeastLockWait = absl::Seconds(1);
// For how long a client that leaves tries to tidy up; what it leaves behind does no harm.
constexpr absl::Duration kLeaveWait = absl::Seconds(2);

const StoreRegistry::Registration kFile(
    "file", [](const StoreConfig& config) -> absl::StatusOr<std::shared_ptr<Store>> {
      return FileStore::Open(config.path, config.timeout);
    });

std::string Name(absl::string_view path) { return absl::StrCat("file://", path); }

absl::StatusOr<std::string> Absolute(absl::string_view path) {
  if (path.empty()) return ArgumentError("a file store needs a path, such as file:///tmp/job-17");
  if (path[0] == '/') return std::string(path);
  char folder[4096];
  if (getcwd(folder, sizeof(folder)) == nullptr) {
    return StoreError(absl::StrCat("cannot find the working directory: ", std::strerror(errno),
                                   "; pass an absolute path"));
  }
  return absl::StrCat(folder, "/", path);
}

absl::string_view FolderOf(absl::string_view path) {
  return path.substr(0, std::max<size_t>(path.rfind('/'), 1));
}

absl::Status OpenError(absl::string_view path, int error) {
  const absl::string_view folder = FolderOf(path);
  switch (error) {
    case ELOOP:
      return StoreError("it is a symbolic link; choose the path of the file itself");
    case ENOENT:
    case ENOTDIR:
      return StoreError(absl::StrCat("cannot create the file: there is no folder '", folder,
                                     "'; create it first, or choose another path"));
    case EISDIR:
      return StoreError("it is a folder; choose the path of a file in it");
    case EACCES:
    case EPERM:
    case EROFS:
      return StoreError(absl::StrCat("no permission to open or create the file (",
                                     std::strerror(error), "); choose a path that this process",
                                     " may write to"));
    default:
      return StoreError(absl::StrCat("cannot open the file: ", std::strerror(error)));
  }
}

// In a folder such as /tmp anybody can lay a file or a link where a job will look for its store,
// and read and change what the job says there. (Elsewhere the folder's permissions decide; the
// owner may then be another, as on NFS with root_squash.)
absl::Status CheckFile(int fd, const std::string& path) {
  struct stat file, folder;
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    return StoreError("it is not a regular file; choose another path");
  }
  if (file.st_uid == geteuid() || stat(std::string(FolderOf(path)).c_str(), &folder) != 0 ||
      (folder.st_mode & S_IWOTH) == 0 || file.st_uid == folder.st_uid) {
    return absl::OkStatus();
  }
  return StoreError(
      absl::StrCat("the file belongs to user ", file.st_uid, ", in a folder in which ",
                   "everybody may create files; choose a path in a folder of your ", "own"));
}

// Unshared, since its locks would live as long as a child of this process.
absl::StatusOr<base::UnsharedFd> OpenRegularFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  base::UnsharedFd file =
      base::UnsharedFd::Open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (!file.valid()) return OpenError(path, errno);
  SYNCLINE_RETURN_IF_ERROR(CheckFile(file.get(), path));
  return file;
}

bool IsFileAt(int fd, const std::string& path) {
  struct stat open, named;
  return fstat(fd, &open) == 0 && lstat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

absl::Status ReadAt(int fd, int64_t offset, char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = pread(fd, data, size, offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return StoreError(absl::StrCat("cannot read the file: ", std::strerror(errno)));
    if (n == 0) return StoreError("the file was cut short by somebody else while it was in use");
    data += n;
    size -= n;
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, int64_t offset, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t n = pwrite(fd, data.data(), data.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return StoreError(absl::StrCat("cannot write the file: ", std::strerror(errno)));
    data.remove_prefix(n);
    offset += n;
  }
  return absl::OkStatus();
}

}  // namespace

FileStore::FileStore(std::string path, std::unique_ptr<base::UnsharedFd> file,
                     absl::Duration timeout)
    : path_(std::move(path)),
      file_(std::move(file)),
      fd_(file_->get()),
      timeout_(timeout),
      pid_(getpid()),
      contents_(std::make_unique<store::Contents>()) {}

absl::StatusOr<std::shared_ptr<FileStore>> FileStore::Open(absl::string_view path,
                                                           absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string absolute, Absolute(path));
  const Deadline deadline(timeout);
  while (true) {
    absl::StatusOr<base::UnsharedFd> file = OpenRegularFile(absolute);
    if (!file.ok()) return AnnotateStore(file.status(), Name(absolute));
    const int fd = file->get();
    std::shared_ptr<FileStore> store(
        new FileStore(absolute, std::make_unique<base::UnsharedFd>(*std::move(file)), timeout));
    SYNCLINE_RETURN_IF_ERROR(AnnotateStore(
        LockByte(fd, kLogByte, FileLockMode::kExclusive, deadline), store->ToString()));
    absl::StatusOr<bool> entered = store->Enter();
    // Which it may hold in exclusive mode: whoever locks the log next would find that.
    if (!entered.ok()) UnlockByte(fd, kLiveByte);
    UnlockByte(fd, kLogByte);
    if (!entered.ok()) return AnnotateStore(entered.status(), store->ToString());
    if (*entered) return store;
  }
}

// Whoever asks for the live byte in exclusive mode holds the log's lock, so that no two do at the
// same time, and so that nobody enters while another client clears or removes the file.
absl::StatusOr<bool> FileStore::Enter() {
  if (!IsFileAt(fd_, path_)) return false;  // The last client of an earlier job has removed it.
  struct stat info;
  if (fstat(fd_, &info) != 0) {
    return StoreError(absl::StrCat("cannot examine the file: ", std::strerror(errno)));
  }
  std::string magic(std::min<int64_t>(info.st_size, kMagic.size()), '\0');
  SYNCLINE_RETURN_IF_ERROR(ReadAt(fd_, 0, &magic[0], magic.size()));
  if (!absl::StartsWith(kMagic, magic)) {
    return StoreError("the file is not a store, and is left as it is; choose another path");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const bool alone,
                            TryLockByte(fd_, kLiveByte, FileLockMode::kExclusive));
  if (alone) {
    if (ftruncate(fd_, 0) != 0) {
      return StoreError(absl::StrCat("cannot empty the file: ", std::strerror(errno)));
    }
    SYNCLINE_RETURN_IF_ERROR(WriteAt(fd_, 0, kMagic));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const bool live, TryLockByte(fd_, kLiveByte, FileLockMode::kShared));
  if (!live) return StoreError("another process locks the file in a way that no store does");
  entered_ = true;
  absl::MutexLock lock(&mutex_);
  size_ = replayed_ = kMagic.size();
  return true;
}

FileStore::~FileStore() {
  if (getpid() != pid_) return;  // A forked child has the file no longer.
  if (entered_ && LockByte(fd_, kLogByte, FileLockMode::kExclusive, Deadline(kLeaveWait)).ok()) {
    absl::StatusOr<bool> alone = TryLockByte(fd_, kLiveByte, FileLockMode::kExclusive);
    if (alone.ok() && *alone && IsFileAt(fd_, path_)) unlink(path_.c_str());
  }
}

std::string FileStore::ToString() const { return Name(path_); }

absl::Status FileStore::Locked(FileLockMode mode, const Deadline& deadline,
                               absl::FunctionRef<absl::Status()> body) {
  if (getpid() != pid_) {
    return AnnotateStore(StoreError(absl::StrCat(
                             "it was opened by process ", pid_, " and cannot be used in process ",
                             getpid(), ", which was forked from it; open it again there")),
                         ToString());
  }
  // The mutex is free between two tries, so that no thread waits for it beyond its own deadline.
  const absl::Status status = RetryLock(deadline, [&]() -> absl::StatusOr<bool> {
    absl::MutexLock lock(&mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(const bool locked, TryLockByte(fd_, kLogByte, mode));
    if (!locked) return false;
    const auto unlock = absl::MakeCleanup([this] { UnlockByte(fd_, kLogByte); });
    SYNCLINE_RETURN_IF_ERROR(Replay());
    SYNCLINE_RETURN_IF_ERROR(body());
    return true;
  });
  return AnnotateStore(status, ToString());
}

absl::Status FileStore::Replay() {
  struct stat info;
  if (fstat(fd_, &info) != 0) {
    return StoreError(absl::StrCat("cannot examine the file: ", std::strerror(errno)));
  }
  if (info.st_nlink == 0) {
    return StoreError("the file was removed by somebody else while it was in use; restart the job");
  }
  size_ = info.st_size;
  if (size_ < replayed_) {
    return StoreError("the file was cut short by somebody else while it was in use");
  }
  if (size_ == replayed_) return absl::OkStatus();
  std::string bytes(size_ - replayed_, '\0');
  SYNCLINE_RETURN_IF_ERROR(ReadAt(fd_, replayed_, &bytes[0], bytes.size()));
  replayed_ += DecodeRecords(bytes, [this](Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    contents_->Apply(std::move(change));
  });
  return absl::OkStatus();
}

absl::Status FileStore::Write(const std::vector<Change>& changes) {
  if (size_ > replayed_ && ftruncate(fd_, replayed_) != 0) {
    return StoreError(absl::StrCat("cannot cut off an unfinished record: ", std::strerror(errno)));
  }
  const std::string record = EncodeRecord(changes);
  absl::Status status = WriteAt(fd_, replayed_, record);
  if (!status.ok()) {
    // If a part of it was written, and cannot be cut off now, the next writer does so.
    if (ftruncate(fd_, replayed_) == 0) size_ = replayed_;
    return status;
  }
  replayed_ += record.size();
  size_ = replayed_;
  for (const Change& change : changes) contents_->Apply(change);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Store>> FileStore::Clone() { return Open(path_, timeout()); }

absl::Status FileStore::Set(absl::string_view key, absl::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  return Locked(FileLockMode::kExclusive, Deadline(timeout()),
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                  return Write({{Change::Kind::kSet, std::string(key), std::string(value)}});
                });
}

absl::StatusOr<std::string> FileStore::Get(absl::string_view key, absl::Duration timeout) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values, MultiGet(keys, timeout));
  return std::move(values[0]);
}

absl::StatusOr<int64_t> FileStore::Add(absl::string_view key, int64_t amount) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  int64_t result = 0;
  SYNCLINE_RETURN_IF_ERROR(
      Locked(FileLockMode::kExclusive, Deadline(timeout()),
             [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
               SYNCLINE_ASSIGN_OR_RETURN(result, contents_->Sum(key, amount));
               return Write({{Change::Kind::kSet, std::string(key), absl::StrCat(result)}});
             }));
  return result;
}

absl::StatusOr<Store::CompareSetResult> FileStore::CompareSet(absl::string_view key,
                                                              absl::string_view expected,
                                                              absl::string_view desired) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  CompareSetResult result;
  SYNCLINE_RETURN_IF_ERROR(
      Locked(FileLockMode::kExclusive, Deadline(timeout()),
             [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) -> absl::Status {
               result.swapped = contents_->Holds(key, expected);
               if (result.swapped) {
                 SYNCLINE_RETURN_IF_ERROR(
                     Write({{Change::Kind::kSet, std::string(key), std::string(desired)}}));
               }
               if (const std::string* value = contents_->Find(key)) result.value = *value;
               return absl::OkStatus();
             }));
  return result;
}

absl::Status FileStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return MultiGet(keys, timeout).status();
}

absl::StatusOr<bool> FileStore::Check(absl::Span<const std::string> keys) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKeys(keys), ToString()));
  bool all = false;
  SYNCLINE_RETURN_IF_ERROR(Locked(FileLockMode::kShared, Deadline(timeout()),
                                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                    all = contents_->Missing(keys).empty();
                                    return absl::OkStatus();
                                  }));
  return all;
}

absl::StatusOr<bool> FileStore::Delete(absl::string_view key) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  bool was_set = false;
  SYNCLINE_RETURN_IF_ERROR(Locked(FileLockMode::kExclusive, Deadline(timeout()),
                                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                    was_set = contents_->Find(key) != nullptr;
                                    if (!was_set) return absl::OkStatus();
                                    return Write({{Change::Kind::kDelete, std::string(key), ""}});
                                  }));
  return was_set;
}

absl::StatusOr<std::vector<std::string>> FileStore::Keys(absl::string_view prefix) {
  std::vector<std::string> keys;
  SYNCLINE_RETURN_IF_ERROR(Locked(FileLockMode::kShared, Deadline(timeout()),
                                  [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                    keys = contents_->Keys(prefix);
                                    return absl::OkStatus();
                                  }));
  return keys;
}

absl::Status FileStore::Append(absl::string_view key, absl::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  return Locked(FileLockMode::kExclusive, Deadline(timeout()),
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                  return Write({{Change::Kind::kAppend, std::string(key), std::string(value)}});
                });
}

absl::StatusOr<std::vector<std::string>> FileStore::MultiGet(absl::Span<const std::string> keys,
                                                             absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKeys(keys), ToString()));
  const Deadline deadline(timeout);
  absl::Duration pause = absl::Milliseconds(1);
  while (true) {
    std::vector<std::string> missing, values;
    const bool last = deadline.Expired();
    SYNCLINE_RETURN_IF_ERROR(Locked(FileLockMode::kShared,
                                    Deadline(std::max(deadline.Remaining(), kLeastLockWait)),
                                    [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                      missing = contents_->Missing(keys);
                                      if (missing.empty()) values = contents_->Values(keys);
                                      return absl::OkStatus();
                                    }));
    if (missing.empty()) return values;
    if (last) return NotSetError(ToString(), missing, timeout);
    // Polling, because a file that another host changes tells nobody of it.
    SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(pause, deadline.Remaining())));
    pause = std::min(1.5 * pause, absl::Milliseconds(10));
  }
}

absl::Status FileStore::MultiSet(absl::Span<const std::string> keys,
                                 absl::Span<const std::string> values) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckPairs(keys, values), ToString()));
  std::vector<Change> changes;
  for (size_t i = 0; i < keys.size(); ++i) {
    changes.push_back({Change::Kind::kSet, keys[i], values[i]});
  }
  return Locked(FileLockMode::kExclusive, Deadline(timeout()),
                [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Write(changes); });
}

}  // namespace syncline
