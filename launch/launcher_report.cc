// Launcher: messages for the operator, failures for the other nodes, and status for monitors.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/base/host.h"
#include "launch/launcher.h"
#include "launch/monitor/status_json.h"

namespace syncline::launch {
namespace {

// The phase in the published status. kSucceeded and kFailed are known only at the end.
JobStatus::Phase PhaseOf(const Agent& agent) {
  switch (agent.state()) {
    case Agent::State::kIdle:
    case Agent::State::kJoining:
      return JobStatus::Phase::kJoining;
    case Agent::State::kRunning:
      return JobStatus::Phase::kRunning;
    case Agent::State::kSettling:
    case Agent::State::kStopping:
    case Agent::State::kDraining:
      return JobStatus::Phase::kStopping;
    case Agent::State::kFinishing:
      return JobStatus::Phase::kFinishing;
    case Agent::State::kFinished:
      break;
  }
  return agent.exit_code() == 0 ? JobStatus::Phase::kSucceeded : JobStatus::Phase::kFailed;
}

// "ranks 2 to 5", "rank 2".
std::string Ranks(int first, int count) {
  if (count == 1) return absl::StrCat("rank ", first);
  return absl::StrCat("ranks ", first, " to ", first + count - 1);
}

}  // namespace

FailureFacts Launcher::CollectFacts(const Agent::Failure& failure) const {
  const int local_rank = failure.cause.local_rank;
  FailureFacts facts;
  facts.cause = failure.cause;
  facts.rank = workers_->rank(local_rank);
  facts.first_rank = workers_->rank(0);
  facts.pid = workers_->pid(local_rank);
  facts.host = base::ThisPeer().host;
  facts.after = failure.after;
  facts.round = round_.number - 1;
  facts.attempt = round_.restarts;
  facts.max_restarts = options_.max_restarts;
  if (const std::optional<int64_t> kills = CountOomKills(); kills && oom_kills_before_) {
    facts.evidence.oom_kills = *kills - *oom_kills_before_;
  }
  facts.evidence.shm_free_bytes = SharedMemoryFree();
  facts.reason = workers_->reason(local_rank);
  facts.message = ReadError(local_rank).message;
  facts.last_lines = workers_->LastErrLines(local_rank);
  facts.log = workers_->err_log(local_rank);
  facts.also_failed = failure.also_failed;
  facts.stopped = failure.stopped;
  return facts;
}

FailureNote Launcher::MakeNote() const {
  FailureNote note;
  note.time = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  if (agent_.start_failed()) {
    note.retry = FailureNote::Retry::kNever;
    note.summary = start_error_;
    note.report = options_.nodes.max == 1
                      ? start_error_
                      : absl::StrCat("host ", base::ThisPeer().host, ": ", start_error_);
    return note;
  }
  const Agent::Failure& failure = *agent_.failure();
  const absl::Duration ago = clock_.Now() - failure.cause.failed_at;
  const FailureRecord record = MakeRecord(CollectFacts(failure), absl::Now() - ago);
  note.time -= absl::ToDoubleSeconds(ago);
  note.remoteness = Remoteness(failure.cause);
  note.exit_code = failure.cause.ShellCode();
  note.summary = SummarizeFailure(record);
  note.report = ReportFailure(record);
  return note;
}

JobStatus Launcher::Status() const {
  JobStatus status;
  status.run_id = run_id_;
  status.phase = PhaseOf(agent_);
  status.round = std::max(round_.number - 1, 0);
  status.restarts = round_.restarts;
  status.max_restarts = options_.max_restarts;
  status.group_rank = std::max(round_.RankOf(node_.participant->identity().id), 0);
  status.nodes = static_cast<int>(round_.members.size());
  status.min_nodes = options_.nodes.min;
  status.max_nodes = options_.nodes.max;
  status.world_size = round_.world_size();
  status.stall_warnings = workers_->stalls().warnings();
  status.last_failure = last_failure_;
  status.elapsed = clock_.Now() - started_;
  for (int local_rank = 0; local_rank < workers_->started(); ++local_rank) {
    WorkerStatus worker;
    worker.rank = workers_->rank(local_rank);
    worker.local_rank = local_rank;
    worker.pid = workers_->pid(local_rank);
    worker.state = worker_states_[local_rank];
    if (const auto age = workers_->heartbeat_age(local_rank)) worker.heartbeat_age = *age;
    if (const auto stall = workers_->stalls().Longest(local_rank)) {
      worker.stall = StallStatus{stall->operation, stall->missing, stall->waited};
    }
    status.workers.push_back(worker);
  }
  return status;
}

NodeStatus Launcher::StatusForOthers() const {
  const NodeIdentity& self = node_.participant->identity();
  NodeStatus status;
  status.host = self.host;
  status.pid = self.pid;
  status.updated = absl::Now();
  status.job = Status();
  return status;
}

void Launcher::ShowStatus() {
  if (clock_.Now() < status_schedule_.next()) {
    status_line_.DrawIfDue();
    return;
  }
  status_schedule_.Written();
  LogStalls();
  status_line_.Show(Status());
  node_.participant->SetStatus(ToJson(StatusForOthers()));
}

void Launcher::LogExit(const WorkerExit& exit) {
  using State = WorkerStatus::State;
  const int local_rank = exit.local_rank;
  const EventLog::Worker worker = {workers_->rank(local_rank), local_rank,
                                   workers_->pid(local_rank)};
  const bool was_told = agent_.state() == Agent::State::kStopping;
  worker_states_[local_rank] = exit.ok()  ? State::kSucceeded
                               : was_told ? State::kStopped
                                          : State::kFailed;
  if (exit.ok() || was_told) {
    events_->WorkerExited(worker, exit.code, exit.signal);
  } else {
    events_->WorkerFailed(worker, exit.code, exit.signal, DescribeExit(exit));
  }
}

void Launcher::LogStalls() {
  for (const StallReader::Event& event : workers_->stalls().Poll()) {
    const EventLog::Worker worker = {workers_->rank(event.local_rank), event.local_rank,
                                     workers_->pid(event.local_rank)};
    const StallReader::Stall& stall = event.stall;
    if (event.kind == StallReader::Event::Kind::kWarning) {
      events_->Stall(worker, stall.operation, stall.waited, stall.missing, stall.text);
    } else {
      events_->StallEnded(worker, stall.operation, stall.waited);
    }
  }
}

void Launcher::LogMembers(const Round& next) {
  if (round_.members.empty()) return;
  if (next.restarts > round_.restarts) {
    events_->Restart(next.restarts, options_.max_restarts, next.reason);
  }
  for (const NodeIdentity& member : round_.members) {
    if (next.RankOf(member.id) >= 0) continue;
    if (!absl::StrContains(next.reason, " left: ")) {
      const RendezvousOptions& times = options_.rendezvous;
      events_->NodeLost(member.id, member.host,
                        times.keep_alive_interval * times.keep_alive_max_attempt);
    } else {
      events_->NodeLeft(member.id, member.host);
    }
  }
  for (const NodeIdentity& member : next.members) {
    if (round_.RankOf(member.id) < 0) events_->NodeJoined(member.id, member.host);
  }
}

void Launcher::PrintRound() {
  const NodeIdentity& self = node_.participant->identity();
  const int group_rank = round_.RankOf(self.id);
  const int first = round_.FirstWorker(group_rank);
  EventLog::Round formed = {round_.number - 1, group_rank, first, round_.world_size(), {}};
  for (const NodeIdentity& member : round_.members) formed.hosts.push_back(member.host);
  events_->RoundFormed(formed);
  if (options_.nodes.max == 1) {
    if (round_.number == 1) return;
    Print(absl::StrCat(round_.reason, "; all ", options_.workers, " worker(s) restart (restart ",
                       round_.restarts, " of ", options_.max_restarts, ")"));
    return;
  }
  Print(absl::StrCat("round ", round_.number - 1, ": ", round_.members.size(), " node(s), ",
                     round_.world_size(), " worker(s); this node has group rank ", group_rank, ", ",
                     Ranks(first, options_.workers),
                     round_.reason.empty() ? "" : absl::StrCat(" (", round_.reason, ")")));
}

void Launcher::PrintEnd() {
  if (closed_.has_value() && closed_->failure.has_value()) {
    Print(closed_->failure->report);
    // The report begins with the summary. Any other reason came after the failure.
    if (closed_->reason != closed_->failure->summary) Print(closed_->reason);
  } else if (closed_.has_value() && closed_->exit_code != 0) {
    Print(closed_->reason);
  } else if (agent_.failure().has_value()) {
    Print(ReportFailure(CollectFacts(*agent_.failure())));
  }
  if (const std::vector<pid_t> left = descendants_.Find(); agent_.gave_up() && !left.empty()) {
    Print(absl::StrCat("processes that are still there though they were killed: ",
                       absl::StrJoin(left, ", ")));
  }
}

void Launcher::PrintStop(int signal) {
  if (!StopsTheJob(signal)) return;
  events_->StopSignal(SignalName(signal));
  Print(absl::StrCat(SignalName(signal), " received",
                     agent_.state() == Agent::State::kRunning
                         ? absl::StrCat("; the workers get it too, and have ",
                                        absl::FormatDuration(options_.shutdown_timeout), " to end")
                         : ""));
}

void Launcher::Print(absl::string_view text) {
  console_.Print(absl::StrCat("syncline-run: ", text));
}

}  // namespace syncline::launch
