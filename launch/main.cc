// syncline-run: starts and monitors this host's workers of a job.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "launch/clock.h"
#include "launch/descriptor_limit.h"
#include "launch/environment.h"
#include "launch/launcher.h"
#include "launch/monitor/run_status.h"
#include "launch/node.h"
#include "launch/options/options.h"
#include "launch/output/fd_sink.h"
#include "launch/rendezvous/store_network.h"
#include "launch/signals.h"
#include "launch/tls.h"
#include "store/tcp/tcp_connect.h"
#include "syncline/status.h"
#include "syncline/store.h"

namespace syncline::launch {
namespace {

constexpr absl::Duration kCleanupTimeout = absl::Seconds(5);

constexpr int kFailure = 1;
constexpr int kUsageError = 2;
constexpr absl::Duration kReaderTimeout = absl::Seconds(2);

int ExitWithError(const absl::Status& status) {
  const std::string text = absl::StrCat("syncline-run: ", status.message(), "\n");
  // A terminal that takes nothing must not hold this process, whose signals may be blocked by now.
  if (const auto sink = FdSink::Open(STDERR_FILENO); sink.ok()) {
    (*sink)->Write(text);
    (*sink)->Flush(kReaderTimeout, MonotonicClock().Now() + kReaderTimeout);
  } else {
    std::fputs(text.c_str(), stderr);
  }
  const ErrorKind kind = KindOf(status);
  return kind == ErrorKind::kArgument || kind == ErrorKind::kUnsupported ? kUsageError : kFailure;
}

// Opens closed standard streams, so that no later descriptor gets their numbers.
void OpenStandardStreams() {
  int fd;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

// `syncline-run status ENDPOINT`.
int RunStatusCommand(const LaunchOptions& options) {
  StatusOptions question;
  question.format = options.status_format == LaunchOptions::StatusFormat::kJson
                        ? StatusFormat::kJson
                        : StatusFormat::kTable;
  absl::StatusOr<std::string> secret = GivenSecret(options);
  if (!secret.ok()) return ExitWithError(secret.status());
  Environment of_workers;  // There are none.
  const absl::Status tls = UseTls(options, "", !secret->empty(), &of_workers);
  if (!tls.ok()) return ExitWithError(tls);
  StoreNetworkOptions network;
  network.rendezvous = options.rendezvous;
  network.secret = secret->empty() ? SecretOfId(options.rendezvous.id) : *secret;
  network.call_timeout = question.timeout;
  setenv("GRPC_DNS_RESOLVER", "native", 0);  // As in Launcher.
  absl::StatusOr<std::shared_ptr<Store>> store = FindRunningJob(network, question.timeout);
  if (!store.ok()) {
    const int code = ExitWithError(store.status());
    // What refuses this process runs.
    return tcp_store::IsRefusal(store.status()) ? code : kStatusNobody;
  }
  const StatusAnswer answer = RunStatus(**store, question);
  std::fputs(answer.out.c_str(), stdout);
  std::fputs(answer.err.c_str(), stderr);
  return answer.exit_code;
}

int Main(const std::vector<std::string>& arguments) {
  OpenStandardStreams();
  absl::StatusOr<LaunchOptions> options =
      ParseOptions(arguments, base::GetEnv, DetectHostResources());
  if (!options.ok()) return ExitWithError(options.status());
  if (!options->information.empty()) {
    std::fputs(options->information.c_str(), stdout);
    return 0;
  }
  for (const std::string& note : options->notes) {
    std::fprintf(stderr, "syncline-run: %s\n", note.c_str());
  }
  if (!options->certificates_folder.empty()) {
    const absl::StatusOr<std::string> made = MakeCertificates(options->certificates_folder);
    if (!made.ok()) return ExitWithError(made.status());
    std::fputs(made->c_str(), stdout);
    return 0;
  }
  if (!options->status_endpoint.empty()) return RunStatusCommand(*options);
  RaiseDescriptorLimit();
  absl::StatusOr<SignalQueue> signals =
      SignalQueue::Open(options->stop_signals, options->forwarded_signals);
  if (!signals.ok()) return ExitWithError(signals.status());
  absl::StatusOr<std::unique_ptr<Launcher>> launcher =
      Launcher::Create(*options, *std::move(signals));
  if (!launcher.ok()) return ExitWithError(launcher.status());
  const int code = (*launcher)->Run();
  // The work is done. But gRPC's shutdown waits for ever for threads that could not be started, so
  // a timer ends the process.
  ExitWithin(kCleanupTimeout, code);
  return code;
}

}  // namespace
}  // namespace syncline::launch

int main(int argc, char** argv) {
  return syncline::launch::Main(std::vector<std::string>(argv + 1, argv + argc));
}
