#include "launch/options/cluster.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/join/cluster_task.h"
#include "store/common/listen_address.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

constexpr absl::string_view kLoopback = "127.0.0.1";
constexpr int kC10dPort = 29400;

class Detector {
 public:
  explicit Detector(const base::EnvironmentLookup& environment) : environment_(environment) {}

  std::optional<Cluster> Detect();

 private:
  std::string Get(absl::string_view name) const {
    return environment_(name).value_or(std::string());
  }
  bool Has(absl::string_view name) const { return !Get(name).empty(); }
  int Number(absl::string_view name, int default_value) const {
    int value = 0;
    return absl::SimpleAtoi(Get(name), &value) && value >= 0 ? value : default_value;
  }

  void Propose(absl::string_view flag, std::string text, std::string reason) {
    cluster_.proposals.push_back({std::string(flag), std::move(text), std::move(reason)});
  }
  void ProposeNodes(int size, absl::string_view size_reason, absl::string_view rank_variable);
  void ProposeEndpoint(absl::string_view host, int port, absl::string_view reason);

  void Task(const join::ClusterTask& task);
  void TaskPlace(const join::ClusterTask& task);
  void SlurmResources(const join::ClusterTask& task);
  void Kubernetes();
  void PyTorchJob();

  const base::EnvironmentLookup& environment_;
  Cluster cluster_;
};

void Detector::ProposeNodes(int size, absl::string_view size_reason,
                            absl::string_view rank_variable) {
  Propose("nnodes", absl::StrCat(size), std::string(size_reason));
  Propose("node-rank", Get(rank_variable), std::string(rank_variable));
}

void Detector::ProposeEndpoint(absl::string_view host, int port, absl::string_view reason) {
  Propose("rdzv-backend", "c10d", absl::StrCat("started by ", cluster_.name));
  Propose("rdzv-endpoint", JoinHostPort(host, port), std::string(reason));
}

// Each task is one node of the job, wherever it runs.
void Detector::Task(const join::ClusterTask& task) {
  cluster_.name = task.launcher;
  if (!task.defect.empty()) {
    cluster_.missing_flag = "nnodes";
    cluster_.missing = absl::StrCat(task.launcher, " has started this launcher, but ", task.defect,
                                    ". Give --nnodes and --rdzv-endpoint, or --standalone");
    return;
  }
  if (task.launcher == "Slurm") SlurmResources(task);
  if (!task.job.empty()) Propose("rdzv-id", task.job, task.job_from);
  if (task.size == 1) return;
  ProposeNodes(task.size, task.size_from, task.rank_from);
  TaskPlace(task);
}

void Detector::TaskPlace(const join::ClusterTask& task) {
  if (!task.job.empty() && task.hosts == 1) {
    return ProposeEndpoint(kLoopback, join::PortOfJob(task.job),
                           absl::StrCat(task.hosts_from, ": all on this host"));
  }
  if (!task.job.empty() && !task.host.empty()) {
    ProposeEndpoint(task.host, join::PortOfJob(task.job), task.host_from);
    if (task.command != "mpirun") return;
    cluster_.note = absl::StrCat("the nodes meet on mpirun's own host, ", task.host,
                                 ". If no launcher runs there, give --rdzv-endpoint with a host ",
                                 "that has one");
    return;
  }
  cluster_.missing_flag = "rdzv-endpoint";
  cluster_.missing = absl::StrCat(
      task.command, " started ", task.size, " launchers and does not tell them where they can ",
      "meet. Give --rdzv-endpoint=HOST", task.job.empty() ? ":PORT" : "", ", HOST being one of ",
      "their hosts", task.hosts == 1 ? ": 127.0.0.1 here" : "");
}

void Detector::SlurmResources(const join::ClusterTask& task) {
  // With a task for each node, its CPUs and GPUs are the task's.
  const bool has_node = task.size == task.hosts;
  const int cpus = Number(has_node ? "SLURM_CPUS_ON_NODE" : "SLURM_CPUS_PER_TASK", 0);
  if (cpus > 0) cluster_.max_cpus = cpus;
  const int gpus = Number("SLURM_GPUS_ON_NODE", 0);
  if (has_node && gpus > 0) Propose("nproc-per-node", absl::StrCat(gpus), "SLURM_GPUS_ON_NODE");
}

// A pod of an Indexed Job, of a JobSet or not. How many there are is in the manifest only.
void Detector::Kubernetes() {
  cluster_.name = "Kubernetes";
  const std::string index = Get("JOB_COMPLETION_INDEX");
  std::string job, host, reason;
  if (Has("JOBSET_NAME") && Has("REPLICATED_JOB_NAME")) {
    reason = "JOBSET_NAME, REPLICATED_JOB_NAME";
    job = Get("JOBSET_NAME");
    host =
        absl::StrCat(job, "-", Get("REPLICATED_JOB_NAME"), "-", Number("JOB_INDEX", 0), "-0.", job);
    const int attempt = Number("JOBSET_RESTART_ATTEMPT", 0);
    if (attempt > 0) absl::StrAppend(&job, "-r", attempt);
  } else {
    reason = "HOSTNAME, the name of the pod";
    const std::string pod = Get("HOSTNAME");
    absl::string_view name = pod;
    if (absl::ConsumeSuffix(&name, absl::StrCat("-", index)) && !name.empty()) {
      job = std::string(name);
      host = absl::StrCat(job, "-0.", job);
    }
  }
  Propose("node-rank", index, "JOB_COMPLETION_INDEX");
  if (!job.empty()) {
    Propose("rdzv-id", job, reason);
    ProposeEndpoint(host, kC10dPort, reason);
  }
  cluster_.missing_flag = "nnodes";
  cluster_.missing = absl::StrCat(
      "this is pod ", index, " of an Indexed Job, and nothing says how many there are. Set ",
      "SYNCLINE_NNODES in the manifest to the Job's completions, or give --standalone if each pod ",
      "is a job of its own");
}

// Of Kubeflow, before it set PET_ variables.
void Detector::PyTorchJob() {
  cluster_.name = "Kubernetes (PyTorchJob)";
  const int size = Number("WORLD_SIZE", 1);
  if (size == 1) return;
  ProposeNodes(size, "WORLD_SIZE", "RANK");
  Propose("rdzv-backend", "static", "started by a PyTorchJob");
  Propose("master-addr", Get("MASTER_ADDR"), "MASTER_ADDR");
  if (Has("MASTER_PORT")) Propose("master-port", Get("MASTER_PORT"), "MASTER_PORT");
}

std::optional<Cluster> Detector::Detect() {
  // A worker inherits its launcher's cluster variables; a launcher inside it starts a job of its
  // own.
  if (Has("TORCHELASTIC_RUN_ID") || Has("SYNCLINE_ROUND")) return std::nullopt;
  // From the innermost out: mpirun and srun run in pods too.
  if (const std::optional<join::ClusterTask> task = join::DetectTask(environment_)) {
    Task(*task);
  } else if (Has("JOB_COMPLETION_INDEX")) {
    Kubernetes();
  } else if (Has("KUBERNETES_SERVICE_HOST") && Has("MASTER_ADDR") && Has("RANK") &&
             Has("WORLD_SIZE")) {
    PyTorchJob();
  } else {
    return std::nullopt;
  }
  return std::move(cluster_);
}

}  // namespace

std::optional<Cluster> DetectCluster(const base::EnvironmentLookup& environment) {
  return Detector(environment).Detect();
}

}  // namespace syncline::launch
