// Launcher: preparation, before any worker starts.
#include <grpc/support/log.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launch/absolute_path.h"
#include "launch/launcher.h"
#include "launch/monitor/event_file.h"
#include "launch/program.h"
#include "launch/tls.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr int kRunIdBytes = 4;
constexpr int kMomentMs = 200;

AgentOptions ForAgent(const LaunchOptions& options) {
  AgentOptions result;
  result.workers = options.workers;
  result.shutdown_timeout = options.shutdown_timeout;
  result.failure_grace = options.failure_grace;
  result.stop_signals = options.stop_signals;
  result.forwarded_signals = options.forwarded_signals;
  return result;
}

// Whether stdout and stderr go to the same terminal, file, pipe or socket.
bool OutputsAreOne() {
  struct stat out;
  struct stat err;
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

// Sends the log of this process through the launcher's message queue, so that threads which log,
// the store's for example, neither wait for a terminal nor write into another line.
void RedirectLog(std::shared_ptr<MessageQueue> messages) {
  SetLogSink([messages](LogLevel level, absl::string_view message) {
    messages->Put({FormatLogLine(level, message), ""});
  });
  // gRPC knows only one process-wide function, which its threads may call until the process ends.
  static const auto* const for_grpc = new std::shared_ptr<MessageQueue>(std::move(messages));
  gpr_set_log_function([](gpr_log_func_args* line) {
    (*for_grpc)->Put({absl::StrCat("[gRPC] ", line->message), ""});
  });
}

std::string TemporaryFolder(const Environment& environment) {
  const auto found = environment.find("TMPDIR");
  return found == environment.end() || found->second.empty() ? "/tmp" : AbsolutePath(found->second);
}

// The width of the status line; 0 if there is none.
StatusLine::Columns ColumnsOf(const LaunchOptions& options, const Environment& environment,
                              const FdSink& terminal) {
  if (!WantsStatusLine(options.status_line, environment, terminal.fd())) return [] { return 0; };
  // Does not queue drawings for a terminal that is stopped (Ctrl-S).
  return [&terminal] { return terminal.stalled() ? 0 : TerminalColumns(terminal.fd()); };
}

}  // namespace

absl::StatusOr<Launcher::OutputWriters> Launcher::OutputWriters::Open() {
  OutputWriters writers;
  writers.messages = std::make_shared<MessageQueue>();
  SYNCLINE_ASSIGN_OR_RETURN(writers.files, WriterThread::Start());
  SYNCLINE_ASSIGN_OR_RETURN(writers.out,
                            FdSink::Open(STDOUT_FILENO, WriterThread::kMaxPending,
                                         [messages = writers.messages] { messages->Wake(); }));
  if (!OutputsAreOne()) {
    SYNCLINE_ASSIGN_OR_RETURN(writers.own_err, FdSink::Open(STDERR_FILENO));
  }
  return writers;
}

Launcher::Launcher(const LaunchOptions& options, SignalQueue signals, Guardian guardian,
                   OutputWriters writers)
    : options_(options),
      environment_(InheritedEnvironment()),
      started_(clock_.Now()),
      signals_(std::move(signals)),
      guardian_(std::move(guardian)),
      writers_(std::move(writers)),
      status_line_(writers_.err(), ColumnsOf(options, environment_, writers_.err()), clock_),
      shown_out_(status_line_, *writers_.out),
      shown_err_(status_line_, writers_.err()),
      console_(isatty(STDOUT_FILENO) != 0 ? static_cast<TextSink&>(shown_out_) : *writers_.out,
               isatty(STDERR_FILENO) != 0 ? static_cast<TextSink&>(shown_err_) : writers_.err(),
               writers_.own_err == nullptr ? Console::Outputs::kSame : Console::Outputs::kApart,
               clock_),
      agent_(ForAgent(options), clock_),
      status_schedule_(clock_),
      oom_kills_before_(CountOomKills()) {}

absl::StatusOr<std::unique_ptr<Launcher>> Launcher::Create(const LaunchOptions& options,
                                                           SignalQueue signals) {
  SYNCLINE_ASSIGN_OR_RETURN(Guardian guardian, Guardian::Start());
  SYNCLINE_ASSIGN_OR_RETURN(OutputWriters writers, OutputWriters::Open());
  RedirectLog(writers.messages);
  std::unique_ptr<Launcher> launcher = absl::WrapUnique(
      new Launcher(options, std::move(signals), std::move(guardian), std::move(writers)));
  // Name servers may not answer for long.
  const auto check = [&launcher] { return launcher->CheckSignals(); };
  const InterruptScope scope(check);
  const absl::Status prepared = launcher->Prepare();
  if (!prepared.ok()) launcher->CheckSignals().IgnoreError();  // One may be the reason.
  if (prepared.ok() || launcher->agent_.state() == Agent::State::kFinished) return launcher;
  launcher->FlushOutput();
  return prepared;
}

absl::Status Launcher::Prepare() {
  // The system's resolver: gRPC's own does not know hosts that have no entry in DNS. Workers do not
  // inherit this.
  setenv("GRPC_DNS_RESOLVER", "native", 0);
  WorkerSet::Options workers;
  workers.launch = options_;
  SYNCLINE_ASSIGN_OR_RETURN(workers.program, ResolveProgram(options_, environment_));
  if (const absl::Status adopted = descendants_.Adopt(); !adopted.ok()) Print(adopted.message());
  run_id_ = options_.rendezvous.id;
  if (run_id_.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(run_id_, RandomHex(kRunIdBytes));
  }
  SYNCLINE_ASSIGN_OR_RETURN(std::string secret, GivenSecret(options_));
  const bool has_secret = options_.nodes.max == 1 || !secret.empty();
  if (secret.empty() && options_.nodes.max > 1) {
    secret = SecretOfId(run_id_);
    Print(
        "whoever knows --rdzv-id can join this job: to keep others out, give all nodes one secret "
        "with SYNCLINE_SECRET_FILE");
  }
  SYNCLINE_ASSIGN_OR_RETURN(files_,
                            JobFiles::Create(TemporaryFolder(environment_), std::move(secret)));
  guardian_.Own(files_->folder());
  workers.temporary = files_->folder();
  workers.environment = environment_;
  SYNCLINE_RETURN_IF_ERROR(UseTls(options_, files_->folder(), has_secret, &workers.environment));
  SYNCLINE_ASSIGN_OR_RETURN(workers.log_dir, PrepareLogs());
  SYNCLINE_ASSIGN_OR_RETURN(
      node_, StartNode(options_, files_->secret(), clock_, [this] { return IsStopped(); }));
  workers_ = std::make_unique<WorkerSet>(
      std::move(workers), console_, guardian_, *writers_.files,
      [messages = writers_.messages](const absl::Status& status) {
        messages->Put({absl::StrCat("syncline-run: ", status.message()), "worker_log"});
      });
  if (options_.workers > 1 && environment_.count("OMP_NUM_THREADS") == 0) {
    Print(
        "OMP_NUM_THREADS is not set: each worker gets 1 thread, so that they do not compete for "
        "CPUs. Set it if they are to have more");
  }
  return PrepareMonitors();
}

bool Launcher::IsStopped() {
  pollfd signal = {signals_.fd(), POLLIN, 0};
  return poll(&signal, 1, kMomentMs) > 0 && !CheckSignals().ok();
}

absl::Status Launcher::CheckSignals() {
  for (const int signal : signals_.Take()) {
    if (signal == SIGCHLD || agent_.state() == Agent::State::kFinished) continue;
    agent_.OnSignal(signal);  // Drops the commands: there are no workers yet.
    if (agent_.state() == Agent::State::kFinished) {
      Print(absl::StrCat(SignalName(signal), " received before any worker was started"));
    }
  }
  return agent_.state() == Agent::State::kFinished ? InterruptedError("stopped by a signal")
                                                   : absl::OkStatus();
}

absl::Status Launcher::PrepareMonitors() {
  const NodeIdentity& self = node_.participant->identity();
  SYNCLINE_ASSIGN_OR_RETURN(EventLog::Emit emit, OpenEvents());
  events_.emplace(EventLog::Job{run_id_, self.id, self.host}, std::move(emit));
  events_->LauncherStarted(getpid(), SYNCLINE_VERSION);
  if (options_.metrics_port < 0) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(
      metrics_,
      MetricsServer::Start(options_.metrics_port, [this] { return StatusForOthers(); }, clock_));
  if (options_.metrics_port == 0) Print(absl::StrCat("metrics are at ", metrics_->url()));
  return absl::OkStatus();
}

absl::StatusOr<EventLog::Emit> Launcher::OpenEvents() {
  const std::string& path = options_.event_log;
  if (path.empty()) return EventLog::Emit();
  // Through the console: opening the path again would fail for a socket, and overwrite a file from
  // its beginning.
  for (const auto& [name, target] : {std::make_pair("/dev/stdout", Console::Target::kOut),
                                     std::make_pair("/dev/stderr", Console::Target::kErr)}) {
    if (path != name) continue;
    return EventLog::Emit([this, target = target](absl::string_view line) {
      console_.Print(absl::StripSuffix(line, "\n"), target);
    });
  }
  using Opened = absl::StatusOr<std::unique_ptr<EventFile>>;
  const auto opened = std::make_shared<Opened>(absl::UnknownError(""));
  const auto print = [messages = writers_.messages](absl::string_view text) {
    messages->Put({absl::StrCat("syncline-run: ", text), ""});
  };
  if (!writers_.files->Run([opened, path, print] { *opened = EventFile::Open(path, print); },
                           WorkerSet::kFileTimeout)) {
    return BackendError(
        absl::StrCat("--event-log: ", path, " cannot be opened: its disk does not answer"));
  }
  SYNCLINE_RETURN_IF_ERROR(opened->status());
  const std::shared_ptr<EventFile> file = *std::move(*opened);
  return EventLog::Emit([this, file](absl::string_view line) {
    if (writers_.files->Append(file, line)) return;
    console_.PrintOnce("event_log",
                       "syncline-run: events are lost, the job goes on: their disk does "
                       "not answer (--event-log)");
  });
}

absl::StatusOr<std::string> Launcher::PrepareLogs() {
  if (!options_.log_dir.empty()) return AbsolutePath(options_.log_dir);
  const bool filters = !options_.stdout_filters.empty() || !options_.stderr_filters.empty();
  if (!options_.redirects.any() && !options_.tee.any() && !filters) return "";
  std::string folder = absl::StrCat(TemporaryFolder(environment_), "/syncline-logs-XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    return ArgumentError(absl::StrCat("no folder for logs can be made (", folder,
                                      "): ", std::strerror(errno), ". Give one with --log-dir"));
  }
  Print(absl::StrCat("the workers' output goes to ", folder));
  return folder;
}

}  // namespace syncline::launch
