// What newer versions of glibc have and our binaries call, for machines that have an older one.
//
// A binary that is linked with glibc 2.31 (see bazel/portable.bzl) gets the newest version of each
// function that 2.31 has, and does not start where that version is missing. These definitions,
// hidden within the binary, come before those of glibc: they call the function's oldest version,
// which every glibc has, or find it at run time, or do without. nm says which are needed; the test
// over the wheel says whether one is missing.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include <limits>

// clang refuses a visibility that is not that of the headers. It only checks this file.
#if defined(__clang__)
#define SYNCLINE_HIDDEN
#else
#define SYNCLINE_HIDDEN __attribute__((visibility("hidden")))
#endif

extern "C" {

// 2.29 has versions of these that do not report errors as System V did. The old ones compute the
// same. The compiler knows the names, which is why ours have others in C++.
#define SYNCLINE_NAMED(symbol) __asm__(#symbol)
#define SYNCLINE_OLD(symbol) __asm__("syncline_old_" #symbol)
__asm__(".symver syncline_old_exp,exp@GLIBC_2.2.5");
__asm__(".symver syncline_old_exp2,exp2@GLIBC_2.2.5");
__asm__(".symver syncline_old_log,log@GLIBC_2.2.5");
__asm__(".symver syncline_old_log2,log2@GLIBC_2.2.5");
__asm__(".symver syncline_old_pow,pow@GLIBC_2.2.5");

double OldExp(double) SYNCLINE_OLD(exp);
double OldExp2(double) SYNCLINE_OLD(exp2);
double OldLog(double) SYNCLINE_OLD(log);
double OldLog2(double) SYNCLINE_OLD(log2);
double OldPow(double, double) SYNCLINE_OLD(pow);

SYNCLINE_HIDDEN double Exp(double x) SYNCLINE_NAMED(exp);
SYNCLINE_HIDDEN double Exp2(double x) SYNCLINE_NAMED(exp2);
SYNCLINE_HIDDEN double Log(double x) SYNCLINE_NAMED(log);
SYNCLINE_HIDDEN double Log2(double x) SYNCLINE_NAMED(log2);
SYNCLINE_HIDDEN double Pow(double x, double y) SYNCLINE_NAMED(pow);

double Exp(double x) { return OldExp(x); }
double Exp2(double x) { return OldExp2(x); }
double Log(double x) { return OldLog(x); }
double Log2(double x) { return OldLog2(x); }
double Pow(double x, double y) { return OldPow(x, y); }

// 2.32. libstdc++ counts references without atomic instructions while it is true, so that false is
// always right.
SYNCLINE_HIDDEN char __libc_single_threaded = 0;

}  // extern "C"

namespace {

// The machine's function of this name, or null.
template <typename Function>
Function* OfMachine(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// What a time on `clock` is on the real-time clock, as long as nobody sets that.
timespec OnRealTimeClock(clockid_t clock, const timespec& time) {
  constexpr int64_t kSecond = 1000000000;
  timespec now, real_now;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real_now);
  // In seconds, as nanoseconds of a time without end would not fit.
  int64_t nanoseconds = int64_t{real_now.tv_nsec} - now.tv_nsec + time.tv_nsec;
  int64_t seconds = real_now.tv_sec - now.tv_sec + nanoseconds / kSecond;
  nanoseconds %= kSecond;
  if (nanoseconds < 0) {
    nanoseconds += kSecond;
    --seconds;
  }
  timespec result;
  if (__builtin_add_overflow(seconds, int64_t{time.tv_sec}, &seconds)) {
    seconds = std::numeric_limits<int64_t>::max();
  }
  result.tv_sec = seconds;
  result.tv_nsec = nanoseconds;
  return result;
}

// Of the signals that have had the same numbers on x86-64 forever.
constexpr const char* kSignals[] = {
    nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
    "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
    "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS",
};

}  // namespace

extern "C" {

// 2.30. Without it a wait is as long as the clock of the machine says, which may be set meanwhile:
// callers look at their own clock afterwards.
SYNCLINE_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                           clockid_t clock, const timespec* end) noexcept(false) {
  using Wait = int(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static Wait* const of_machine = OfMachine<Wait>("pthread_cond_clockwait");
  if (of_machine != nullptr) return of_machine(condition, mutex, clock, end);
  const timespec real_end = OnRealTimeClock(clock, *end);
  return pthread_cond_timedwait(condition, mutex, &real_end);
}

SYNCLINE_HIDDEN int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock,
                                            const timespec* end) noexcept {
  using Lock = int(pthread_mutex_t*, clockid_t, const timespec*);
  static Lock* const of_machine = OfMachine<Lock>("pthread_mutex_clocklock");
  if (of_machine != nullptr) return of_machine(mutex, clock, end);
  const timespec real_end = OnRealTimeClock(clock, *end);
  return pthread_mutex_timedlock(mutex, &real_end);
}

// 2.32.
SYNCLINE_HIDDEN const char* sigabbrev_np(int signal) noexcept {
  const bool is_known = signal > 0 && signal < static_cast<int>(sizeof kSignals / sizeof *kSignals);
  return is_known ? kSignals[signal] : nullptr;
}

// 2.36, which std::random_device calls.
SYNCLINE_HIDDEN uint32_t arc4random() noexcept {
  uint32_t result;
  while (getrandom(&result, sizeof result, 0) != sizeof result) {
    if (errno != EINTR) __builtin_trap();
  }
  return result;
}

}  // extern "C"
