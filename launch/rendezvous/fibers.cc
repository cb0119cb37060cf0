#include "launch/rendezvous/fibers.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace syncline::launch {
namespace {

constexpr size_t kStackBytes = 256 << 10;

}  // namespace

struct Fibers::Fiber {
  std::function<void()> body;
  const bool* stopped = nullptr;
  absl::Time wake;
  const Condition* condition = nullptr;
  bool has_ended = false;
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  void* fake_stack = nullptr;
};

Fibers::Fibers() = default;

Fibers::~Fibers() {
  if (!fibers_.empty()) std::abort();  // What is on their stacks would be lost.
}

void Fibers::Spawn(std::function<void()> body, const bool* stopped) {
  std::unique_ptr<Fiber> fiber;
  if (ended_.empty()) {
    fiber = std::make_unique<Fiber>();
    fiber->stack = std::make_unique<char[]>(kStackBytes);
  } else {
    fiber = std::move(ended_.back());
    ended_.pop_back();
  }
  fiber->body = std::move(body);
  fiber->stopped = stopped;
  fiber->wake = now_;
  fiber->condition = nullptr;
  fiber->has_ended = false;
  fiber->fake_stack = nullptr;
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.get();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  const auto address = reinterpret_cast<uintptr_t>(this);
  makecontext(&fiber->context, reinterpret_cast<void (*)()>(&Fibers::Enter), 2,
              static_cast<unsigned>(address), static_cast<unsigned>(address >> 32));
  fibers_.push_back(std::move(fiber));
}

void Fibers::Enter(unsigned low, unsigned high) {
  auto* fibers =
      reinterpret_cast<Fibers*>(static_cast<uintptr_t>(low) | (static_cast<uintptr_t>(high) << 32));
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &fibers->main_stack_, &fibers->main_stack_size_);
#endif
  fibers->current_->body();
  fibers->current_->body = nullptr;
  fibers->current_->has_ended = true;
  fibers->SwitchBack();
}

void Fibers::SwitchTo(Fiber* fiber) {
  current_ = fiber;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&main_fake_stack_, fiber->stack.get(), kStackBytes);
#endif
  swapcontext(&main_, &fiber->context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(main_fake_stack_, nullptr, nullptr);
#endif
  current_ = nullptr;
}

void Fibers::SwitchBack() {
  Fiber* const fiber = current_;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fiber->has_ended ? nullptr : &fiber->fake_stack, main_stack_,
                                 main_stack_size_);
#endif
  swapcontext(&fiber->context, &main_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fiber->fake_stack, &main_stack_, &main_stack_size_);
#endif
}

bool Fibers::Await(const Condition& condition, absl::Time until) {
  if (condition()) return true;
  current_->wake = until;
  current_->condition = &condition;
  SwitchBack();
  current_->condition = nullptr;
  return condition();
}

void Fibers::Sleep(absl::Duration duration) {
  current_->wake = now_ + duration;
  SwitchBack();
}

Fibers::Fiber* Fibers::Next(absl::Time limit) {
  if (std::exchange(changed_, false)) {
    for (const auto& fiber : fibers_) {
      if (fiber->condition != nullptr && fiber->wake > now_ && (*fiber->condition)()) {
        fiber->wake = now_;
      }
    }
  }
  Fiber* next = nullptr;
  for (const auto& fiber : fibers_) {
    if (fiber->stopped != nullptr && *fiber->stopped) continue;
    if (fiber->wake <= limit && (next == nullptr || fiber->wake < next->wake)) next = fiber.get();
  }
  return next;
}

void Fibers::RunUntil(absl::Time time) {
  while (Fiber* const fiber = Next(time)) {
    now_ = std::max(now_, fiber->wake);
    SwitchTo(fiber);
    if (!fiber->has_ended) continue;
    for (auto& each : fibers_) {
      if (each.get() != fiber) continue;
      std::swap(each, fibers_.back());
      ended_.push_back(std::move(fibers_.back()));
      fibers_.pop_back();
      break;
    }
  }
  if (time != absl::InfiniteFuture()) now_ = std::max(now_, time);
}

}  // namespace syncline::launch
