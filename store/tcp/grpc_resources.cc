#include "store/tcp/grpc_resources.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/base/thread.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

// More than a client and a server of gRPC 1.51 were seen to have, ten of each.
constexpr int kThreads = 14;
constexpr int kDescriptors = 14;

// To start the threads takes milliseconds, which who may have this many need not spend.
constexpr uint64_t kPlenty = 4096;

// Whether the limits are such that threads might be short: those of the user (ulimit -u), and those
// that containers have, by versions 2 and 1 of control groups.
bool MayLackThreads() {
  rlimit limit;
  if (getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur < kPlenty) return true;
  for (const char* path : {"/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"}) {
    uint64_t most = kPlenty;
    if (std::ifstream(path) >> most && most < kPlenty) return true;
  }
  return false;
}

absl::Status CheckThreads() {
  if (!MayLackThreads()) return absl::OkStatus();
  absl::Status status;
  absl::Notification enough;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads && status.ok(); ++i) {
    auto thread = base::StartThread(
        "gRPC", [&enough] { enough.WaitForNotificationWithTimeout(absl::Minutes(1)); });
    status = thread.status();
    if (thread.ok()) threads.push_back(*std::move(thread));
  }
  enough.Notify();
  for (std::thread& thread : threads) thread.join();
  return status;
}

absl::Status CheckDescriptors() {
  std::vector<base::UniqueFd> descriptors;
  for (int i = 0; i < kDescriptors; ++i) {
    descriptors.emplace_back(open("/", O_PATH | O_CLOEXEC));
    if (descriptors.back().valid()) continue;
    return BackendError(absl::StrCat(
        "gRPC needs more file descriptors than this process may have: ", std::strerror(errno),
        "; raise the limit (ulimit -n)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGrpcResources() {
  static std::atomic<bool> has_had_them{false};
  if (has_had_them.load(std::memory_order_relaxed)) return absl::OkStatus();
  SYNCLINE_RETURN_IF_ERROR(CheckDescriptors());
  SYNCLINE_RETURN_IF_ERROR(CheckThreads());
  has_had_them.store(true, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace syncline::tcp_store
