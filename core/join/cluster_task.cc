#include "core/join/cluster_task.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/hash.h"
#include "core/base/hmac.h"
#include "core/join/host_list.h"

namespace syncline::join {
namespace {

using Names = std::vector<absl::string_view>;

class TaskDetector {
 public:
  explicit TaskDetector(const base::EnvironmentLookup& environment) : environment_(environment) {}

  std::optional<ClusterTask> Detect();
  std::string DescribeSingleProcess();

 private:
  std::string Get(absl::string_view name) const {
    return environment_(name).value_or(std::string());
  }
  bool Has(absl::string_view name) const { return !Get(name).empty(); }
  // Of `names`, the first that is set; empty if none is.
  std::string FirstOf(const Names& names) const {
    for (absl::string_view name : names) {
      if (Has(name)) return std::string(name);
    }
    return "";
  }
  // -1 if it is unset, or no number from 0 on.
  int Number(absl::string_view name) const {
    int value = 0;
    return absl::SimpleAtoi(Get(name), &value) && value >= 0 ? value : -1;
  }

  bool IsStepOfSlurm() const;
  void Slurm();
  void OpenMpi();
  std::string OpenMpiHost(std::string* from) const;
  void Mpich();
  void Pals();
  void Flux();
  void OtherPmi();

  // Rank and size by the first of these variables that are set, or the defect.
  void ReadRanks(const Names& rank, const Names& size);
  void ReadLocalRank(const Names& names);
  // Notes that all tasks are on one host, if `local_size` of them are on this one.
  void CompareLocalSize(const Names& local_size);

  const base::EnvironmentLookup& environment_;
  ClusterTask task_;
};

void TaskDetector::ReadRanks(const Names& rank, const Names& size) {
  task_.rank_from = FirstOf(rank);
  task_.size_from = FirstOf(size);
  if (task_.rank_from.empty()) {
    task_.defect = absl::StrCat(rank[0], " is not set");
  } else if (task_.size_from.empty()) {
    task_.defect = absl::StrCat(size[0], " is not set");
  } else if (Number(task_.size_from) < 1 || Number(task_.rank_from) < 0 ||
             Number(task_.rank_from) >= Number(task_.size_from)) {
    task_.defect = absl::StrCat(task_.rank_from, " is '", Get(task_.rank_from), "' and ",
                                task_.size_from, " is '", Get(task_.size_from), "'");
  } else {
    task_.rank = Number(task_.rank_from);
    task_.size = Number(task_.size_from);
  }
}

void TaskDetector::ReadLocalRank(const Names& names) { task_.local_rank = Number(FirstOf(names)); }

void TaskDetector::CompareLocalSize(const Names& local_size) {
  const std::string name = FirstOf(local_size);
  if (Number(name) != task_.size) return;
  task_.hosts = 1;
  task_.hosts_from = name;
}

// Without a step, or in the step of salloc's own shell, srun has not started this process.
bool TaskDetector::IsStepOfSlurm() const {
  constexpr uint32_t kFirstSpecialStep = 0xfffffff0;
  uint32_t step = 0;
  return Has("SLURM_JOB_ID") && absl::SimpleAtoi(Get("SLURM_STEP_ID"), &step) &&
         step < kFirstSpecialStep;
}

void TaskDetector::Slurm() {
  task_.launcher = "Slurm";
  task_.command = "srun";
  ReadRanks({"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  ReadLocalRank({"SLURM_LOCALID"});
  task_.job_from = "SLURM_JOB_ID, SLURM_STEP_ID";
  task_.job = absl::StrCat("slurm-", Get("SLURM_JOB_ID"), ".", Get("SLURM_STEP_ID"));
  if (Number("SLURM_RESTART_COUNT") > 0) {
    absl::StrAppend(&task_.job, "-r", Number("SLURM_RESTART_COUNT"));
  }
  task_.hosts_from = FirstOf({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  task_.hosts = Number(task_.hosts_from) > 0 ? Number(task_.hosts_from) : task_.size;
  if (task_.hosts == 1) return;
  task_.host_from = FirstOf({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const absl::StatusOr<std::vector<std::string>> hosts = ExpandHostList(Get(task_.host_from));
  if (hosts.ok() && !hosts->empty()) task_.host = hosts->front();
}

void TaskDetector::OpenMpi() {
  task_.launcher = "Open MPI";
  task_.command = "mpirun";
  ReadRanks({"OMPI_COMM_WORLD_RANK"}, {"OMPI_COMM_WORLD_SIZE"});
  ReadLocalRank({"OMPI_COMM_WORLD_LOCAL_RANK"});
  task_.job_from = FirstOf({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (!task_.job_from.empty()) task_.job = "mpi";
  for (const char c : Get(task_.job_from)) task_.job += absl::ascii_isalnum(c) ? c : '-';
  CompareLocalSize({"OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (task_.hosts != 1) task_.host = OpenMpiHost(&task_.host_from);
}

// Where mpirun runs, which usually is one of the job's hosts.
std::string TaskDetector::OpenMpiHost(std::string* from) const {
  // "1409286144.0;tcp://10.0.0.5,172.17.0.1:37125"
  *from = FirstOf({"OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE"});
  const std::string text = Get(*from);
  if (*from == "OMPI_MCA_orte_hnp_uri") {
    const size_t begin = text.find("tcp://");
    if (begin == std::string::npos) return "";
    const std::string addresses = text.substr(begin + 6);
    return addresses.substr(0, addresses.find_first_of(",:;"));
  }
  // "prterun-node7-12345@1"
  absl::string_view name = text;
  if (!absl::ConsumePrefix(&name, "prterun-")) return "";
  const size_t end = name.rfind('-');
  return end == absl::string_view::npos ? "" : std::string(name.substr(0, end));
}

// Hydra, the mpiexec of MPICH and Intel MPI.
void TaskDetector::Mpich() {
  task_.launcher = "MPICH";
  task_.command = "mpiexec";
  ReadRanks({"PMI_RANK"}, {"PMI_SIZE"});
  ReadLocalRank({"MPI_LOCALRANKID"});
  CompareLocalSize({"MPI_LOCALNRANKS"});
  // What MPI_Comm_spawn has started has the same proxy as those that called it, and the same ranks.
  if (!Has("PMI_SPAWNED")) task_.ancestor = "hydra_pmi_proxy";
}

// The mpiexec of HPE Cray systems.
void TaskDetector::Pals() {
  task_.launcher = "PALS";
  task_.command = "mpiexec";
  ReadRanks({"PALS_RANKID", "PMI_RANK"}, {"PMI_SIZE", "PALS_SIZE"});
  ReadLocalRank({"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"});
  CompareLocalSize({"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"});
  task_.job_from = FirstOf({"PALS_APID"});
  if (!task_.job_from.empty()) task_.job = absl::StrCat("pals-", Get("PALS_APID"));
}

void TaskDetector::Flux() {
  task_.launcher = "Flux";
  task_.command = "flux run";
  ReadRanks({"FLUX_TASK_RANK"}, {"FLUX_JOB_SIZE"});
  ReadLocalRank({"FLUX_TASK_LOCAL_ID"});
  task_.hosts = Number("FLUX_JOB_NNODES") > 0 ? Number("FLUX_JOB_NNODES") : 0;
  if (task_.hosts > 0) task_.hosts_from = "FLUX_JOB_NNODES";
  task_.job_from = FirstOf({"FLUX_JOB_ID"});
  if (!task_.job_from.empty()) task_.job = absl::StrCat("flux-", Get("FLUX_JOB_ID"));
}

// A launcher that speaks PMI and says nothing else.
void TaskDetector::OtherPmi() {
  task_.launcher = "PMI";
  task_.command = "mpiexec";
  ReadRanks({"PMI_RANK"}, {"PMI_SIZE"});
  ReadLocalRank({"PMI_LOCAL_RANK"});
  CompareLocalSize({"PMI_LOCAL_SIZE"});
  task_.job_from = FirstOf({"PMI_JOBID"});
  if (!task_.job_from.empty()) task_.job = absl::StrCat("pmi-", Get("PMI_JOBID"));
}

std::optional<ClusterTask> TaskDetector::Detect() {
  // A worker inherits what its launcher saw.
  if (Has("TORCHELASTIC_RUN_ID") || Has("SYNCLINE_ROUND")) return std::nullopt;
  // From the innermost out: mpirun runs in jobs of Flux and of Slurm, and may use srun; Flux runs
  // in jobs of Slurm. PALS sets variables of Hydra too, but not this one.
  if (Has("OMPI_COMM_WORLD_SIZE") || Has("OMPI_COMM_WORLD_RANK")) {
    OpenMpi();
  } else if (Has("MPI_LOCALNRANKS") && Has("PMI_SIZE") &&
             (Has("HYDI_CONTROL_FD") || !Has("PALS_RANKID"))) {
    Mpich();
  } else if (Has("FLUX_TASK_RANK") || Has("FLUX_JOB_SIZE")) {
    Flux();
  } else if (IsStepOfSlurm()) {
    Slurm();
  } else if (Has("PALS_RANKID")) {
    Pals();
  } else if (Has("PMI_SIZE")) {
    OtherPmi();
  } else {
    return std::nullopt;
  }
  return std::move(task_);
}

std::string TaskDetector::DescribeSingleProcess() {
  const std::optional<ClusterTask> task = Detect();
  if (task.has_value()) {
    return absl::StrCat(task->launcher, " has started this process alone (", task->size_from, ")");
  }
  if (Has("SLURM_JOB_ID")) {
    return absl::StrCat("this process is in job ", Get("SLURM_JOB_ID"),
                        " of Slurm, but srun has not started it");
  }
  return "no launcher has started this process";
}

}  // namespace

std::optional<ClusterTask> DetectTask(const base::EnvironmentLookup& environment) {
  return TaskDetector(environment).Detect();
}

std::string DescribeSingleProcess(const base::EnvironmentLookup& environment) {
  return TaskDetector(environment).DescribeSingleProcess();
}

int PortOfJob(absl::string_view job) {
  return 20000 + static_cast<int>(base::Fnv1a32(job) % 10000);
}

std::string SecretOfJob(absl::string_view job) {
  return absl::BytesToHexString(base::HmacSha256("syncline job", job));
}

}  // namespace syncline::join
