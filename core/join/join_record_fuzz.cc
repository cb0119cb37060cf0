// What other processes have left in the store while they join, and errors that they tell there.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/join/host_list.h"
#include "core/join/join_record.h"
#include "core/store/error_text.h"
#include "core/testing/fuzz/fuzz.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::fuzz {
namespace {

using join::JoinRecord;

void ReadRecords(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const auto records = join::ParseRecords(lines);
  if (!records.ok()) return;
  for (const JoinRecord& record : *records) {
    const auto again = JoinRecord::Parse(record.Serialize());
    Require(again.ok() && again->Serialize() == record.Serialize(), "a record stays the same");
  }
  join::Describe(*records);
  const auto ranks = join::AssignRanks(*records);
  if (!ranks.ok()) return;
  std::vector<int> sorted = *ranks;
  std::sort(sorted.begin(), sorted.end());
  for (size_t rank = 0; rank < sorted.size(); ++rank) {
    Require(sorted[rank] == static_cast<int>(rank), "each rank is assigned once");
  }
  join::CheckSameBackend(*records, *ranks).IgnoreError();
}

void ReadError(absl::string_view text) {
  constexpr int kSize = 4;
  const auto error = store::ParseError(text, kSize);
  if (!error.has_value()) return;
  Require(!error->ok(), "an error is none of OK");
  for (const int rank : RanksOf(*error))
    Require(rank >= 0 && rank < kSize, "ranks are the group's");
  Require(store::ParseError(store::SerializeError(*error), kSize).has_value(),
          "what is written can be read");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return ReadRecords(reader.rest());
    case 1:
      return ReadError(reader.rest());
    default:
      join::ExpandHostList(reader.rest()).IgnoreError();
  }
}

std::vector<std::string> Seeds() {
  JoinRecord record;
  record.backend = "auto";
  record.peer.pid = 81;
  record.peer.started = 12345;
  record.peer.pid_namespace = "4026531836";
  record.peer.identity = "0123-4567";
  record.peer.host = "host a";
  JoinRecord second = record;
  record.rank = 1;
  second.rank = -1;
  absl::Status error = WithRanks(NetworkError("rank 1 has died"), {1, 3});
  error = WithOperation(error, {"all_reduce", 5});
  return {std::string(1, '\0') + record.Serialize() + "\n" + second.Serialize(),
          std::string(1, '\0') + second.Serialize(),
          "\1" + store::SerializeError(error),
          "\1" + store::SerializeError(TimeoutError("two\nlines")),
          "\2a[01-03,7],b2",
          "\2r[1-2]n[1-2]"};
}

}  // namespace syncline::fuzz
