#include "launch/agent.h"

#include <signal.h>

#include <algorithm>
#include <utility>

namespace syncline {
namespace {

using Kind = AgentCommand::Kind;

}  // namespace

Agent::Agent(const AgentOptions& options, const Clock& clock) : options_(options), clock_(clock) {}

Agent::Commands Agent::Start() { return StartAttempt(); }

Agent::Commands Agent::StartAttempt() {
  state_ = State::kRunning;
  living_ = options_.workers;
  killed_ = false;
  failure_.reset();
  started_ = clock_.Now();
  deadline_ = absl::InfiniteFuture();
  return {{Kind::kStartWorkers}};
}

Agent::Commands Agent::OnStartFailed() {
  start_failed_ = true;
  state_ = State::kDraining;
  return Kill();
}

Agent::Commands Agent::OnWorkersExited(absl::Span<const WorkerExit> exits) {
  if (state_ == State::kFinished || exits.empty()) return {};
  living_ -= static_cast<int>(exits.size());
  Commands commands;
  const WorkerExit* cause = nullptr;
  if (state_ == State::kRunning) {
    for (const WorkerExit& exit : exits) {
      if (exit.ok()) continue;
      if (cause == nullptr || (cause->signal == 0 && exit.signal != 0)) cause = &exit;
    }
    if (cause != nullptr) {
      failure_ = Failure{*cause, clock_.Now() - started_, {}};
      commands = Stop(SIGTERM, std::min(options_.failure_grace, options_.shutdown_timeout));
    }
  }
  if (failure_.has_value()) {
    for (const WorkerExit& exit : exits) {
      if (&exit != cause) failure_->stopped.push_back(exit);
    }
  }
  if (living_ == 0 && state_ != State::kDraining) return Drain();
  return commands;
}

Agent::Commands Agent::OnLeftoverExited() {
  // Its own children have just become visible as leftovers.
  if (state_ == State::kDraining && killed_) return {{Kind::kKillEverything}};
  return {};
}

Agent::Commands Agent::OnNothingLeft() {
  if (state_ != State::kDraining) return {};
  const bool restart = failure_.has_value() && stop_signal_ == 0 && !start_failed_ &&
                       attempt_ < options_.max_restarts;
  if (!restart) {
    Finish();
    return {};
  }
  ++attempt_;
  return StartAttempt();
}

Agent::Commands Agent::OnSignal(int signal) {
  if (state_ == State::kFinished) return {};
  if (signal == SIGUSR1 || signal == SIGUSR2) return {{Kind::kSignalWorkers, signal}};
  if (stop_signal_ != 0) return signal == SIGINT ? Kill() : Commands{};
  if (state_ == State::kDraining && !failure_.has_value()) return {};  // The job is done already.
  stop_signal_ = signal;
  // While workers are being stopped for another reason the deadline of that one holds.
  if (state_ == State::kRunning) return Stop(signal, options_.shutdown_timeout);
  return {};
}

Agent::Commands Agent::OnDeadline() {
  if (clock_.Now() < deadline_) return {};
  if (!killed_) return Kill();
  gave_up_ = true;
  Finish();
  return {};
}

int Agent::exit_code() const {
  if (start_failed_) return 1;
  if (failure_.has_value()) return failure_->cause.ShellCode();
  return stop_signal_ != 0 ? 128 + stop_signal_ : 0;
}

Agent::Commands Agent::Stop(int signal, absl::Duration grace) {
  state_ = State::kStopping;
  deadline_ = clock_.Now() + grace;
  return {{Kind::kSignalGroups, signal}};
}

Agent::Commands Agent::Drain() {
  const State before = std::exchange(state_, State::kDraining);
  if (killed_) return {{Kind::kKillEverything}};
  if (before == State::kRunning) {
    deadline_ = clock_.Now() + std::min(options_.failure_grace, options_.shutdown_timeout);
  }
  return {{Kind::kTerminateLeftovers}};
}

Agent::Commands Agent::Kill() {
  killed_ = true;
  deadline_ = clock_.Now() + options_.kill_grace;
  return {{Kind::kKillEverything}};
}

void Agent::Finish() {
  state_ = State::kFinished;
  deadline_ = absl::InfiniteFuture();
}

}  // namespace syncline
