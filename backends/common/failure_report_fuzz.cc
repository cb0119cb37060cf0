// What other ranks say in the store of their failures.
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "backends/common/failure_report.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/op_kind.h"
#include "syncline/status.h"

namespace syncline::fuzz {

constexpr int kSize = 4;

void RunOne(absl::string_view input) {
  const backends::RankReport report = backends::ParseReport(input, kSize);
  for (const int rank : report.lost) Require(rank >= 0 && rank < kSize, "ranks are the group's");
  for (const int rank : report.ranks) Require(rank >= 0 && rank < kSize, "ranks are the group's");
  for (const backends::CallDescription& call : report.under_way) {
    Require(!call.ShortName().empty() && !call.ToString().empty(), "a call has a name");
  }
  ErrorOfKind(report.kind, report.message).IgnoreError();
  absl::FormatDuration(report.timeout);
}

std::vector<std::string> Seeds() {
  backends::Failure failure;
  failure.operation = "all_reduce #5 (float32, 10 elements, sum)";
  failure.under_way = {backends::CallDescription(OpKind::kAllReduce, 5, DType::kFloat32, 10),
                       backends::CallDescription(OpKind::kSend, 2)};
  failure.lost = {1, 3};
  failure.cause = NetworkError("connection reset");
  failure.timeout = absl::Seconds(30);
  backends::Failure idle = failure;
  idle.under_way.clear();
  idle.idle = "it is in no operation of this group";
  return {backends::SerializeReport(failure), backends::SerializeReport(idle)};
}

}  // namespace syncline::fuzz
