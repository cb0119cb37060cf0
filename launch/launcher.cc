#include "launch/launcher.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/host.h"
#include "core/status.h"
#include "launch/program.h"
#include "launch/unique_fd.h"

namespace syncline {
namespace {

constexpr int kRunIdBytes = 4;
constexpr absl::Duration kReadersPatience = absl::Seconds(1);

AgentOptions ForAgent(const LaunchOptions& options) {
  AgentOptions result;
  result.workers = options.workers;
  result.max_restarts = options.max_restarts;
  result.shutdown_timeout = options.shutdown_timeout;
  return result;
}

Console::Outputs CompareOutputs() {
  struct stat out;
  struct stat err;
  const bool same = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
                    out.st_dev == err.st_dev && out.st_ino == err.st_ino;
  return same ? Console::Outputs::kSame : Console::Outputs::kApart;
}

// The same path for workers that change their folder.
std::string Absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(path, ignored);
  return absolute.empty() ? path : absolute.string();
}

std::string TemporaryFolder(const Environment& environment) {
  const auto found = environment.find("TMPDIR");
  return found == environment.end() || found->second.empty() ? "/tmp" : Absolute(found->second);
}

// A port that was free a moment ago. For MASTER_PORT only, which foreign frameworks want to open
// themselves; Syncline's own store keeps its port open.
absl::StatusOr<int> FindFreePort() {
  const UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  if (bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return NetworkError(absl::StrCat("no free port was found for MASTER_PORT: ",
                                     std::strerror(errno), ". Give one with --master-port"));
  }
  return static_cast<int>(ntohs(address.sin_port));
}

// For poll(): rounded up, so that the time has come when it returns.
int Milliseconds(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return -1;
  const int64_t rounded = absl::ToInt64Milliseconds(duration + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(rounded, 0, 3600 * 1000));
}

}  // namespace

Launcher::Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian)
    : options_(options),
      environment_(InheritedEnvironment()),
      signals_(std::move(signals)),
      guardian_(std::move(guardian)),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      console_(out_, err_, CompareOutputs(), clock_),
      agent_(ForAgent(options), clock_),
      oom_kills_before_(CountOomKills()) {}

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Create(const LaunchOptions& options,
                                                           SignalQueue signals) {
  SYNCLINE_ASSIGN_OR_RETURN(Guardian guardian, Guardian::Start());
  std::unique_ptr<Launcher> launcher =
      absl::WrapUnique(new Launcher(options, std::move(signals), std::move(guardian)));
  SYNCLINE_RETURN_IF_ERROR(launcher->Prepare());
  return launcher;
}

absl::Status Launcher::Prepare() {
  WorkerSet::Options workers;
  workers.launch = options_;
  workers.environment = environment_;
  SYNCLINE_ASSIGN_OR_RETURN(workers.program, ResolveProgram(options_, environment_));
  if (const absl::Status adopted = descendants_.Adopt(); !adopted.ok()) Say(adopted.message());
  run_id_ = options_.rendezvous.id;
  if (run_id_.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(run_id_, RandomHex(kRunIdBytes));
  }
  SYNCLINE_ASSIGN_OR_RETURN(files_, JobFiles::Create(TemporaryFolder(environment_)));
  guardian_.Own(files_->folder());
  workers.temporary = files_->folder();
  SYNCLINE_ASSIGN_OR_RETURN(workers.log_dir, PrepareLogs());
  JobStoreOptions store;
  store.port = options_.rendezvous.port;
  store.secret = files_->secret();
  SYNCLINE_ASSIGN_OR_RETURN(store_, StartJobStore(store));
  workers_ = std::make_unique<WorkerSet>(std::move(workers), console_, guardian_);
  if (options_.workers > 1 && environment_.count("OMP_NUM_THREADS") == 0) {
    Say("OMP_NUM_THREADS is not set: each worker gets 1 thread, so that they do not compete for "
        "CPUs. Set it if they are to have more");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Launcher::PrepareLogs() {
  if (!options_.log_dir.empty()) return Absolute(options_.log_dir);
  if (!options_.redirects.any() && !options_.tee.any()) return "";
  std::string folder = absl::StrCat(TemporaryFolder(environment_), "/syncline-logs-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return ArgumentError(absl::StrCat("no folder for logs can be made (", folder,
                                      "): ", std::strerror(errno), ". Give one with --log-dir"));
  }
  Say(absl::StrCat("the workers' output goes to ", folder));
  return folder;
}

int Launcher::Run() {
  Carry(agent_.Start());
  for (;;) {
    if (agent_.state() == Agent::State::kDraining && descendants_.Find().empty()) {
      Carry(agent_.OnNothingLeft());
    }
    if (clock_.Now() >= agent_.deadline()) Carry(agent_.OnDeadline());
    if (agent_.state() == Agent::State::kFinished) break;
    WaitForEvents();
    HandleSignals();
    console_.FlushHeld();
    StopWithoutReader();
  }
  workers_->Finish();
  if (agent_.failure().has_value()) Say(ReportFailure(CollectFacts(*agent_.failure())));
  if (const std::vector<pid_t> left = descendants_.Find(); agent_.gave_up() && !left.empty()) {
    Say(absl::StrCat("processes that are still there though they were killed: ",
                     absl::StrJoin(left, ", ")));
  }
  out_.Flush(kReadersPatience);
  err_.Flush(kReadersPatience);
  return agent_.exit_code();
}

absl::Status Launcher::StartWorkers() {
  if (agent_.attempt() > 0) {
    Say(absl::StrCat(failure_summary_, "; all ", options_.workers,
                     " worker(s) start anew (restart ", agent_.attempt(), " of ",
                     options_.max_restarts, ")"));
  }
  JobFacts job;
  job.workers = options_.workers;
  job.world_size = options_.workers;
  job.role_world_size = options_.workers;
  job.round = agent_.attempt();
  job.restarts = agent_.attempt();
  job.max_restarts = options_.max_restarts;
  job.role = options_.role;
  job.run_id = run_id_;
  job.master_addr = options_.master_addr.empty() ? "127.0.0.1" : options_.master_addr;
  job.master_port = options_.master_port;
  if (job.master_port == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(job.master_port, FindFreePort());
  }
  job.store_address = store_->address();
  job.secret_file = files_->secret_path();
  return workers_->Start(job);
}

void Launcher::Carry(Agent::Commands commands) {
  for (size_t i = 0; i < commands.size(); ++i) {
    const AgentCommand command = commands[i];
    const Agent::Commands more = Execute(command);
    commands.insert(commands.end(), more.begin(), more.end());
  }
}

Agent::Commands Launcher::Execute(const AgentCommand& command) {
  switch (command.kind) {
    case AgentCommand::Kind::kStartWorkers:
      workers_->Finish();
      if (const absl::Status started = StartWorkers(); !started.ok()) {
        Say(started.message());
        return agent_.OnStartFailed();
      }
      break;
    case AgentCommand::Kind::kSignalGroups:
      workers_->SignalGroups(command.signal);
      break;
    case AgentCommand::Kind::kSignalWorkers:
      workers_->Signal(command.signal);
      break;
    case AgentCommand::Kind::kTerminateLeftovers:
      descendants_.SignalAll(SIGTERM);
      break;
    case AgentCommand::Kind::kKillEverything:
      workers_->SignalGroups(SIGKILL);
      descendants_.SignalAll(SIGKILL);
      break;
  }
  return {};
}

void Launcher::WaitForEvents() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  if (out_.pending()) fds.push_back({out_.fd(), POLLOUT, 0});
  if (err_.pending()) fds.push_back({err_.fd(), POLLOUT, 0});
  const size_t outputs_begin = fds.size();
  // The workers, too, wait for a reader that has more to read than it takes.
  if (!out_.congested() && !err_.congested()) workers_->AddTo(&fds);
  const absl::Time until = std::min(agent_.deadline(), console_.next_flush());
  if (poll(fds.data(), fds.size(), Milliseconds(until - clock_.Now())) <= 0) return;
  workers_->Read(std::vector<pollfd>(fds.begin() + outputs_begin, fds.end()));
  out_.TryFlush();
  err_.TryFlush();
}

void Launcher::HandleSignals() {
  for (const int signal : signals_.Take()) {
    if (signal == SIGCHLD) {
      ReapProcesses();
    } else {
      SayStop(signal);
      Carry(agent_.OnSignal(signal));
    }
  }
}

void Launcher::ReapProcesses() {
  std::vector<WorkerExit> exits;
  Agent::Commands commands;
  for (;;) {
    int status = 0;
    const pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) break;
    const int local_rank = workers_->Reaped(pid);
    if (local_rank < 0) {
      commands = agent_.OnLeftoverExited();
    } else {
      exits.push_back(DescribeEnd(local_rank, status));
    }
  }
  Carry(std::move(commands));
  Carry(agent_.OnWorkersExited(exits));
  if (agent_.failure().has_value()) {
    failure_summary_ = SummarizeFailure(CollectFacts(*agent_.failure()));
  }
}

WorkerExit Launcher::DescribeEnd(int local_rank, int status) const {
  WorkerExit exit;
  exit.local_rank = local_rank;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  const RecordedError recorded = ReadErrorFile(workers_->error_file(local_rank));
  if (exit.ok() || recorded.message.empty()) return exit;
  exit.record =
      recorded.is_peer_error ? WorkerExit::Record::kPeerError : WorkerExit::Record::kError;
  const absl::Duration ago =
      recorded.time.has_value() ? absl::Now() - *recorded.time : absl::ZeroDuration();
  exit.failed_at = clock_.Now() - std::max(ago, absl::ZeroDuration());
  return exit;
}

void Launcher::StopWithoutReader() {
  if (!out_.reader_gone() || std::exchange(reader_left_, true)) return;
  if (agent_.state() == Agent::State::kRunning) {
    Say("nobody reads this launcher's output any more (a closed pipe): the workers are stopped");
  }
  Carry(agent_.OnSignal(SIGPIPE));
}

FailureFacts Launcher::CollectFacts(const Agent::Failure& failure) const {
  const int local_rank = failure.cause.local_rank;
  FailureFacts facts;
  facts.cause = failure.cause;
  facts.rank = local_rank;  // On a single node.
  facts.pid = workers_->pid(local_rank);
  facts.host = ThisPeer().host;
  facts.after = failure.after;
  facts.attempt = agent_.attempt();
  facts.max_restarts = options_.max_restarts;
  if (const std::optional<int64_t> kills = CountOomKills(); kills && oom_kills_before_) {
    facts.evidence.oom_kills = *kills - *oom_kills_before_;
  }
  facts.evidence.shm_free_bytes = SharedMemoryFree();
  facts.message = ReadErrorFile(workers_->error_file(local_rank)).message;
  facts.last_lines = workers_->LastErrLines(local_rank);
  facts.log = workers_->err_log(local_rank);
  facts.also_failed = failure.also_failed;
  facts.stopped = failure.stopped;
  return facts;
}

void Launcher::SayStop(int signal) {
  if (signal == SIGUSR1 || signal == SIGUSR2) return;
  Say(absl::StrCat(SignalName(signal), " received",
                   agent_.state() == Agent::State::kRunning
                       ? absl::StrCat("; the workers get it too, and have ",
                                      absl::FormatDuration(options_.shutdown_timeout), " to end")
                       : ""));
}

void Launcher::Say(absl::string_view text) { console_.Say(absl::StrCat("syncline-run: ", text)); }

}  // namespace syncline
