#include "launch/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

volatile std::sig_atomic_t last_exit_code = 0;

}  // namespace

void ExitWithin(absl::Duration time, int exit_code) {
  last_exit_code = exit_code;
  signal(SIGALRM, [](int) { _exit(last_exit_code); });
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  alarm(static_cast<unsigned>(absl::ToInt64Seconds(absl::Ceil(time, absl::Seconds(1)))));
}

absl::StatusOr<SignalQueue> SignalQueue::Open(const std::vector<int>& more) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file beyond the size limit (ulimit -f) then acts as a full disk.
  signal(SIGCHLD, SIG_DFL);  // If it is ignored, children leave no exit code.
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaddset(&handled, SIGHUP);
  std::vector<int> numbers = {SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2};
  numbers.insert(numbers.end(), more.begin(), more.end());
  for (const int number : numbers) {
    if (number == SIGHUP) continue;
    signal(number, SIG_DFL);
    sigaddset(&handled, number);
  }
  sigprocmask(SIG_BLOCK, &handled, nullptr);
  base::UniqueFd fd(signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) {
    return BackendError(absl::StrCat("no descriptor for signals: ", std::strerror(errno)));
  }
  return SignalQueue(std::move(fd));
}

std::vector<int> SignalQueue::Take() {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (read(fd_.get(), &info, sizeof(info)) == sizeof(info)) {
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
  return signals;
}

}  // namespace syncline::launch
