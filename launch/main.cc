// syncline-run: starts this host's workers of a job and watches over them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/deadline.h"
#include "core/env.h"
#include "core/status.h"
#include "launch/launcher.h"
#include "launch/monitor/run_status.h"
#include "launch/node.h"
#include "launch/options/options.h"
#include "launch/rendezvous/meeting_place.h"
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

// `syncline-run status ENDPOINT`.
int AskForStatus(const LaunchOptions& options) {
  StatusOptions question;
  question.format = options.status_format == LaunchOptions::StatusFormat::kJson
                        ? StatusFormat::kJson
                        : StatusFormat::kTable;
  absl::StatusOr<std::string> secret = GivenSecret(options);
  if (!secret.ok()) return Refuse(secret.status());
  MeetingPlaceOptions meeting;
  meeting.rendezvous = options.rendezvous;
  meeting.rendezvous.hosting = RendezvousOptions::Hosting::kNever;
  meeting.secret = secret->empty() ? SecretOfId(options.rendezvous.id) : *secret;
  meeting.call_timeout = question.timeout;
  setenv("GRPC_DNS_RESOLVER", "native", 0);  // As in Launcher.
  absl::StatusOr<MeetingPlace> place =
      OpenMeetingPlace(meeting, Deadline(question.timeout), [] { return false; });
  if (!place.ok()) {
    Refuse(place.status());
    return kStatusNobody;
  }
  const StatusAnswer answer = RunStatus(*place->store, question);
  std::fputs(answer.out.c_str(), stdout);
  std::fputs(answer.err.c_str(), stderr);
  return answer.exit_code;
}

int Main(const std::vector<std::string>& arguments) {
  OpenStandardStreams();
  absl::StatusOr<LaunchOptions> options = ParseOptions(arguments, GetEnv, DetectHostResources());
  if (!options.ok()) return Refuse(options.status());
  if (!options->information.empty()) {
    std::fputs(options->information.c_str(), stdout);
    return 0;
  }
  for (const std::string& note : options->notes) {
    std::fprintf(stderr, "syncline-run: %s\n", note.c_str());
  }
  if (!options->status_endpoint.empty()) return AskForStatus(*options);
  absl::StatusOr<SignalQueue> signals = SignalQueue::Open(options->signals);
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
