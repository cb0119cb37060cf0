// The store of a job, served by its launcher.
#ifndef SYNCLINE_LAUNCH_JOB_STORE_H_
#define SYNCLINE_LAUNCH_JOB_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace syncline::launch {

// Lives as long as the launcher: the death of a worker, rank 0 included, does not take it away,
// and no port has to be guessed. Serves until it is destroyed.
class JobStore {
 public:
  virtual ~JobStore() = default;
  virtual std::string address() const = 0;  // "host:port", for SYNCLINE_STORE.
};

struct JobStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;        // 0 lets the system choose.
  std::string secret;  // What clients must prove to know.
};

absl::StatusOr<std::unique_ptr<JobStore>> StartJobStore(const JobStoreOptions& options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_JOB_STORE_H_
