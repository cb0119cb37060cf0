// Derives options from the cluster (Slurm, mpirun, Kubernetes, ...) that started this launcher.
#ifndef SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_
#define SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_

#include <optional>
#include <string>
#include <vector>

#include "launch/options/options.h"

namespace syncline::launch {

// A cluster's value for one option.
struct OptionProposal {
  std::string flag;    // "nnodes"
  std::string text;    // "4"
  std::string reason;  // The variable it follows from: "SLURM_STEP_NUM_TASKS"
};

struct Cluster {
  std::string name;  // "Slurm"
  std::vector<OptionProposal> proposals;
  // An error message about what a job of several nodes needs and this cluster does not provide;
  // empty if nothing is missing.
  std::string missing;
  std::string missing_flag;  // The option that supplies it.
  std::string note;          // Printed if the job uses the proposals.
  // The upper limit of what "auto", "cpu" and "gpu" count.
  std::optional<int> max_cpus;
};

// A pure function of the environment. nullopt if no cluster started this process, or if it runs
// inside a worker of another launcher.
std::optional<Cluster> DetectCluster(const base::EnvironmentLookup& environment);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_CLUSTER_H_
