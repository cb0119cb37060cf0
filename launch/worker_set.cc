#include "launch/worker_set.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

// Whether a process of the group is left. Its leader must have been reaped.
bool GroupLives(pid_t group) { return kill(-group, 0) == 0 || errno != ESRCH; }

}  // namespace

WorkerSet::WorkerSet(Options options, Console& console, Guardian& guardian)
    : options_(std::move(options)), console_(console), guardian_(guardian) {}

absl::Status WorkerSet::Start(const JobFacts& job) {
  ranks_.clear();
  for (int local_rank = 0; local_rank < options_.launch.workers; ++local_rank) {
    absl::StatusOr<Rank> rank = StartOne(job, local_rank);
    if (!rank.ok()) {
      return Annotate(rank.status(), absl::StrCat("rank ", local_rank, " could not be started"));
    }
    guardian_.Add(rank->worker.pid());
    ranks_.push_back(*std::move(rank));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerSet::Rank> WorkerSet::StartOne(const JobFacts& job, int local_rank) const {
  const std::string err_log = LogPath(job, local_rank, "stderr.log");
  UniqueFd out_file;
  UniqueFd err_file;
  if (IsLogged(local_rank, Streams::kStdout)) {
    SYNCLINE_ASSIGN_OR_RETURN(out_file, OpenLog(LogPath(job, local_rank, "stdout.log")));
  }
  if (IsLogged(local_rank, Streams::kStderr)) {
    SYNCLINE_ASSIGN_OR_RETURN(err_file, OpenLog(err_log));
  }
  const std::string error_file =
      out_file.valid() || err_file.valid()
          ? LogPath(job, local_rank, "error.json")
          : absl::StrCat(options_.temporary, "/error_", job.round, "_", local_rank, ".json");
  unlink(error_file.c_str());  // Of an earlier run with the same logs.
  Environment environment = options_.environment;
  WorkerFacts facts;
  facts.local_rank = local_rank;
  facts.error_file = error_file;
  DescribeJob(job, facts, &environment);
  WorkerSpec spec;
  spec.program = options_.program.path;
  spec.arguments = options_.program.arguments;
  spec.environment = Assignments(environment);
  // A worker is not in the terminal's foreground group: reading from the terminal would stop it.
  if (local_rank == 0 && isatty(STDIN_FILENO) == 0) spec.input = WorkerSpec::Input::kInherited;
  const bool err_logged = err_file.valid();
  SYNCLINE_ASSIGN_OR_RETURN(Worker worker, Worker::Start(spec));
  WorkerOutput out = Output(worker.out(), local_rank, Streams::kStdout, std::move(out_file));
  WorkerOutput err = Output(worker.err(), local_rank, Streams::kStderr, std::move(err_file));
  return Rank{std::move(worker),
              std::move(out),
              std::move(err),
              error_file,
              err_logged ? err_log : "",
              true};
}

std::string WorkerSet::LogPath(const JobFacts& job, int local_rank, const std::string& name) const {
  return absl::StrCat(options_.log_dir, "/", job.run_id, "/attempt_", job.round, "/", local_rank,
                      "/", name);
}

bool WorkerSet::IsLogged(int local_rank, Streams which) const {
  return Includes(options_.launch.redirects.For(local_rank), which) ||
         Includes(options_.launch.tee.For(local_rank), which);
}

WorkerOutput WorkerSet::Output(int fd, int local_rank, Streams which, UniqueFd log) const {
  const LaunchOptions& launch = options_.launch;
  const bool file_only = Includes(launch.redirects.For(local_rank), which) &&
                         !Includes(launch.tee.For(local_rank), which);
  const bool filtered =
      !launch.console_ranks.empty() && launch.console_ranks.count(local_rank) == 0;
  Console::Stream* stream = nullptr;
  if (!file_only && !filtered) {
    stream = console_.AddStream(
        launch.workers == 1 ? std::string() : absl::StrCat("[rank", local_rank, "]: "),
        which == Streams::kStdout ? Console::Target::kOut : Console::Target::kErr);
  }
  return WorkerOutput(fd, console_, stream, std::move(log));
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
  for (const pollfd& ready : fds) {
    if (ready.revents == 0) continue;
    for (Rank& rank : ranks_) {
      for (WorkerOutput* output : {&rank.out, &rank.err}) {
        if (output->open() && output->fd() == ready.fd) output->Read();
      }
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
}

}  // namespace syncline
