#include "launch/agent.h"

#include <signal.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace syncline::launch {
namespace {

using Kind = AgentCommand::Kind;

constexpr int kConsequence = 2;

bool Contains(const std::vector<int>& signals, int signal) {
  return std::find(signals.begin(), signals.end(), signal) != signals.end();
}

bool IsLikelierCause(const WorkerExit& a, const WorkerExit& b) {
  const auto key = [](const WorkerExit& exit) {
    return std::make_tuple(Remoteness(exit), exit.failed_at, exit.signal == 0);
  };
  return key(a) < key(b);
}

}  // namespace

// 1: an exit code alone may belong to the cause or to a consequence.
int Remoteness(const WorkerExit& exit) {
  if (exit.record == WorkerExit::Record::kPeerError) return kConsequence;
  return exit.record == WorkerExit::Record::kError || exit.signal != 0 ? 0 : 1;
}

Agent::Agent(const AgentOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

Agent::Commands Agent::Start() { return Join(); }

Agent::Commands Agent::Join() {
  state_ = State::kJoining;
  deadline_ = absl::InfiniteFuture();
  return {{Kind::kJoin}};
}

Agent::Commands Agent::OnRound() {
  if (state_ != State::kJoining) return {};
  state_ = State::kRunning;
  living_ = options_.workers;
  killed_ = false;
  waited_for_cause_ = false;
  is_over_ = false;
  start_failed_ = false;
  reported_ = false;
  failure_.reset();
  started_ = clock_.Now();
  stopped_ = absl::InfiniteFuture();
  deadline_ = absl::InfiniteFuture();
  return {{Kind::kStartWorkers}};
}

Agent::Commands Agent::OnRoundOver() {
  if (state_ == State::kFinishing) return Join();
  if (state_ == State::kIdle || state_ == State::kJoining || state_ == State::kFinished) return {};
  is_over_ = true;
  return state_ == State::kRunning || state_ == State::kSettling ? StopOthers() : Commands{};
}

Agent::Commands Agent::OnClosed(int exit_code) {
  if (state_ == State::kFinished) return {};
  closed_ = exit_code;
  if (state_ == State::kRunning || state_ == State::kSettling) return StopOthers();
  if (state_ == State::kJoining || state_ == State::kFinishing) Finish();
  return {};
}

Agent::Commands Agent::OnStartFailed() {
  start_failed_ = true;
  state_ = State::kDraining;
  return Kill();
}

Agent::Commands Agent::OnWorkersExited(absl::Span<const WorkerExit> exits) {
  if (state_ == State::kFinished || exits.empty()) return {};
  living_ -= static_cast<int>(exits.size());
  for (WorkerExit exit : exits) {
    if (exit.record == WorkerExit::Record::kNone) exit.failed_at = clock_.Now();
    if (state_ == State::kRunning && !exit.ok()) Settle();
    const bool failed_by_itself = !exit.ok() && exit.failed_at < stopped_;
    if (state_ == State::kSettling || failure_.has_value() || failed_by_itself) Count(exit);
  }
  return living_ == 0 && state_ != State::kDraining ? Drain() : Commands{};
}

void Agent::Count(WorkerExit exit) {
  if (exit.failed_at >= stopped_) {
    failure_->stopped.push_back(exit);
    return;
  }
  const bool was_told = clock_.Now() >= stopped_;
  if (was_told && (exit.signal == SIGTERM || exit.signal == SIGKILL)) {
    // It had recorded its error and was ending when the signal came: reports exit code 1, with
    // which it would have ended, instead of the launcher's own signal.
    exit.code = 1;
    exit.signal = 0;
  }
  if (exit.ok()) return;
  if (!failure_.has_value()) {
    failure_.emplace();
    failure_->cause = exit;
  } else {
    if (IsLikelierCause(exit, failure_->cause)) std::swap(exit, failure_->cause);
    failure_->also_failed.push_back(exit);
  }
  failure_->after = std::max(failure_->cause.failed_at - started_, absl::ZeroDuration());
}

Agent::Commands Agent::OnLeftoverExited() {
  // Its children have just become children of this process, so that they can be killed now.
  if (state_ == State::kDraining && killed_) return {{Kind::kKillEverything}};
  return {};
}

Agent::Commands Agent::OnNothingLeft() {
  if (state_ != State::kDraining) return {};
  if (closed_.has_value() || stop_signal_ != 0) {
    Finish();
    return {};
  }
  if (failure_.has_value() || is_over_ || start_failed_) return Join();
  state_ = State::kFinishing;
  deadline_ = late_signal_ != 0 ? clock_.Now() : absl::InfiniteFuture();
  return {{Kind::kReportDone}};
}

Agent::Commands Agent::OnSignal(int signal) {
  if (state_ == State::kFinished) return {};
  if (Contains(options_.forwarded_signals, signal)) return {{Kind::kSignalWorkers, signal}};
  if (signal != SIGPIPE && !Contains(options_.stop_signals, signal)) return {};
  if (stop_signal_ != 0) return signal == SIGINT ? Kill() : Commands{};
  if (state_ == State::kDraining && !failure_.has_value() && !is_over_) {
    late_signal_ = signal;  // This node is done, but the others may not be.
    return {};
  }
  stop_signal_ = signal;
  if (state_ == State::kIdle || state_ == State::kJoining || state_ == State::kFinishing) Finish();
  // If workers are already being stopped for another reason, its deadline holds.
  if (state_ == State::kRunning) {
    return Stop(signal == SIGPIPE ? SIGTERM : signal, options_.shutdown_timeout);
  }
  if (state_ == State::kSettling) return StopOthers();
  return {};
}

Agent::Commands Agent::OnDeadline() {
  if (clock_.Now() < deadline_) return {};
  if (state_ == State::kFinishing) {
    stop_signal_ = late_signal_;
    Finish();
    return {};
  }
  if (state_ == State::kSettling) {
    // All failures so far are consequences. The cause, unless it is on another node, has yet to
    // end.
    if (Remoteness(failure_->cause) < kConsequence || std::exchange(waited_for_cause_, true)) {
      return StopOthers();
    }
    Settle();
    return {};
  }
  if (!killed_) return Kill();
  gave_up_ = true;
  Finish();
  return {};
}

int Agent::exit_code() const {
  if (start_failed_) return 1;
  if (closed_.has_value()) return *closed_;
  if (failure_.has_value()) return failure_->cause.ShellCode();
  if (stop_signal_ != 0) return 128 + stop_signal_;
  return gave_up_ ? 1 : 0;
}

void Agent::Settle() {
  state_ = State::kSettling;
  deadline_ = clock_.Now() + std::min(options_.settle_time, options_.shutdown_timeout);
}

Agent::Commands Agent::StopOthers() {
  Commands commands = Stop(SIGTERM, std::min(options_.failure_grace, options_.shutdown_timeout));
  if (failure_.has_value() && !std::exchange(reported_, true)) {
    commands.push_back({Kind::kReportFailure});
  }
  return commands;
}

Agent::Commands Agent::Stop(int signal, absl::Duration grace) {
  state_ = State::kStopping;
  stopped_ = clock_.Now();
  deadline_ = stopped_ + grace;
  return {{Kind::kSignalGroups, signal}};
}

Agent::Commands Agent::Drain() {
  const State before = std::exchange(state_, State::kDraining);
  if (killed_) return {{Kind::kKillEverything}};
  if (before == State::kRunning || before == State::kSettling) {
    deadline_ = clock_.Now() + std::min(options_.failure_grace, options_.shutdown_timeout);
  }
  return {{Kind::kTerminateLeftovers}};
}

Agent::Commands Agent::Kill() {
  killed_ = true;
  stopped_ = std::min(stopped_, clock_.Now());
  if (state_ == State::kRunning || state_ == State::kSettling) state_ = State::kStopping;
  deadline_ = clock_.Now() + options_.kill_grace;
  return {{Kind::kKillEverything}};
}

void Agent::Finish() {
  state_ = State::kFinished;
  deadline_ = absl::InfiniteFuture();
}

}  // namespace syncline::launch
