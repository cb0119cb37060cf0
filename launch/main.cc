// syncline-run: starts the workers of a job on this host and watches over them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/env.h"
#include "core/status.h"
#include "launch/launcher.h"
#include "launch/options/options.h"
#include "launch/signals.h"

namespace syncline {
namespace {

constexpr int kFailure = 1;
constexpr int kUsageError = 2;

int Refuse(const absl::Status& status) {
  std::fprintf(stderr, "syncline-run: %s\n", std::string(status.message()).c_str());
  const ErrorKind kind = KindOf(status);
  return kind == ErrorKind::kArgument || kind == ErrorKind::kUnsupported ? kUsageError : kFailure;
}

// So that no pipe takes the place of a standard stream that is closed.
void OpenStandardStreams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

int Main(const std::vector<std::string>& arguments) {
  OpenStandardStreams();
  absl::StatusOr<LaunchOptions> options = ParseOptions(arguments, GetEnv, DetectHostResources());
  if (!options.ok()) return Refuse(options.status());
  if (!options->information.empty()) {
    std::fputs(options->information.c_str(), stdout);
    return 0;
  }
  absl::StatusOr<SignalQueue> signals = SignalQueue::Open();
  if (!signals.ok()) return Refuse(signals.status());
  absl::StatusOr<std::unique_ptr<Launcher>> launcher =
      Launcher::Create(*options, *std::move(signals));
  if (!launcher.ok()) return Refuse(launcher.status());
  return (*launcher)->Run();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  return syncline::Main(std::vector<std::string>(argv + 1, argv + argc));
}
