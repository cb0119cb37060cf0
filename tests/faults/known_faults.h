// What libraries do where something cannot be had, and we cannot mend: all else is a fault of ours.
#ifndef SYNCLINE_TESTS_FAULTS_KNOWN_FAULTS_H_
#define SYNCLINE_TESTS_FAULTS_KNOWN_FAULTS_H_

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace syncline {

struct KnownFault {
  absl::string_view call;      // That fails.
  absl::string_view function;  // That makes it.
  absl::string_view reason;
};

inline constexpr KnownFault kKnownFaults[] = {
    {"pthread_create", "grpc_core::Thread::Thread",
     "gRPC 1.51 counts on each of its threads: it may wait for one for ever when it shuts down, "
     "and keeps the others then"},
};

// Whether the call whose stack ReportFaults has written to `report` is one of these. The process
// may then abort, hang or keep something; its peers must get over that.
inline bool IsKnown(absl::string_view call, absl::string_view report) {
  for (const KnownFault& known : kKnownFaults) {
    if (known.call == call && absl::StrContains(report, known.function)) return true;
  }
  return false;
}

}  // namespace syncline

#endif  // SYNCLINE_TESTS_FAULTS_KNOWN_FAULTS_H_
