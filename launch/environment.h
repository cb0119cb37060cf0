// The environment variables of a worker. Functions here are pure, except InheritedEnvironment.
#ifndef SYNCLINE_LAUNCH_ENVIRONMENT_H_
#define SYNCLINE_LAUNCH_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

namespace syncline::launch {

using Environment = std::map<std::string, std::string>;

// The launcher's own environment.
Environment InheritedEnvironment();

// What all workers of one node get to know of their job, for one round.
struct JobFacts {
  int round = 0;     // Counts rounds from 0.
  int restarts = 0;  // How many rounds followed a failure of a worker.
  int max_restarts = 0;
  std::string run_id;

  int workers = 1;     // Of this node.
  int first_rank = 0;  // Of this node's worker 0; the others follow.
  int world_size = 1;
  int group_rank = 0;  // Of this node.
  int group_world_size = 1;
  std::string role;
  int first_role_rank = 0;  // Among all workers of the role.
  int role_world_size = 1;

  std::string master_addr;  // For frameworks whose rank 0 opens a port of its own.
  int master_port = 0;
  std::string store_address;  // host:port of the job's store; empty if there is none.
  std::string secret_file;
  std::string host_address;  // Where other nodes reach this one; empty: there are none.
};

// What one worker gets to know in addition.
struct WorkerFacts {
  int local_rank = 0;
  std::string error_file;
  std::string stall_file;
  std::string heartbeat_file;  // Empty: heartbeats are off.
};

// Adds the variables of a worker to `environment`. Those that describe the job replace inherited
// ones; OMP_NUM_THREADS and PYTHONUNBUFFERED are set only if they are absent. Each TORCHELASTIC_X
// has a twin SYNCLINE_X. Variables with a password of the rendezvous are removed.
void DescribeJob(const JobFacts& job, const WorkerFacts& worker, Environment* environment);

// In the form of execve(2): "NAME=value".
std::vector<std::string> Assignments(const Environment& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_ENVIRONMENT_H_
