#include "tests/support/page_trap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

namespace syncline {
namespace {

std::atomic<PageTrap*> the_trap{nullptr};

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::abort();
}

size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

char* PageOf(void* address) {
  return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(address) & ~(PageSize() - 1));
}

}  // namespace

PageTrap::PageTrap(void* address) : page_(PageOf(address)) {
  sem_init(&held_, 0, 0);
  sem_init(&released_, 0, 0);
  PageTrap* none = nullptr;
  if (!the_trap.compare_exchange_strong(none, this)) Die("a second trap");
  struct sigaction action = {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    // Any other access fails again, and then ends the program as it would have without us.
    if (!HoldThread(info->si_addr)) std::signal(signal, SIG_DFL);
  };
  if (sigaction(SIGSEGV, &action, nullptr) != 0) Die("sigaction");
  if (mprotect(page_, PageSize(), PROT_NONE) != 0) Die("mprotect");
}

PageTrap::~PageTrap() {
  Release();
  the_trap.store(nullptr);
  std::signal(SIGSEGV, SIG_DFL);
  sem_destroy(&held_);
  sem_destroy(&released_);
}

void PageTrap::AwaitHeld() {
  timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 60;
  while (sem_timedwait(&held_, &end) != 0) {
    if (errno != EINTR) Die("nobody has come to the page");
  }
}

void PageTrap::Release() {
  if (is_released_) return;
  is_released_ = true;
  if (mprotect(page_, PageSize(), PROT_READ | PROT_WRITE) != 0) Die("mprotect");
  sem_post(&released_);
}

bool PageTrap::HoldThread(const void* address) {
  PageTrap* const trap = the_trap.load();
  const auto* const at = static_cast<const char*>(address);
  if (trap == nullptr || at < trap->page_ || at >= trap->page_ + PageSize()) return false;
  sem_post(&trap->held_);
  while (sem_wait(&trap->released_) != 0) {
  }
  sem_post(&trap->released_);  // For another thread that is held.
  return true;
}

}  // namespace syncline
