// Recognises the launchers that start the processes of a job: Slurm's srun, Open MPI's and MPICH's
// mpirun, PALS and Flux.
#ifndef SYNCLINE_CORE_JOIN_CLUSTER_TASK_H_
#define SYNCLINE_CORE_JOIN_CLUSTER_TASK_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace syncline::join {

// One process that such a launcher has started, as its environment describes it. A plain value.
struct ClusterTask {
  std::string launcher;  // "Slurm"
  std::string command;   // "srun"

  int rank = 0;
  int size = 1;
  int local_rank = -1;  // Among the tasks of this host; -1: not known.
  int hosts = 0;        // That the job has tasks on; 0: not known, perhaps several.

  // Names the job to all of its tasks and to no other job, "slurm-17.0"; empty: nothing does.
  std::string job;
  // Tasks without `job` have this ancestor in common, by the name of its program, on each host.
  std::string ancestor;
  // With several hosts: one of them, as a rule. Empty: not known.
  std::string host;

  // The variables that say so; empty where none does.
  std::string rank_from, size_from, job_from, hosts_from, host_from;

  // Why rank and size are not known although the launcher has set some of its variables; they
  // contradict each other, or some are missing. Empty if they are known.
  std::string defect;
};

// The task that this process is, or nothing if no such launcher has started it. A script of sbatch,
// a shell of salloc and the processes that run in them are no tasks, and neither are the workers of
// a launcher that sets RANK (torchrun, syncline-run). Where launchers are nested, the innermost
// counts. A pure function of the environment, as the other functions here are of their arguments.
std::optional<ClusterTask> DetectTask(const base::EnvironmentLookup& environment);

// For messages: why this process is a world of one. For a process that is no task, or the only one.
std::string DescribeSingleProcess(const base::EnvironmentLookup& environment);

// The port that all tasks of `job` compute: 20000 to 29999, between the ports of well-known
// services and those that systems give out. Two jobs seldom have the same.
int PortOfJob(absl::string_view job);

// The secret that the processes of `job` prove to each other where they share no other one. It
// keeps jobs apart; it protects against nobody who knows or guesses `job`.
std::string SecretOfJob(absl::string_view job);

}  // namespace syncline::join

#endif  // SYNCLINE_CORE_JOIN_CLUSTER_TASK_H_
