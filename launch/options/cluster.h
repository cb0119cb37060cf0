// What the cluster that has started a launcher proposes for its options.
#ifndef SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_
#define SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_

#include <optional>
#include <string>
#include <vector>

#include "launch/options/options.h"

namespace syncline::launch {

// What a cluster proposes for one option.
struct OptionProposal {
  std::string flag;    // "nnodes"
  std::string text;    // "4"
  std::string reason;  // "SLURM_STEP_NUM_TASKS"
};

struct Cluster {
  std::string name;  // "Slurm"
  std::vector<OptionProposal> proposals;
  // What this cluster does not tell, and a job of several nodes needs; empty if nothing is missing.
  // As an error message: the job does not run with what can be guessed.
  std::string missing;
  std::string missing_flag;  // Giving it is enough.
  std::string note;          // To be said if the job takes the proposals.
  // What "auto", "cpu" and "gpu" may count at most.
  std::optional<int> max_cpus;
};

// A pure function of the environment. Nothing if no cluster started this process, or if it is part
// of a worker of another launcher.
std::optional<Cluster> DetectCluster(const EnvironmentLookup& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_
