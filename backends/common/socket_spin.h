// How long a wait for sockets looks at them itself before it sleeps in poll(2).
#ifndef SYNCLINE_BACKENDS_COMMON_SOCKET_SPIN_H_
#define SYNCLINE_BACKENDS_COMMON_SOCKET_SPIN_H_

#include <sched.h>

#include <algorithm>
#include <chrono>

namespace syncline::backends {

// The kernel takes longer to wake a thread than a short message takes from a host to the next, so a
// wait first looks for kTime, and lets others have the core between two looks. That only helps
// where peers answer within it: not over slow networks, nor where a thread that has the core keeps
// it. So this counts how often it has helped, and where it seldom does, only each kProbe-th wait
// tries. kTime is longer than a peer takes that sleeps and is woken: otherwise two that both sleep
// would each find that to look does not help.
//
// Where ranks share a core, who has it while this one has given it away may be whom it waits for.
// So that time does not count: to sleep after it would cost each peer that sends a wake-up. But a
// turn of kTurn or more does, as who has a core for so long, such as another program, does not wait
// for others. No wait looks for longer than kMostTime.
//
// Each time that nothing has come, a wait calls Continue; each time that something has, Restart.
// Not thread-safe.
class SocketSpin {
 public:
  using Clock = std::chrono::steady_clock;  // A clock that is set must not stretch a wait.

  static constexpr Clock::duration kTime = std::chrono::microseconds(100);
  static constexpr Clock::duration kTurn = std::chrono::microseconds(500);
  static constexpr Clock::duration kMostTime = std::chrono::milliseconds(2);
  static constexpr int kProbe = 16;

  // Whether to look again now.
  bool Continue() {
    const Clock::time_point now = Clock::now();
    if (state_ == State::kIdle) {
      const bool tries = score_ >= kEnough || ++skipped_ >= kProbe;
      if (tries) skipped_ = 0;
      state_ = tries ? State::kLooking : State::kSleeping;
      end_ = now + kTime;
      last_end_ = now + kMostTime;
    }
    if (state_ == State::kLooking && now >= end_) {
      state_ = State::kSleeping;
      score_ = std::max(score_ - 1, 0);
    }
    if (state_ == State::kSleeping) return false;
    sched_yield();
    const Clock::duration given_away = Clock::now() - now;
    if (given_away > kMinTurn && given_away < kTurn) end_ = std::min(end_ + given_away, last_end_);
    return true;
  }

  void Restart() {
    if (state_ == State::kLooking) {
      const bool is_in_time = Clock::now() < end_;
      // A look that helps is followed by others.
      score_ =
          is_in_time ? std::min(std::max(score_, kEnough) + 2, kMaxScore) : std::max(score_ - 1, 0);
    }
    state_ = State::kIdle;
  }

 private:
  enum class State { kIdle, kLooking, kSleeping };
  static constexpr int kEnough = 8, kMaxScore = 32;
  // What takes less has gone to nobody.
  static constexpr Clock::duration kMinTurn = std::chrono::microseconds(5);

  int score_ = kMaxScore;
  int skipped_ = 0;  // Waits that did not look, in a row.
  State state_ = State::kIdle;
  Clock::time_point end_, last_end_;
};

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_SOCKET_SPIN_H_
