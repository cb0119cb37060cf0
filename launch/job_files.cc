#include "launch/job_files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr int kSecretBytes = 32;

absl::Status WriteSecret(const std::string& path, const std::string& secret) {
  const base::UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.valid() &&
      write(file.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size())) {
    return absl::OkStatus();
  }
  const int error = errno;
  const absl::string_view advice = error == EMFILE ? "Raise the limit on open files (ulimit -n)"
                                                   : "Set TMPDIR to a folder with space";
  return BackendError(absl::StrCat("the job's secret cannot be written to '", path,
                                   "': ", std::strerror(error), ". ", advice));
}

}  // namespace

absl::StatusOr<std::string> RandomHex(int bytes) {
  std::string random(static_cast<size_t>(bytes), '\0');
  for (size_t at = 0; at < random.size();) {
    const ssize_t size = getrandom(&random[at], random.size() - at, 0);
    if (size > 0) {
      at += static_cast<size_t>(size);
    } else if (errno != EINTR) {
      return BackendError(absl::StrCat("the kernel gives no random bytes: ", std::strerror(errno)));
    }
  }
  return absl::BytesToHexString(random);
}

JobFiles::JobFiles(std::string folder) : folder_(std::move(folder)) {}

absl::StatusOr<std::unique_ptr<JobFiles>> JobFiles::Create(const std::string& parent,
                                                           std::string secret) {
  std::string folder = absl::StrCat(parent, "/syncline-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {  // Mode 0700.
    return ArgumentError(absl::StrCat("no temporary folder can be made in '", parent,
                                      "': ", std::strerror(errno),
                                      ". Set TMPDIR to a folder that can be written to"));
  }
  std::unique_ptr<JobFiles> files = absl::WrapUnique(new JobFiles(std::move(folder)));
  // systemd-tmpfiles removes old files, also of a job that has run for weeks, but none in a locked
  // folder. If the lock fails, the job runs without it.
  files->lock_ = base::UniqueFd(open(files->folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (files->lock_.valid()) flock(files->lock_.get(), LOCK_SH | LOCK_NB);
  files->secret_ = std::move(secret);
  if (files->secret_.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(files->secret_, RandomHex(kSecretBytes));
  }
  SYNCLINE_RETURN_IF_ERROR(WriteSecret(files->secret_path(), files->secret_));
  return files;
}

JobFiles::~JobFiles() {
  lock_ = base::UniqueFd();  // Listing the folder takes a descriptor, and this may be the last one.
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
  rmdir(folder_.c_str());  // Works without a descriptor if the folder is empty.
}

}  // namespace syncline::launch
