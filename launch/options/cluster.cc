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
#include "launch/options/host_list.h"
#include "launch/options/option_values.h"
#include "store/listen_address.h"

namespace syncline {
namespace {

constexpr absl::string_view kLoopback = "127.0.0.1";
constexpr int kC10dPort = 29400;

// Between the ports of well-known services and those that systems give out, one for each job, so
// that jobs on one host seldom meet. (FNV-1a.)
int PortOf(absl::string_view job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return 20000 + static_cast<int>(hash % 10000);
}

class Detector {
 public:
  explicit Detector(const EnvironmentLookup& environment) : environment_(environment) {}

  std::optional<Cluster> Detect();

 private:
  std::string Get(absl::string_view name) const {
    return environment_(name).value_or(std::string());
  }
  bool Has(absl::string_view name) const { return !Get(name).empty(); }
  std::string FirstOf(const std::vector<absl::string_view>& names) const {
    for (absl::string_view name : names) {
      if (Has(name)) return std::string(name);
    }
    return "";
  }
  int Number(absl::string_view name, int otherwise) const {
    int value = 0;
    return absl::SimpleAtoi(Get(name), &value) && value >= 0 ? value : otherwise;
  }

  void Propose(absl::string_view flag, std::string text, std::string reason) {
    cluster_.proposals.push_back({std::string(flag), std::move(text), std::move(reason)});
  }
  // One agent of `size`, all of which can reach `host`; empty: not known.
  void ProposeAgents(int size, absl::string_view size_reason, absl::string_view rank_variable);
  void ProposeEndpoint(absl::string_view host, int port, absl::string_view reason);

  void Slurm();
  std::string SlurmHost(std::string* reason) const;
  void SlurmResources(int tasks, int nodes);
  void OpenMpi();
  std::string OpenMpiHost(std::string* reason) const;
  void Mpich();
  void Kubernetes();
  void PyTorchJob();

  const EnvironmentLookup& environment_;
  Cluster cluster_;
};

void Detector::ProposeAgents(int size, absl::string_view size_reason,
                             absl::string_view rank_variable) {
  Propose("nnodes", absl::StrCat(size), std::string(size_reason));
  Propose("node-rank", Get(rank_variable), std::string(rank_variable));
}

void Detector::ProposeEndpoint(absl::string_view host, int port, absl::string_view reason) {
  Propose("rdzv-backend", "c10d", absl::StrCat("started by ", cluster_.name));
  Propose("rdzv-endpoint", JoinHostPort(host, port), std::string(reason));
}

// Under srun each task is one node of the job, wherever it runs.
void Detector::Slurm() {
  cluster_.name = "Slurm";
  const std::string size_variable =
      FirstOf({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  const int tasks = Number(size_variable, 1);
  const std::string nodes_variable =
      FirstOf({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  const int nodes = Number(nodes_variable, tasks);
  SlurmResources(tasks, nodes);
  std::string id = absl::StrCat("slurm-", Get("SLURM_JOB_ID"), ".", Get("SLURM_STEP_ID"));
  if (Number("SLURM_RESTART_COUNT", 0) > 0) {
    absl::StrAppend(&id, "-r", Number("SLURM_RESTART_COUNT", 0));
  }
  Propose("rdzv-id", id, "SLURM_JOB_ID, SLURM_STEP_ID");
  if (tasks == 1) return;
  ProposeAgents(tasks, size_variable, "SLURM_PROCID");
  if (nodes == 1) return ProposeEndpoint(kLoopback, PortOf(id), nodes_variable);
  std::string reason;
  const std::string host = SlurmHost(&reason);
  if (!host.empty()) return ProposeEndpoint(host, PortOf(id), reason);
  cluster_.missing_flag = "rdzv-endpoint";
  cluster_.missing = absl::StrCat("Slurm started ", tasks, " launchers, and SLURM_STEP_NODELIST ",
                                  "does not say where. Give --rdzv-endpoint=HOST with the name of ",
                                  "one of their hosts");
}

std::string Detector::SlurmHost(std::string* reason) const {
  *reason = FirstOf({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const absl::StatusOr<std::vector<std::string>> hosts = ExpandHostList(Get(*reason));
  return hosts.ok() && !hosts->empty() ? hosts->front() : "";
}

void Detector::SlurmResources(int tasks, int nodes) {
  const std::string cpus =
      FirstOf(tasks == nodes ? std::vector<absl::string_view>{"SLURM_CPUS_ON_NODE"}
                             : std::vector<absl::string_view>{"SLURM_CPUS_PER_TASK"});
  if (Number(cpus, 0) > 0) cluster_.max_cpus = Number(cpus, 0);
  // With a task for each node, its GPUs are the task's.
  const int gpus = Number("SLURM_GPUS_ON_NODE", 0);
  if (tasks == nodes && gpus > 0) {
    Propose("nproc-per-node", absl::StrCat(gpus), "SLURM_GPUS_ON_NODE");
  }
}

void Detector::OpenMpi() {
  cluster_.name = "Open MPI";
  const int size = Number("OMPI_COMM_WORLD_SIZE", 1);
  const std::string id_variable = FirstOf({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  std::string id = "mpi";
  for (const char c : Get(id_variable)) id += absl::ascii_isalnum(c) ? c : '-';
  if (id.size() < 4) id = "mpi-job";
  Propose("rdzv-id", id, id_variable);
  if (size == 1) return;
  ProposeAgents(size, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK");
  if (Number("OMPI_COMM_WORLD_LOCAL_SIZE", 0) == size) {
    return ProposeEndpoint(kLoopback, PortOf(id), "OMPI_COMM_WORLD_LOCAL_SIZE: all on this host");
  }
  std::string reason;
  const std::string host = OpenMpiHost(&reason);
  if (host.empty()) {
    cluster_.missing_flag = "rdzv-endpoint";
    cluster_.missing = absl::StrCat("mpirun started ", size,
                                    " launchers on several hosts and does not say on which. Give ",
                                    "--rdzv-endpoint=HOST with the name of one of them");
    return;
  }
  ProposeEndpoint(host, PortOf(id), reason);
  cluster_.note = absl::StrCat("the nodes meet on mpirun's own host, ", host, ". If no launcher ",
                               "runs there, give --rdzv-endpoint with a host that has one");
}

// Where mpirun runs, which usually is one of the job's hosts.
std::string Detector::OpenMpiHost(std::string* reason) const {
  // "1409286144.0;tcp://10.0.0.5,172.17.0.1:37125"
  *reason = FirstOf({"OMPI_MCA_orte_hnp_uri", "PMIX_NAMESPACE"});
  const std::string text = Get(*reason);
  if (*reason == "OMPI_MCA_orte_hnp_uri") {
    const size_t begin = text.find("tcp://");
    if (begin == std::string::npos) return "";
    const std::string places = text.substr(begin + 6);
    return places.substr(0, places.find_first_of(",:;"));
  }
  // "prterun-node7-12345@1"
  absl::string_view name = text;
  if (!absl::ConsumePrefix(&name, "prterun-")) return "";
  const size_t end = name.rfind('-');
  return end == absl::string_view::npos ? "" : std::string(name.substr(0, end));
}

// Hydra, the mpiexec of MPICH and Intel MPI.
void Detector::Mpich() {
  cluster_.name = "MPICH";
  const int size = Number("PMI_SIZE", 1);
  if (size == 1) return;
  ProposeAgents(size, "PMI_SIZE", "PMI_RANK");
  cluster_.missing_flag = "rdzv-endpoint";
  cluster_.missing =
      absl::StrCat("mpiexec started ", size, " launchers and does not tell them where they can ",
                   "meet. Give --rdzv-endpoint=HOST:PORT, HOST being one of their hosts",
                   Number("MPI_LOCALNRANKS", 0) == size ? ": 127.0.0.1 here" : "");
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
  ProposeAgents(size, "WORLD_SIZE", "RANK");
  Propose("rdzv-backend", "static", "started by a PyTorchJob");
  Propose("master-addr", Get("MASTER_ADDR"), "MASTER_ADDR");
  if (Has("MASTER_PORT")) Propose("master-port", Get("MASTER_PORT"), "MASTER_PORT");
}

std::optional<Cluster> Detector::Detect() {
  // A worker inherits what its launcher saw of the cluster; a launcher in it starts a job of its
  // own.
  if (Has("TORCHELASTIC_RUN_ID") || Has("SYNCLINE_ROUND")) return std::nullopt;
  // From the innermost out: mpirun uses srun, and both run in pods. Without a step, or in the step
  // of salloc's own shell, nobody but this process has been started.
  uint32_t step = 0;
  constexpr uint32_t kFirstSpecialStep = 0xfffffff0;
  if (Has("OMPI_COMM_WORLD_SIZE") && Has("OMPI_COMM_WORLD_RANK")) {
    OpenMpi();
  } else if (Has("PMI_SIZE") && Has("PMI_RANK") && Has("MPI_LOCALNRANKS")) {
    Mpich();
  } else if (Has("SLURM_JOB_ID") && Has("SLURM_PROCID") &&
             absl::SimpleAtoi(Get("SLURM_STEP_ID"), &step) && step < kFirstSpecialStep) {
    Slurm();
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

std::optional<Cluster> DetectCluster(const EnvironmentLookup& environment) {
  return Detector(environment).Detect();
}

}  // namespace syncline
