// The store of a job, served by its launcher.
#ifndef SYNCLINE_LAUNCH_JOB_STORE_H_
#define SYNCLINE_LAUNCH_JOB_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace syncline::launch {

// A TCP store in the launcher's process, so that it survives the death of any worker, rank 0
// included, and listens before any worker knows its port. Serves, on threads of its own, until it
// is destroyed.
class JobStore {
 public:
  virtual ~JobStore() = default;
  virtual std::string address() const = 0;  // "host:port", for SYNCLINE_STORE.
};

struct JobStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;        // 0 lets the system choose.
  std::string secret;  // Clients must prove that they know it.
};

// NetworkError if the address cannot be bound.
absl::StatusOr<std::unique_ptr<JobStore>> StartJobStore(const JobStoreOptions& options);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_JOB_STORE_H_
