#include "launch/launcher.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/join/host_address.h"
#include "launch/rendezvous/store_network.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);
// At the end: for a reader or a disk that takes nothing, and for one that is slow.
constexpr absl::Duration kReaderTimeout = absl::Seconds(2);
constexpr absl::Duration kFlushTimeout = absl::Seconds(30);
// For joining threads, in addition to the two above.
constexpr absl::Duration kCleanupTimeout = absl::Seconds(15);

// For poll(): rounded up, so that the deadline has passed when it returns.
int Milliseconds(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return -1;
  const int64_t rounded = absl::ToInt64Milliseconds(duration + absl::Microseconds(999));
  return static_cast<int>(std::clamp<int64_t>(rounded, 0, 3600 * 1000));
}

absl::string_view BackendName(RendezvousOptions::Backend backend) {
  switch (backend) {
    case RendezvousOptions::Backend::kStatic:
      return "static";
    case RendezvousOptions::Backend::kC10d:
      return "c10d";
    case RendezvousOptions::Backend::kEtcd:
      return "etcd";
    case RendezvousOptions::Backend::kFile:
      break;
  }
  return "file";
}

std::string EndpointOf(const RendezvousOptions& rendezvous) {
  if (rendezvous.backend == RendezvousOptions::Backend::kFile) return rendezvous.path;
  return rendezvous.host.empty() ? "" : EndpointAddress(rendezvous);
}

}  // namespace

int Launcher::Run() {
  if (agent_.state() == Agent::State::kFinished) {  // By a signal during the preparation.
    FlushOutput();
    return agent_.exit_code();
  }
  Execute(agent_.Start());
  for (;;) {
    TakeEvents();
    if (agent_.state() == Agent::State::kDraining && descendants_.Find().empty()) {
      Execute(agent_.OnNothingLeft());
      continue;
    }
    if (clock_.Now() >= agent_.deadline()) Execute(agent_.OnDeadline());
    if (agent_.state() == Agent::State::kFinished) break;
    ShowStatus();
    WaitForEvents();
    HandleSignals();
    CheckHealth();
    console_.FlushHeld();
    StopWithoutReader();
  }
  // A watchdog, in case anything below hangs.
  ExitWithin(LeaveTimeout() + kFlushTimeout + kCleanupTimeout, agent_.exit_code());
  workers_->Finish();
  status_line_.Finish();
  PrintEnd();
  Leave();
  events_->LauncherEnded(agent_.exit_code());
  FlushOutput();
  return agent_.exit_code();
}

void Launcher::Leave() {
  std::optional<std::string> reason;
  if (!closed_.has_value()) {
    reason = agent_.stop_signal() != 0 ? SignalName(agent_.stop_signal()) : "its launcher gave up";
  }
  node_.participant->Leave(reason, LeaveTimeout());
}

absl::Duration Launcher::LeaveTimeout() const {
  return closed_.has_value() ? options_.rendezvous.close_timeout : kLeaveTimeout;
}

// A stop signal ends this wait too.
void Launcher::FlushOutput() {
  const absl::Time deadline = clock_.Now() + kFlushTimeout;
  const auto is_stopped = [this] {
    const std::vector<int> signals = signals_.Take();
    return std::any_of(signals.begin(), signals.end(),
                       [this](int signal) { return StopsTheJob(signal); });
  };
  if (!writers_.files->Flush(kReaderTimeout, deadline, is_stopped)) {
    Print(absl::StrCat("the last ", writers_.files->pending_size(),
                       " bytes of the logs were not written: their disk does not answer"));
  }
  ShowMessages();
  writers_.out->Flush(kReaderTimeout, deadline, is_stopped);
  if (writers_.own_err != nullptr) {
    if (const std::string missing = writers_.out->Missing(); !missing.empty()) {
      Print(absl::StrCat("stdout lacks some of the output: ", missing));
    }
    writers_.own_err->Flush(kReaderTimeout, deadline, is_stopped);
  }
}

absl::Status Launcher::Join() {
  events_->Joining(BackendName(options_.rendezvous.backend), EndpointOf(options_.rendezvous));
  int port = options_.master_port;
  if (port == 0) {
    SYNCLINE_ASSIGN_OR_RETURN(port, FindFreePort());
  }
  std::optional<FailureNote> note;
  if (agent_.failure().has_value() || agent_.start_failed()) note = MakeNote();
  if (note.has_value()) last_failure_ = note->summary;
  node_.participant->Wait(std::move(note), port);
  return absl::OkStatus();
}

JobFacts Launcher::DescribeRound() const {
  const int group_rank = round_.RankOf(node_.participant->identity().id);
  const NodeIdentity& host = round_.members.front();
  JobFacts job;
  job.round = round_.number - 1;
  job.restarts = round_.restarts;
  job.max_restarts = options_.max_restarts;
  job.run_id = run_id_;
  job.workers = options_.workers;
  job.first_rank = round_.FirstWorker(group_rank);
  job.world_size = round_.world_size();
  job.group_rank = group_rank;
  job.group_world_size = static_cast<int>(round_.members.size());
  job.role = options_.role;
  job.first_role_rank = round_.FirstWorkerOfRole(group_rank);
  job.role_world_size = round_.WorkersOfRole(options_.role);
  // The node with rank 0 changes, unless its rank was given.
  const bool is_fixed =
      options_.nodes.max == 1 || options_.rendezvous.backend == RendezvousOptions::Backend::kStatic;
  job.master_addr = options_.master_addr.empty() || !is_fixed ? host.address : options_.master_addr;
  job.master_port = host.master_port;
  job.store_address = host.store;
  job.secret_file = files_->secret_path();
  const std::string& address = node_.participant->identity().address;
  if (options_.nodes.max > 1 && !join::IsLoopbackAddress(address)) job.host_address = address;
  return job;
}

absl::Status Launcher::StartWorkers() {
  PrintRound();
  worker_states_.assign(options_.workers, WorkerStatus::State::kRunning);
  const absl::Status started = workers_->Start(DescribeRound());
  std::vector<EventLog::Worker> all;
  for (int local_rank = 0; local_rank < workers_->started(); ++local_rank) {
    all.push_back({workers_->rank(local_rank), local_rank, workers_->pid(local_rank)});
  }
  events_->WorkersStarted(all);
  return started;
}

void Launcher::Execute(Agent::Commands commands) {
  if (!commands.empty()) status_schedule_.Changed();
  for (size_t i = 0; i < commands.size(); ++i) {
    const AgentCommand command = commands[i];
    const Agent::Commands more = ExecuteOne(command);
    commands.insert(commands.end(), more.begin(), more.end());
  }
}

Agent::Commands Launcher::ExecuteOne(const AgentCommand& command) {
  switch (command.kind) {
    case AgentCommand::Kind::kJoin:
      if (const absl::Status joined = Join(); !joined.ok()) {
        Print(joined.message());
        return agent_.OnClosed(1);
      }
      break;
    case AgentCommand::Kind::kStartWorkers:
      workers_->Finish();
      node_.participant->Run(round_);
      if (const absl::Status started = StartWorkers(); !started.ok()) {
        start_error_ = std::string(started.message());
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
    case AgentCommand::Kind::kReportFailure:
      node_.participant->Fail(MakeNote());
      break;
    case AgentCommand::Kind::kReportDone:
      node_.participant->Finish();
      break;
  }
  return {};
}

void Launcher::WaitForEvents() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, {node_.participant->fd(), POLLIN, 0}};
  fds.push_back({writers_.messages->fd(), POLLIN, 0});
  if (metrics_ != nullptr) metrics_->AddTo(&fds);
  const size_t outputs_begin = fds.size();
  workers_->AddTo(&fds);
  absl::Time until = std::min({agent_.deadline(), console_.next_flush(), node_.participant->next(),
                               status_line_.next_draw(), status_schedule_.next()});
  if (agent_.state() == Agent::State::kRunning) {
    until = std::min(until, workers_->health_deadline());
  }
  if (metrics_ != nullptr) until = std::min(until, metrics_->deadline());
  const int ready = poll(fds.data(), fds.size(), Milliseconds(until - clock_.Now()));
  if (metrics_ != nullptr && ready >= 0) metrics_->Handle(fds);
  ShowMessages();
  if (ready <= 0) return;
  workers_->Read(std::vector<pollfd>(fds.begin() + outputs_begin, fds.end()));
}

void Launcher::ShowMessages() {
  for (const MessageQueue::Message& message : writers_.messages->Take()) {
    if (message.topic.empty()) {
      console_.Print(message.text);
    } else {
      console_.PrintOnce(message.topic, message.text);
    }
  }
}

void Launcher::HandleSignals() {
  for (const int signal : signals_.Take()) {
    if (signal == SIGCHLD) {
      ReapProcesses();
    } else {
      PrintStop(signal);
      Execute(agent_.OnSignal(signal));
    }
  }
}

bool Launcher::StopsTheJob(int signal) const {
  const std::vector<int>& signals = options_.stop_signals;
  return std::find(signals.begin(), signals.end(), signal) != signals.end();
}

void Launcher::TakeEvents() {
  for (const RendezvousEvent& event : node_.participant->Take()) {
    switch (event.kind) {
      case RendezvousEvent::Kind::kMessage:
        Print(event.text);
        break;
      case RendezvousEvent::Kind::kMoved:
        Print(absl::StrCat("the rendezvous goes on at ", event.text));
        events_->StoreRehosted(event.text);
        break;
      case RendezvousEvent::Kind::kFailed:
        Print(event.text);
        Execute(agent_.OnClosed(1));
        break;
      case RendezvousEvent::Kind::kAnnouncement:
        HandleAnnouncement(event.announcement);
        break;
    }
  }
}

void Launcher::HandleAnnouncement(const Announcement& announcement) {
  switch (announcement.kind) {
    case Announcement::Kind::kRound:
      if (announcement.round.RankOf(node_.participant->identity().id) < 0) {
        Execute(agent_.OnRoundOver());  // The others go on without this node.
        break;
      }
      LogMembers(announcement.round);
      round_ = announcement.round;
      Execute(agent_.OnRound());
      break;
    case Announcement::Kind::kOver:
      if (announcement.over != round_.number) break;
      if (agent_.state() == Agent::State::kRunning && options_.nodes.max > 1) {
        Print(absl::StrCat("round ", round_.number - 1, " is over: ", announcement.reason));
      }
      Execute(agent_.OnRoundOver());
      break;
    case Announcement::Kind::kClosed:
      closed_ = announcement;
      Execute(agent_.OnClosed(announcement.exit_code));
      break;
    case Announcement::Kind::kMoved:
      break;
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
  Execute(std::move(commands));
  LogStalls();
  for (const WorkerExit& exit : exits) LogExit(exit);
  Execute(agent_.OnWorkersExited(exits));
}

WorkerExit Launcher::DescribeEnd(int local_rank, int status) const {
  WorkerExit exit;
  exit.local_rank = local_rank;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  if (exit.ok()) return exit;
  const RecordedError recorded = ReadError(local_rank);
  if (recorded.message.empty()) return exit;
  exit.record =
      recorded.is_peer_error ? WorkerExit::Record::kPeerError : WorkerExit::Record::kError;
  const absl::Duration ago =
      recorded.time.has_value() ? absl::Now() - *recorded.time : absl::ZeroDuration();
  // The worker's time may be wrong, but the file was written after this launcher started.
  const absl::Time now = clock_.Now();
  exit.failed_at = now - std::clamp(ago, absl::ZeroDuration(), now - started_);
  return exit;
}

// On the writer thread: the file may be on the disk of the logs, which may not answer.
RecordedError Launcher::ReadError(int local_rank) const {
  const auto recorded = std::make_shared<RecordedError>();
  const bool done = writers_.files->Run(
      [recorded, path = workers_->error_file(local_rank)] { *recorded = ReadErrorFile(path); },
      WorkerSet::kFileTimeout);
  return done ? *recorded : RecordedError();
}

void Launcher::CheckHealth() {
  if (agent_.state() != Agent::State::kRunning) return;
  for (const WorkerSet::Unhealthy& worker : workers_->CheckHealth()) {
    Print(worker.line);
    const int local_rank = worker.local_rank;
    if (worker.signal == SIGKILL) continue;  // Its SIGABRT was logged before.
    events_->HeartbeatLost({workers_->rank(local_rank), local_rank, workers_->pid(local_rank)},
                           workers_->heartbeat_age(local_rank).value_or(options_.health_timeout));
  }
}

void Launcher::StopWithoutReader() {
  if (!writers_.out->reader_gone() || std::exchange(reader_left_, true)) return;
  if (agent_.state() == Agent::State::kRunning) {
    Print("nobody reads this launcher's output any more (a closed pipe): the workers are stopped");
  }
  Execute(agent_.OnSignal(SIGPIPE));
}

}  // namespace syncline::launch
