// The environment variables of a worker.
#ifndef SYNCLINE_LAUNCH_ENVIRONMENT_H_
#define SYNCLINE_LAUNCH_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace syncline {

using Environment = std::map<std::string, std::string>;

// The launcher's own.
Environment InheritedEnvironment();

// What a worker is told of its job.
struct JobFacts {
  int workers = 1;
  int attempt = 0;
  int max_restarts = 0;
  std::string role;
  std::string run_id;
  std::string master_addr;  // For frameworks whose rank 0 opens a port of its own.
  int master_port = 0;
  std::string store_address;  // host:port of the job's store; empty if there is none.
  std::string secret_file;
};

// Adds to `environment` what the worker `local_rank` is to see. Variables that describe the job
// replace inherited ones; OMP_NUM_THREADS and PYTHONUNBUFFERED are only set where nothing is.
void DescribeJob(const JobFacts& job, int local_rank, const std::string& error_file,
                 Environment* environment);

// As execve takes it: "NAME=value".
std::vector<std::string> Assignments(const Environment& environment);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_ENVIRONMENT_H_
