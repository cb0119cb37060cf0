// The temporary folder of a job and the secret in it.
#ifndef SYNCLINE_LAUNCH_JOB_FILES_H_
#define SYNCLINE_LAUNCH_JOB_FILES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/unique_fd.h"

namespace syncline::launch {

// `bytes` random bytes from the kernel, as lower-case hexadecimal digits.
absl::StatusOr<std::string> RandomHex(int bytes);

// Owns a folder that only this user can enter, and the file of mode 0600 in it that holds the job's
// secret. The destructor removes the folder with all its contents; a lock keeps systemd-tmpfiles
// from removing it earlier. Not thread-safe.
class JobFiles {
 public:
  // Creates the folder below `parent`. An empty `secret` means a new one: 32 random bytes as 64
  // hexadecimal digits. ArgumentError if `parent` cannot hold the folder, BackendError if the
  // secret cannot be made or written.
  static absl::StatusOr<std::unique_ptr<JobFiles>> Create(const std::string& parent,
                                                          std::string secret);

  JobFiles(const JobFiles&) = delete;
  JobFiles& operator=(const JobFiles&) = delete;
  ~JobFiles();

  const std::string& folder() const { return folder_; }
  const std::string& secret() const { return secret_; }
  std::string secret_path() const { return folder_ + "/secret"; }

 private:
  explicit JobFiles(std::string folder);

  const std::string folder_;
  base::UniqueFd lock_;  // A shared flock() of the folder.
  std::string secret_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_JOB_FILES_H_
