#include "launch/worker_set.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "launch/devices.h"
#include "launch/numa.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// Whether a process of the group is left. Its leader must have been reaped.
bool GroupLives(pid_t group) { return kill(-group, 0) == 0 || errno != ESRCH; }

absl::StatusOr<std::vector<std::vector<int>>> CpusOfWorkers(const LaunchOptions& launch,
                                                            const Environment& environment) {
  if (launch.numa == LaunchOptions::Numa::kNone) {
    return std::vector<std::vector<int>>(static_cast<size_t>(launch.workers));
  }
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  SYNCLINE_ASSIGN_OR_RETURN(
      const NumaTopology topology,
      ReadTopology("", AllowedCpus(), visible == environment.end() ? "" : visible->second));
  return BindWorkers(topology, launch.numa, launch.workers);
}

}  // namespace

WorkerSet::WorkerSet(Options options, Console& console, Guardian& guardian, WriterThread& files,
                     QueuedLog::ReportError report_error)
    : options_(std::move(options)),
      console_(console),
      guardian_(guardian),
      files_(files),
      report_error_(std::move(report_error)),
      health_(options_.launch.health_timeout, clock_),
      stalls_(clock_) {}

absl::Status WorkerSet::Start(const JobFacts& job) {
  ranks_.clear();
  first_rank_ = job.first_rank;
  SYNCLINE_RETURN_IF_ERROR(Prepare(job));
  for (int local_rank = 0; local_rank < options_.launch.workers; ++local_rank) {
    absl::StatusOr<Rank> rank = StartOne(job, local_rank);
    if (!rank.ok()) {
      return Annotate(rank.status(),
                      absl::StrCat("rank ", this->rank(local_rank), " could not be started"));
    }
    guardian_.Add(rank->worker.pid());
    ranks_.push_back(*std::move(rank));
  }
  return absl::OkStatus();
}

// Prepares what all workers share.
absl::Status WorkerSet::Prepare(const JobFacts& job) {
  if (!cpus_.has_value()) {
    SYNCLINE_ASSIGN_OR_RETURN(cpus_, CpusOfWorkers(options_.launch, options_.environment));
  }
  SYNCLINE_ASSIGN_OR_RETURN(filtered_out_, OpenFiltered(job, Streams::kStdout));
  SYNCLINE_ASSIGN_OR_RETURN(filtered_err_, OpenFiltered(job, Streams::kStderr));
  return absl::OkStatus();
}

absl::StatusOr<WorkerSet::Rank> WorkerSet::StartOne(const JobFacts& job, int local_rank) {
  SYNCLINE_ASSIGN_OR_RETURN(Logs logs, OpenLogs(job, local_rank));
  const bool logged = logs.out != nullptr || logs.err != nullptr;
  WorkerFacts facts;
  facts.local_rank = local_rank;
  facts.error_file =
      logged ? absl::StrCat(LogFolder(job), "/", local_rank, "/error.json")
             : absl::StrCat(options_.temporary, "/error_", job.round, "_", local_rank, ".json");
  // Of an earlier run with the same logs.
  files_.Run([path = facts.error_file] { unlink(path.c_str()); }, kFileTimeout);
  facts.stall_file =
      absl::StrCat(options_.temporary, "/stalls_", job.round, "_", local_rank, ".json");
  stalls_.Watch(local_rank, facts.stall_file);
  if (health_.enabled()) {
    facts.heartbeat_file =
        absl::StrCat(options_.temporary, "/heartbeat_", job.round, "_", local_rank);
    SYNCLINE_RETURN_IF_ERROR(health_.Watch(local_rank, facts.heartbeat_file));
  }
  SYNCLINE_ASSIGN_OR_RETURN(const WorkerSpec spec, Specify(job, facts));
  const std::string err_log = logs.err != nullptr ? logs.err->path() : "";
  SYNCLINE_RETURN_IF_ERROR(Prefix(job, local_rank, 0).status());
  SYNCLINE_ASSIGN_OR_RETURN(Worker worker, Worker::Start(spec));
  SYNCLINE_ASSIGN_OR_RETURN(const LinePrefix prefix, Prefix(job, local_rank, worker.pid()));
  WorkerOutput out =
      Output(worker.out(), local_rank, Streams::kStdout, std::move(logs.out), prefix);
  WorkerOutput err =
      Output(worker.err(), local_rank, Streams::kStderr, std::move(logs.err), prefix);
  return Rank{
      std::move(worker), std::move(out), std::move(err), facts.error_file, err_log, "", true};
}

absl::StatusOr<WorkerSpec> WorkerSet::Specify(const JobFacts& job,
                                              const WorkerFacts& worker) const {
  const LaunchOptions& launch = options_.launch;
  Environment environment = options_.environment;
  DescribeJob(job, worker, &environment);
  if (launch.local_rank == LaunchOptions::LocalRank::kVirtual) {
    SYNCLINE_RETURN_IF_ERROR(ShowOneDevice(worker.local_rank, &environment));
  }
  // Makes Python print its stacks on the SIGABRT that a worker without heartbeats gets.
  if (health_.enabled()) environment.emplace("PYTHONFAULTHANDLER", "1");
  WorkerSpec spec;
  spec.program = options_.program.path;
  spec.arguments = options_.program.arguments;
  spec.environment = Assignments(environment);
  spec.cpus = (*cpus_)[static_cast<size_t>(worker.local_rank)];
  if (launch.interactive_rank >= 0) {
    if (rank(worker.local_rank) == launch.interactive_rank) {
      spec.input = WorkerSpec::Input::kInherited;
      spec.output = WorkerSpec::Output::kInherited;
    }
  } else if (rank(worker.local_rank) == 0 && isatty(STDIN_FILENO) == 0) {
    // Of a terminal, several programs of the job would each get some of the keys.
    spec.input = WorkerSpec::Input::kInherited;
  }
  return spec;
}

absl::StatusOr<WorkerSet::Logs> WorkerSet::OpenLogs(const JobFacts& job, int local_rank) const {
  const std::string folder = absl::StrCat(LogFolder(job), "/", local_rank);
  Logs logs;
  if (IsLogged(local_rank, Streams::kStdout)) {
    SYNCLINE_ASSIGN_OR_RETURN(logs.out, OpenLog(folder + "/stdout.log"));
  }
  if (IsLogged(local_rank, Streams::kStderr)) {
    SYNCLINE_ASSIGN_OR_RETURN(logs.err, OpenLog(folder + "/stderr.log"));
  }
  return logs;
}

absl::StatusOr<std::unique_ptr<OutputLog>> WorkerSet::OpenLog(const std::string& path) const {
  LogFile::Options log;
  log.path = path;
  log.rotate_bytes = options_.launch.log_rotate_bytes;
  log.rotate_keep = options_.launch.log_rotate_keep;
  return QueuedLog::Open(files_, std::move(log), report_error_, kFileTimeout);
}

absl::StatusOr<std::unique_ptr<OutputLog>> WorkerSet::OpenFiltered(const JobFacts& job,
                                                                   Streams which) const {
  const bool out = which == Streams::kStdout;
  if ((out ? options_.launch.stdout_filters : options_.launch.stderr_filters).empty()) {
    return nullptr;
  }
  const std::string name = out ? "stdout" : "stderr";
  if (options_.log_dir.empty()) {
    return ArgumentError(absl::StrCat("--duplicate-", name, "-filters needs a --log-dir"));
  }
  return OpenLog(absl::StrCat(LogFolder(job), "/filtered_", name, ".log"));
}

// The prefix of --log-line-prefix-template, or else of torchrun's variable, or else the rank.
absl::StatusOr<LinePrefix> WorkerSet::Prefix(const JobFacts& job, int local_rank, pid_t pid) const {
  if (options_.launch.prefix == LaunchOptions::Prefix::kNone) return LinePrefix();
  std::string text = options_.launch.prefix_template;
  const auto inherited = options_.environment.find("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (text.empty() && inherited != options_.environment.end()) text = inherited->second;
  if (text.empty() && job.world_size == 1) return LinePrefix();
  if (text.empty()) text = "[rank${rank}]: ";
  PrefixFacts facts;
  facts.role_name = job.role;
  facts.rank = rank(local_rank);
  facts.local_rank = local_rank;
  facts.group_rank = job.group_rank;
  facts.host = base::ThisPeer().host;
  facts.pid = pid;
  return ExpandPrefix(text, facts);
}

std::string WorkerSet::LogFolder(const JobFacts& job) const {
  const std::string folder =
      absl::StrCat(options_.log_dir, "/", job.run_id, "/attempt_", job.round);
  // Nodes may share the folder.
  return options_.launch.nodes.max == 1 ? folder : absl::StrCat(folder, "/node_", job.group_rank);
}

bool WorkerSet::IsLogged(int local_rank, Streams which) const {
  return Includes(options_.launch.redirects.For(local_rank), which) ||
         Includes(options_.launch.tee.For(local_rank), which);
}

bool WorkerSet::IsShown(int local_rank, Streams which) const {
  const LaunchOptions& launch = options_.launch;
  const bool file_only = Includes(launch.redirects.For(local_rank), which) &&
                         !Includes(launch.tee.For(local_rank), which);
  return !file_only && (launch.console_ranks.empty() || launch.console_ranks.count(local_rank) > 0);
}

WorkerOutput WorkerSet::Output(int fd, int local_rank, Streams which,
                               std::unique_ptr<OutputLog> log, const LinePrefix& prefix) {
  const bool out = which == Streams::kStdout;
  WorkerOutput::Targets targets;
  if (IsShown(local_rank, which)) {
    targets.stream =
        console_.AddStream(prefix, out ? Console::Target::kOut : Console::Target::kErr);
  }
  targets.log = std::move(log);
  if (OutputLog* const filtered = (out ? filtered_out_ : filtered_err_).get();
      filtered != nullptr) {
    const LinePrefix name(absl::StrCat("[rank", rank(local_rank), "]: "));
    targets.filter.emplace(out ? options_.launch.stdout_filters : options_.launch.stderr_filters,
                           prefix.empty() ? name : prefix, *filtered);
  }
  return WorkerOutput(fd, console_, std::move(targets));
}

std::vector<WorkerSet::Unhealthy> WorkerSet::CheckHealth() {
  std::vector<Unhealthy> found;
  for (const HeartbeatMonitor::Overdue& overdue : health_.Check()) {
    Rank& rank = ranks_[static_cast<size_t>(overdue.local_rank)];
    rank.worker.Signal(overdue.signal);
    const std::string who = absl::StrCat("rank ", this->rank(overdue.local_rank));
    if (rank.reason.empty()) {
      rank.reason = absl::StrCat(who, " ", overdue.reason);
      found.push_back({overdue.local_rank, overdue.signal,
                       absl::StrCat(who, " (pid ", rank.worker.pid(), ") ", overdue.reason,
                                    "; it gets SIGABRT, to show where it is")});
    } else {
      found.push_back({overdue.local_rank, overdue.signal,
                       absl::StrCat(who, " is still there; it gets SIGKILL")});
    }
  }
  return found;
}

void WorkerSet::Signal(int signal) const {
  for (const Rank& rank : ranks_) rank.worker.Signal(signal);
}

void WorkerSet::SignalGroups(int signal) const {
  for (const Rank& rank : ranks_) rank.worker.SignalGroup(signal);
}

int WorkerSet::Reaped(pid_t pid) {
  for (int local_rank = 0; local_rank < started(); ++local_rank) {
    Rank& rank = ranks_[local_rank];
    if (rank.worker.pid() != pid || rank.worker.reaped()) continue;
    rank.worker.SetReaped();
    health_.Forget(local_rank);
    stalls_.Forget(local_rank);
    rank.out.Drain();
    rank.err.Drain();
    rank.guarded = GroupLives(pid);
    if (!rank.guarded) guardian_.Remove(pid);
    return local_rank;
  }
  return -1;
}

void WorkerSet::AddTo(std::vector<pollfd>* fds) const {
  for (const Rank& rank : ranks_) {
    for (const WorkerOutput* output : {&rank.out, &rank.err}) {
      if (output->open()) fds->push_back({output->fd(), POLLIN, 0});
    }
  }
}

void WorkerSet::Read(const std::vector<pollfd>& fds) {
  auto next = fds.begin();  // In the order of AddTo.
  for (Rank& rank : ranks_) {
    for (WorkerOutput* output : {&rank.out, &rank.err}) {
      if (!output->open() || next == fds.end() || next->fd != output->fd()) continue;
      if ((next++)->revents != 0) output->Read();
    }
  }
}

void WorkerSet::Finish() {
  for (Rank& rank : ranks_) {
    for (WorkerOutput* output : {&rank.out, &rank.err}) {
      output->Drain();
      output->Close();
    }
    if (std::exchange(rank.guarded, false)) guardian_.Remove(rank.worker.pid());
  }
  filtered_out_.reset();
  filtered_err_.reset();
}

}  // namespace syncline::launch
