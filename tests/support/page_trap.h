// Holds a thread in the middle of what it does with memory, as SIGSTOP holds a process.
#ifndef SYNCLINE_TESTS_SUPPORT_PAGE_TRAP_H_
#define SYNCLINE_TESTS_SUPPORT_PAGE_TRAP_H_

#include <semaphore.h>

namespace syncline {

// Takes away the page in which `address` lies. A thread that reads or writes there is held until
// the release, and then goes on as if nothing had happened. One at a time; the process must use
// SIGSEGV for nothing else.
class PageTrap {
 public:
  explicit PageTrap(void* address);
  ~PageTrap();  // Releases.

  PageTrap(const PageTrap&) = delete;
  PageTrap& operator=(const PageTrap&) = delete;

  // Returns once a thread is held. Ends the test program if none is for a minute.
  void AwaitHeld();

  void Release();

 private:
  static bool HoldThread(
      const void* address);  // In a signal's handler. Whether there is such a trap.

  char* const page_;
  bool is_released_ = false;
  sem_t held_, released_;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_PAGE_TRAP_H_
