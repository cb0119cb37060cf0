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

absl::StatusOr<SignalQueue> SignalQueue::Open(const std::vector<int>& stop_signals,
                                              const std::vector<int>& forwarded_signals) {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file beyond the size limit (ulimit -f) then acts as a full disk.
  signal(SIGCHLD, SIG_DFL);  // If it is ignored, children leave no exit code.
  sigset_t handled;
  sigemptyset(&handled);
  sigaddset(&handled, SIGCHLD);
  struct sigaction hangup;
  sigaction(SIGHUP, nullptr, &hangup);
  const bool has_nohup = hangup.sa_handler == SIG_IGN;
  std::vector<int> numbers = forwarded_signals;
  // Without default action also where they are not passed on: clusters may send them to each
  // process of a job, for the workers alone.
  numbers.insert(numbers.end(), {SIGUSR1, SIGUSR2});
  for (const int number : stop_signals) {
    if (number != SIGHUP || !has_nohup) numbers.push_back(number);
  }
  for (const int number : numbers) {
    // A blocked signal reaches the descriptor though it is ignored, and workers that do not handle
    // SIGHUP ignore it too.
    if (number != SIGHUP || !has_nohup) signal(number, SIG_DFL);
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
