// What a launcher does before any worker starts.
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "launch/launcher.h"
#include "launch/program.h"

namespace syncline {
namespace {

constexpr int kRunIdBytes = 4;
constexpr int kMomentMs = 200;

AgentOptions ForAgent(const LaunchOptions& options) {
  AgentOptions result;
  result.workers = options.workers;
  result.shutdown_timeout = options.shutdown_timeout;
  if (!options.signals.empty()) result.stop_signals = options.signals;
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

// What is left of a terminal's columns for the status line; 0 if there is to be none.
StatusLine::Columns ColumnsOf(const LaunchOptions& options, const Environment& environment,
                              const FdSink& terminal) {
  if (!WantsStatusLine(options.status_line, environment, terminal.fd())) return [] { return 0; };
  // A terminal that is stopped (Ctrl-S) is not to find many of them when it goes on.
  return [&terminal] { return terminal.pending() ? 0 : TerminalColumns(terminal.fd()); };
}

}  // namespace

Launcher::Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian)
    : options_(options),
      environment_(InheritedEnvironment()),
      started_(clock_.Now()),
      signals_(std::move(signals)),
      guardian_(std::move(guardian)),
      out_(STDOUT_FILENO),
      err_(STDERR_FILENO),
      status_line_(err_, ColumnsOf(options, environment_, err_), clock_),
      shown_out_(status_line_, out_),
      shown_err_(status_line_, err_),
      console_(isatty(STDOUT_FILENO) != 0 ? static_cast<TextSink&>(shown_out_) : out_,
               isatty(STDERR_FILENO) != 0 ? static_cast<TextSink&>(shown_err_) : err_,
               CompareOutputs(), clock_),
      agent_(ForAgent(options), clock_),
      status_schedule_(clock_),
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
  // The system's resolver: gRPC's own does not know hosts that have no entry in DNS. Workers do not
  // inherit this.
  setenv("GRPC_DNS_RESOLVER", "native", 0);
  WorkerSet::Options workers;
  workers.launch = options_;
  workers.environment = environment_;
  SYNCLINE_ASSIGN_OR_RETURN(workers.program, ResolveProgram(options_, environment_));
  if (const absl::Status adopted = descendants_.Adopt(); !adopted.ok()) Say(adopted.message());
  run_id_ = options_.rendezvous.id;
  if (run_id_.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(run_id_, RandomHex(kRunIdBytes));
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::string secret, GivenSecret(options_));
  if (secret.empty() && options_.nodes.max > 1) {
    secret = SecretOfId(run_id_);
    Say("whoever knows --rdzv-id can join this job: to keep others out, give all nodes one secret "
        "with SYNCLINE_SECRET_FILE");
  }
  SYNCLINE_ASSIGN_OR_RETURN(files_,
                            JobFiles::Create(TemporaryFolder(environment_), std::move(secret)));
  guardian_.Own(files_->folder());
  workers.temporary = files_->folder();
  SYNCLINE_ASSIGN_OR_RETURN(workers.log_dir, PrepareLogs());
  SYNCLINE_ASSIGN_OR_RETURN(
      node_, StartNode(options_, files_->secret(), clock_, [this] { return SignalComes(); }));
  workers_ = std::make_unique<WorkerSet>(std::move(workers), console_, guardian_);
  if (options_.workers > 1 && environment_.count("OMP_NUM_THREADS") == 0) {
    Say("OMP_NUM_THREADS is not set: each worker gets 1 thread, so that they do not compete for "
        "CPUs. Set it if they are to have more");
  }
  return PrepareMonitors();
}

bool Launcher::SignalComes() {
  pollfd signal = {signals_.fd(), POLLIN, 0};
  return poll(&signal, 1, kMomentMs) > 0;
}

absl::Status Launcher::PrepareMonitors() {
  const NodeIdentity& self = node_.participant->identity();
  SYNCLINE_ASSIGN_OR_RETURN(events_,
                            EventLog::Open(options_.event_log, {run_id_, self.id, self.host},
                                           [this](absl::string_view text) { Say(text); }));
  events_->LauncherStarted(getpid(), SYNCLINE_VERSION);
  if (options_.metrics_port < 0) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(
      metrics_,
      MetricsServer::Start(options_.metrics_port, [this] { return StatusForOthers(); }, clock_));
  if (options_.metrics_port == 0) Say(absl::StrCat("metrics are at ", metrics_->url()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Launcher::PrepareLogs() {
  if (!options_.log_dir.empty()) return Absolute(options_.log_dir);
  const bool filters = !options_.stdout_filters.empty() || !options_.stderr_filters.empty();
  if (!options_.redirects.any() && !options_.tee.any() && !filters) return "";
  std::string folder = absl::StrCat(TemporaryFolder(environment_), "/syncline-logs-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return ArgumentError(absl::StrCat("no folder for logs can be made (", folder,
                                      "): ", std::strerror(errno), ". Give one with --log-dir"));
  }
  Say(absl::StrCat("the workers' output goes to ", folder));
  return folder;
}

}  // namespace syncline
