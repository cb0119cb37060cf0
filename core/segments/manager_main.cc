// syncline-segment-manager: starts the process that frees a job's named segments.
//
// Usage: syncline-segment-manager PID
//
// PID is the job's process: the manager ends soon after it and all clients have. Prints the
// manager's name and exits with 0 when the manager serves; prints what is wrong to stderr and exits
// with 1 if it cannot. The manager is no child of the caller. A guardian process beside it removes
// its segments if it is killed.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/host.h"
#include "core/base/process_state.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/segments/segment_manager.h"
#include "core/segments/segment_name.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::segments {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(20);

absl::Status Failed(const char* call) {
  return BackendError(absl::StrCat(call, ": ", std::strerror(errno)));
}

// The process of the job, which may have ended already.
Peer ProcessOf(const Peer& self, int pid) {
  Peer job = self;
  job.pid = pid;
  const absl::StatusOr<base::ProcessState> state = base::ReadProcess(pid);
  job.started = state.ok() ? state->started : -1;
  return job;
}

// Nothing of the caller is kept open, apart from `kept`.
void Detach(int kept) {
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (null >= 0 && fd != kept) dup2(null, fd);
  }
  if (null > STDERR_FILENO) close(null);
  if (chdir("/") != 0) return;
}

// The manager. Tells `ready` its name, or what is wrong.
absl::Status Manage(int job, base::UniqueFd& ready) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {  // One descriptor for each client.
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  const base::UniqueFd stop(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!stop.valid()) return Failed("signalfd");
  SYNCLINE_ASSIGN_OR_RETURN(const Peer self, base::IdentifyThisProcess());
  SweepStale(self);
  SYNCLINE_ASSIGN_OR_RETURN(const std::unique_ptr<SegmentManager> manager,
                            SegmentManager::Listen(self));
  if (access(kFolder, W_OK) != 0) return Failed(kFolder);
  const std::string name = absl::StrCat("=", manager->name());
  SYNCLINE_RETURN_IF_ERROR(
      base::SendAll(ready.get(), name.data(), name.size(), Deadline(kStartTimeout)));
  ready.reset();
  manager->Serve(ProcessOf(self, job), stop.get());
  return absl::OkStatus();
}

void Tell(int socket, const absl::Status& status) {
  static_cast<void>(base::SendAll(socket, status.message().data(), status.message().size(),
                                  Deadline(kStartTimeout)));
}

// Starts the manager, and removes its segments if it is killed.
void Guard(int job, base::UniqueFd ready) {
  setsid();
  signal(SIGINT, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  Detach(ready.get());
  const pid_t pid = fork();
  if (pid < 0) return Tell(ready.get(), Failed("fork"));
  if (pid == 0) {
    const absl::Status status = Manage(job, ready);
    if (!status.ok()) Tell(ready.get(), status);
    _exit(status.ok() ? 0 : 1);
  }
  absl::StatusOr<Peer> manager = base::IdentifyThisProcess();
  if (manager.ok()) *manager = ProcessOf(*manager, pid);
  ready.reset();
  signal(SIGTERM, SIG_IGN);  // It ends with the manager, which gets one too if a group does.
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (!manager.ok() || status == 0) return;
  SweepManager(ManagerName(*manager));
  // A client that has made a file since sees that the manager is gone, and removes it, unless it is
  // killed before that.
  static_cast<void>(base::Poll({}, Deadline(SegmentManager::kGrace)));
  SweepManager(ManagerName(*manager));
}

int Main(int argc, char** argv) {
  int job = 0;
  if (argc != 2 || !absl::SimpleAtoi(argv[1], &job) || job <= 0) {
    std::fputs("usage: syncline-segment-manager PID\n", stderr);
    return 2;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    std::perror("syncline-segment-manager: socketpair");
    return 1;
  }
  base::UniqueFd answer(ends[0]), ready(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    std::perror("syncline-segment-manager: fork");
    return 1;
  }
  if (pid == 0) {
    answer.reset();
    Guard(job, std::move(ready));
    _exit(0);
  }
  ready.reset();
  std::string text;
  const Deadline deadline(kStartTimeout);
  char byte;
  while (base::ReceiveAll(answer.get(), &byte, 1, deadline).ok()) text += byte;
  if (text.empty() || text[0] != '=') {
    std::fprintf(stderr, "syncline-segment-manager: cannot start: %s\n",
                 text.empty() ? "it ended, or did not answer in time" : text.c_str());
    return 1;
  }
  std::puts(text.c_str() + 1);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace syncline::segments

int main(int argc, char** argv) { return syncline::segments::Main(argc, argv); }
