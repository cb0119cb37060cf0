#include "core/testing/faults.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

#include "absl/debugging/symbolize.h"

namespace syncline {
namespace {

// In the order of FaultyCalls().
enum Call {
  kPthreadCreate,
  kClone,
  kSocket,
  kAccept,
  kMemfdCreate,
  kPosixFallocate,
  kWrite,
  kPidfdOpen
};

constexpr int kNone = -1;
constexpr int kMaxFrames = 64;

// Atomics without constructors: the C library may be called before any constructor has run.
std::atomic<int> failing{kNone};
std::atomic<int64_t> first_number{0}, after_last{0}, seen{0}, failed{0};
char report[PATH_MAX];  // Where to; empty: nowhere.

// By system calls alone, as it may be called anywhere.
void Report(const char* what, int skipped_frames) {
  if (report[0] == 0) return;
  void* frames[kMaxFrames];
  // Which needs no frame pointers: libraries have none.
  const int count = backtrace(frames, kMaxFrames);
  const long fd =
      syscall(SYS_openat, AT_FDCWD, report, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const auto put = [fd](const char* text) { syscall(SYS_write, fd, text, std::strlen(text)); };
  put(what);
  put(":");
  for (int i = skipped_frames + 1; i < count; ++i) {
    char name[1024];
    // A frame holds the address after the call.
    const bool known = absl::Symbolize(static_cast<char*>(frames[i]) - 1, name, sizeof(name));
    put(" < ");
    put(known ? name : "?");
  }
  put("\n");
  syscall(SYS_close, fd);
}

void ReportSignal(int signal) {
  Report(signal == SIGABRT ? "abort" : "signal", 1);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

// Whether this call is to fail.
bool IsToFail(Call call) {
  if (failing.load(std::memory_order_acquire) != call) return false;
  const int64_t number = seen.fetch_add(1) + 1;
  if (number < first_number || number >= after_last) return false;
  if (failed.fetch_add(1) == 0) Report("fault", 2);
  return true;
}

// The C library's own.
template <typename Function>
Function* Real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// 0: a write to this cannot fail for want of anything.
int WriteError(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return 0;
  if (S_ISREG(status.st_mode)) return ENOSPC;
  if (S_ISCHR(status.st_mode)) return EIO;
  if (S_ISSOCK(status.st_mode)) return ENOBUFS;
  return 0;
}

int FailWith(int error) {
  errno = error;
  return -1;
}

// Whether a write to this is to fail; errno is set.
bool FailsWrite(int descriptor) {
  if (failing.load(std::memory_order_acquire) != kWrite) return false;
  const int before = errno;
  const int error = WriteError(descriptor);
  const bool fails = error != 0 && IsToFail(kWrite);
  errno = fails ? error : before;
  return fails;
}

}  // namespace

const std::vector<std::string>& FaultyCalls() {
  static const auto* const calls =
      new std::vector<std::string>{"pthread_create", "clone",           "socket", "accept",
                                   "memfd_create",   "posix_fallocate", "write",  "pidfd_open"};
  return *calls;
}

void FailCalls(const std::string& call, int64_t first, int64_t count) {
  const auto& calls = FaultyCalls();
  const auto found = std::find(calls.begin(), calls.end(), call);
  if (found == calls.end()) std::abort();
  StopFailing();
  first_number = first;
  after_last = first + count;
  seen = failed = 0;
  failing.store(static_cast<int>(found - calls.begin()), std::memory_order_release);
}

int64_t StopFailing() {
  failing = kNone;
  return failed;
}

void ReportFaults(const std::string& path) {
  absl::InitializeSymbolizer("/proc/self/exe");
  void* frame = nullptr;
  backtrace(&frame, 1);  // Which loads a library the first time.
  path.copy(report, sizeof(report) - 1);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, &ReportSignal);
}

}  // namespace syncline

using syncline::FailWith;
using syncline::IsToFail;

extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  static auto* const real = syncline::Real(&pthread_create, "pthread_create");
  if (IsToFail(syncline::kPthreadCreate)) return EAGAIN;
  return real(thread, attributes, start, argument);
}

int socket(int domain, int type, int protocol) noexcept {
  static auto* const real = syncline::Real(&socket, "socket");
  if (IsToFail(syncline::kSocket)) return FailWith(EMFILE);
  return real(domain, type, protocol);
}

int accept(int listener, sockaddr* address, socklen_t* length) {
  static auto* const real = syncline::Real(&accept, "accept");
  if (IsToFail(syncline::kAccept)) return FailWith(EMFILE);
  return real(listener, address, length);
}

int accept4(int listener, sockaddr* address, socklen_t* length, int flags) {
  static auto* const real = syncline::Real(&accept4, "accept4");
  if (IsToFail(syncline::kAccept)) return FailWith(EMFILE);
  return real(listener, address, length, flags);
}

pid_t fork() noexcept {
  static auto* const real = syncline::Real(&fork, "fork");
  if (IsToFail(syncline::kClone)) return FailWith(EAGAIN);
  return real();
}

int clone(int (*start)(void*), void* stack, int flags, void* argument, ...) noexcept {
  static auto* const real = syncline::Real(&clone, "clone");
  va_list list;
  va_start(list, argument);
  void* more[3];
  for (void*& one : more) one = va_arg(list, void*);
  va_end(list);
  if (IsToFail(syncline::kClone)) return FailWith(EAGAIN);
  return real(start, stack, flags, argument, more[0], more[1], more[2]);
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static auto* const real = syncline::Real(&memfd_create, "memfd_create");
  if (IsToFail(syncline::kMemfdCreate)) return FailWith(EMFILE);
  return real(name, flags);
}

int posix_fallocate(int descriptor, off_t offset, off_t size) {
  static auto* const real = syncline::Real(&posix_fallocate, "posix_fallocate");
  if (IsToFail(syncline::kPosixFallocate)) return ENOSPC;
  return real(descriptor, offset, size);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  static auto* const real = syncline::Real(&write, "write");
  if (syncline::FailsWrite(descriptor)) return -1;
  return real(descriptor, data, size);
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static auto* const real = syncline::Real(&pwrite, "pwrite");
  if (syncline::FailsWrite(descriptor)) return -1;
  return real(descriptor, data, size, offset);
}

long syscall(long number, ...) noexcept {  // NOLINT: as the C library has it.
  static auto* const real = syncline::Real(&syscall, "syscall");
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_pidfd_open && IsToFail(syncline::kPidfdOpen)) return FailWith(EMFILE);
  return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
              arguments[5]);
}

}  // extern "C"
