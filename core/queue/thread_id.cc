#include "core/queue/thread_id.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "absl/status/statusor.h"
#include "core/base/process_state.h"
#include "syncline/fork.h"

namespace syncline::queue {
namespace {

uint32_t LowHalf(int64_t started) { return static_cast<uint32_t>(started); }

ThreadId Identify() {
  const auto id = static_cast<pid_t>(syscall(SYS_gettid));
  // 0 where /proc cannot be read: then the id alone tells threads apart.
  const absl::StatusOr<base::ProcessState> state = base::ReadThread(id);
  const uint32_t started = state.ok() ? LowHalf(state->started) : 0;
  return ThreadId{started} << 32 | static_cast<uint32_t>(id);
}

struct Known {
  ForkGuard guard;  // A child's thread has its parent's memory, and another id.
  ThreadId id;
};

}  // namespace

ThreadId CurrentThread() {
  thread_local std::optional<Known> known;
  if (!known.has_value() || known->guard.InChild()) known = Known{ForkGuard(), Identify()};
  return known->id;
}

ThreadState StateOfThread(ThreadId thread) {
  const auto id = static_cast<pid_t>(thread & UINT32_MAX);
  const auto started = static_cast<uint32_t>(thread >> 32);
  if (syscall(SYS_tkill, id, 0) != 0 && errno == ESRCH) return ThreadState::kDead;
  // /proc shows threads by their ids too. It may hide those of other users: that proves nothing.
  const absl::StatusOr<base::ProcessState> state = base::ReadThread(id);
  if (!state.ok()) return ThreadState::kRuns;
  // A thread that is ending is in the kernel, and does not come back.
  if (state->is_ending || (started != 0 && LowHalf(state->started) != started)) {
    return ThreadState::kDead;
  }
  return state->is_stopped ? ThreadState::kStopped : ThreadState::kRuns;
}

}  // namespace syncline::queue
