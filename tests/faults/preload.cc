// Brings core/testing/faults.h into a program by LD_PRELOAD. SYNCLINE_FAULT=CALL:NUMBER says which
// call of the program is to fail, SYNCLINE_FAULT_REPORT=FILE where to report it. The processes that
// it starts are spared.
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/testing/faults.h"

namespace syncline {
namespace {

[[gnu::constructor]] void Begin() {
  const char* const fault = std::getenv("SYNCLINE_FAULT");
  const char* const report = std::getenv("SYNCLINE_FAULT_REPORT");
  if (fault == nullptr || report == nullptr) return;
  const std::pair<std::string, std::string> parts = absl::StrSplit(fault, absl::MaxSplits(':', 1));
  int64_t number = 0;
  if (!absl::SimpleAtoi(parts.second, &number)) std::abort();
  ReportFaults(report);
  for (const char* name : {"LD_PRELOAD", "SYNCLINE_FAULT", "SYNCLINE_FAULT_REPORT"}) unsetenv(name);
  FailCalls(parts.first, number);
}

}  // namespace
}  // namespace syncline
