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

// A folder that only this user can enter, removed with all its contents by the destructor, and by
// nothing that heeds locks (systemd-tmpfiles) before. In it: the job's secret, in a file of mode
// 0600.
class JobFiles {
 public:
  // Makes the folder below `parent`. Without a secret: with a new one, of 32 random bytes as 64
  // hexadecimal digits.
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
  UniqueFd lock_;  // A shared flock() of the folder.
  std::string secret_;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_JOB_FILES_H_
