#include "backends/common/failure_report.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "backends/common/call.h"
#include "backends/common/call_words.h"
#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/base/thread.h"

namespace syncline {
namespace {

constexpr absl::string_view kPrefix = "report/";

// While ranks are awaited, how often to ask whether their processes still live.
constexpr absl::Duration kProbeInterval = absl::Milliseconds(100);

// What one rank has told. One that is idle has told that only, or came after the group broke.
struct Report {
  ErrorKind kind = ErrorKind::kNetwork;
  std::vector<int> lost;
  std::vector<Call> under_way;
  std::string idle;
  std::string operation;
  std::string message;
};
using Reports = std::map<int, Report>;

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

std::string Serialize(const Failure& failure) {
  const std::string calls =
      absl::StrJoin(failure.under_way, ",", [](std::string* out, const Call& call) {
        absl::StrAppend(out, absl::StrJoin(ToWords(call), " "));
      });
  return absl::StrCat(static_cast<int>(KindOf(failure.cause)), "\n",
                      absl::StrJoin(failure.lost, " "), "\n", calls, "\n", OneLine(failure.idle),
                      "\n", OneLine(failure.operation), "\n", failure.cause.message());
}

template <typename Number>
std::vector<Number> ParseNumbers(absl::string_view text) {
  std::vector<Number> numbers;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    Number number;
    if (absl::SimpleAtoi(word, &number)) numbers.push_back(number);
  }
  return numbers;
}

Report ParseReport(absl::string_view text) {
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 5));
  Report report;
  int kind;
  if (lines.size() != 6 || !absl::SimpleAtoi(lines[0], &kind)) return report;
  if (kind >= 0 && kind <= static_cast<int>(ErrorKind::kInternal)) {
    report.kind = static_cast<ErrorKind>(kind);
  }
  report.lost = ParseNumbers<int>(lines[1]);
  for (absl::string_view words : absl::StrSplit(lines[2], ',', absl::SkipEmpty())) {
    absl::StatusOr<Call> call = FromWords(ParseNumbers<int64_t>(words));
    if (call.ok()) report.under_way.push_back(*std::move(call));
  }
  report.idle = lines[3];
  report.operation = lines[4];
  report.message = lines[5];
  return report;
}

absl::StatusOr<Reports> ReadAll(Store& store) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> keys, store.Keys(kPrefix));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values,
                            store.MultiGet(keys, FailureReporter::kGrace));
  Reports reports;
  for (size_t i = 0; i < keys.size(); ++i) {
    int rank;
    if (absl::SimpleAtoi(keys[i].substr(kPrefix.size()), &rank)) {
      reports[rank] = ParseReport(values[i]);
    }
  }
  return reports;
}

// The ranks that may be to blame: those that the operation needs, and those whose connection
// somebody lost, without those that have reported or left and without `self`.
std::vector<int> Silent(const Failure& failure, const Reports& reports, int self) {
  std::set<int> ranks(failure.awaited.begin(), failure.awaited.end());
  // When time is up, Gloo and the like close all connections, which says nothing about the peers.
  if (KindOf(failure.cause) != ErrorKind::kTimeout) {
    ranks.insert(failure.lost.begin(), failure.lost.end());
  }
  for (const auto& [rank, report] : reports) {
    if (report.kind == ErrorKind::kNetwork) ranks.insert(report.lost.begin(), report.lost.end());
  }
  ranks.erase(self);
  std::vector<int> silent;
  for (int rank : ranks) {
    if (reports.count(rank) == 0 && failure.left.count(rank) == 0) silent.push_back(rank);
  }
  return silent;
}

// One round of telling and listening. Shared with a thread of its own, so that it can be left
// behind if the store hangs.
struct Exchange {
  std::shared_ptr<Store> store;
  std::shared_ptr<const Roster> roster;
  Failure failure;
  absl::StatusOr<Reports> reports = absl::UnknownError("no answer");
  absl::Notification done;
};

// Reads what all ranks have reported, once everybody who matters has, or is known to be dead, or
// after kGrace.
absl::StatusOr<Reports> Listen(const Exchange& exchange) {
  const Deadline deadline(FailureReporter::kGrace);
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(Reports reports, ReadAll(*exchange.store));
    std::vector<std::string> awaited;
    for (int rank : Silent(exchange.failure, reports, exchange.roster->rank())) {
      if (exchange.roster->Probe(rank) != Liveness::kDead) awaited.push_back(KeyOf(rank));
    }
    if (awaited.empty() || deadline.Expired()) return reports;
    absl::Status status =
        exchange.store->Wait(awaited, std::min(kProbeInterval, deadline.Remaining()));
    if (!status.ok() && KindOf(status) != ErrorKind::kTimeout) return status;
  }
}

enum class Listening { kYes, kNo };

absl::StatusOr<Reports> Run(const Exchange& exchange, Listening listening) {
  SYNCLINE_RETURN_IF_ERROR(
      exchange.store->Set(KeyOf(exchange.roster->rank()), Serialize(exchange.failure)));
  if (listening == Listening::kNo) return Reports();
  return Listen(exchange);
}

absl::StatusOr<Reports> RunBounded(std::shared_ptr<Store> store,
                                   std::shared_ptr<const Roster> roster, const Failure& failure,
                                   Listening listening) {
  auto exchange = std::make_shared<Exchange>();
  exchange->store = std::move(store);
  exchange->roster = std::move(roster);
  exchange->failure = failure;
  SYNCLINE_ASSIGN_OR_RETURN(std::thread thread,
                            StartThread("reports of failures", [exchange, listening] {
                              exchange->reports = Run(*exchange, listening);
                              exchange->done.Notify();
                            }));
  if (exchange->done.WaitForNotificationWithTimeout(FailureReporter::kBound)) {
    thread.join();
    return exchange->reports;
  }
  thread.detach();
  return StoreError(
      absl::StrCat("no answer within ", absl::FormatDuration(FailureReporter::kBound)));
}

// Whether the two ranks' calls belong to one operation.
bool Meet(const Call& a, int rank_a, const Call& b, int rank_b) {
  if (!IsP2p(a.kind) || !IsP2p(b.kind)) return a.kind == b.kind && a.sequence == b.sequence;
  auto reaches = [](const Call& call, int rank) {
    return call.peer == rank || call.peer == kAnySource;
  };
  return a.kind != b.kind && a.tag == b.tag && reaches(a, rank_b) && reaches(b, rank_a);
}

struct Verdict {
  ErrorKind kind;
  std::string text;
};

// Draws the conclusion from what is known.
class Judge {
 public:
  Judge(const Roster& roster, const Failure& failure, const absl::StatusOr<Reports>& reports)
      : roster_(roster), failure_(failure), known_(reports.ok()) {
    if (known_) reports_ = *reports;
    silent_ = Silent(failure, reports_, roster.rank());
    for (int rank : silent_) {
      if (roster.Probe(rank) == Liveness::kDead) dead_.push_back(rank);
      if (IsLost(rank)) lost_.push_back(rank);
    }
    missing_ = silent_;
    for (int rank : failure.awaited) {
      if (IsElsewhere(rank)) missing_.push_back(rank);
    }
    std::sort(missing_.begin(), missing_.end());
  }

  Verdict Decide() const {
    const ErrorKind kind = KindOf(failure_.cause);
    if (!dead_.empty()) {
      return {ErrorKind::kNetwork, absl::StrCat(Failed(), Describe(dead_), " ", Have(dead_),
                                                " died (", failure_.cause.message(), ")")};
    }
    if (kind == ErrorKind::kMismatch) return {kind, std::string(failure_.cause.message())};
    if (kind != ErrorKind::kNetwork && kind != ErrorKind::kTimeout) {
      return {kind, absl::StrCat(Failed(), failure_.cause.message())};
    }
    const auto first = FirstCause();
    if (first != reports_.end() &&
        (first->second.kind != ErrorKind::kTimeout ||
         (kind != ErrorKind::kTimeout && first->second.operation != failure_.operation))) {
      std::string text =
          absl::StrCat(Failed(), roster_.Describe(first->first),
                       " reported: ", first->second.operation, ": ", first->second.message);
      if (first->second.kind == ErrorKind::kTimeout) {
        for (int rank : silent_) {
          absl::StrAppend(&text, "; ", roster_.Describe(rank), " did not report");
          if (!WhatItDoes(rank).empty()) absl::StrAppend(&text, "; ", WhatItDoes(rank));
        }
      }
      return {first->second.kind, text};
    }
    if (first != reports_.end() || kind == ErrorKind::kTimeout) {
      return {ErrorKind::kTimeout, TimedOut()};
    }
    return {ErrorKind::kNetwork, ConnectionLost()};
  }

 private:
  // Whether its connection to some rank broke.
  bool IsLost(int rank) const {
    auto contains = [rank](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    };
    return contains(failure_.lost) ||
           std::any_of(reports_.begin(), reports_.end(),
                       [&](const auto& entry) { return contains(entry.second.lost); });
  }

  // Whether it has reported that it is in something else than what this rank waits for it in.
  bool IsElsewhere(int rank) const {
    const auto it = reports_.find(rank);
    if (it == reports_.end()) return false;
    if (!it->second.idle.empty()) return true;
    const std::vector<Call>& calls = it->second.under_way;
    return !calls.empty() && !failure_.under_way.empty() &&
           std::none_of(calls.begin(), calls.end(), [&](const Call& call) {
             return Meet(failure_.under_way[0], roster_.rank(), call, rank);
           });
  }

  // "it is in broadcast #5"; empty if nothing is known.
  std::string WhatItDoes(int rank) const {
    const auto it = reports_.find(rank);
    if (it == reports_.end()) {
      return roster_.Probe(rank) == Liveness::kStopped ? "its process is stopped" : "";
    }
    if (!it->second.idle.empty()) return it->second.idle;
    auto name = [](std::string* out, const Call& call) { absl::StrAppend(out, call.ShortName()); };
    return absl::StrCat("it is in ", absl::StrJoin(it->second.under_way, " and ", name));
  }

  std::string Describe(const std::vector<int>& ranks) const {
    return absl::StrJoin(ranks, ", ", [this](std::string* out, int rank) {
      absl::StrAppend(out, roster_.Describe(rank));
    });
  }

  std::string Failed() const {
    return absl::StrCat(failure_.operation, " failed after ",
                        absl::FormatDuration(absl::Trunc(failure_.elapsed, absl::Milliseconds(1))),
                        ": ");
  }

  // The report of the lowest other rank that met more than a connection closed by others.
  Reports::const_iterator FirstCause() const {
    return std::find_if(reports_.begin(), reports_.end(), [this](const auto& entry) {
      return entry.first != roster_.rank() && entry.second.kind != ErrorKind::kNetwork;
    });
  }

  std::string TimedOut() const {
    const std::string after = absl::FormatDuration(failure_.timeout);
    if (!known_) {
      return absl::StrCat(failure_.operation, ": not complete after ", after,
                          "; which ranks have not arrived is not known");
    }
    if (missing_.empty()) {
      for (int rank : failure_.awaited) {
        const auto it = failure_.left.find(rank);
        if (it == failure_.left.end()) continue;
        return absl::StrCat(failure_.operation, ": not complete after ", after, "; ",
                            roster_.Describe(rank), " has left the group: ", it->second);
      }
      return absl::StrCat(failure_.operation, ": not complete after ", after,
                          " though all its ranks had arrived: allow more time, or check the ",
                          "network between the hosts");
    }
    std::vector<int> unknown;
    std::vector<std::string> parts;
    for (int rank : missing_) {
      if (WhatItDoes(rank).empty()) {
        unknown.push_back(rank);
      } else {
        parts.push_back(absl::StrCat(roster_.Describe(rank), " has not arrived after ", after, "; ",
                                     WhatItDoes(rank)));
      }
    }
    if (!unknown.empty()) {
      parts.push_back(
          absl::StrCat(Describe(unknown), " ", Have(unknown), " not arrived after ", after));
    }
    return absl::StrCat(failure_.operation, ": ", absl::StrJoin(parts, "; "));
  }

  std::string ConnectionLost() const {
    const std::string said = absl::StrCat(" (", failure_.cause.message(), ")");
    if (!lost_.empty()) {
      return absl::StrCat(Failed(), Describe(lost_), " closed the connection, did not report and ",
                          "must be presumed lost", said);
    }
    if (known_ && !silent_.empty()) {
      return absl::StrCat(Failed(), Describe(silent_), " did not report and must be presumed lost",
                          said);
    }
    return absl::StrCat(Failed(), "check the network between the hosts", said);
  }

  const Roster& roster_;
  const Failure& failure_;
  const bool known_;  // Whether the store told who has reported.
  Reports reports_;
  std::vector<int> silent_, dead_, lost_;  // Dead and lost are also silent.
  std::vector<int> missing_;               // Of those awaited; the silent, too.
};

absl::Status MakeStatus(const Verdict& verdict) {
  switch (verdict.kind) {
    case ErrorKind::kTimeout:
      return TimeoutError(verdict.text);
    case ErrorKind::kNetwork:
      return NetworkError(verdict.text);
    case ErrorKind::kMismatch:
      return MismatchError(verdict.text);
    default:
      return BackendError(verdict.text);
  }
}

}  // namespace

FailureReporter::FailureReporter(std::shared_ptr<Store> store, Roster roster)
    : store_(std::move(store)), roster_(std::make_shared<const Roster>(std::move(roster))) {}

void FailureReporter::Tell(const Failure& failure) const {
  RunBounded(store_, roster_, failure, Listening::kNo).status().IgnoreError();
}

void FailureReporter::TellIdle(const std::string& what) const {
  Failure failure;
  failure.cause = NetworkError("");
  failure.idle = what;
  Tell(failure);
}

absl::Status FailureReporter::Explain(const Failure& given) const {
  Failure failure = given;
  std::vector<std::string> gone;
  for (int rank : given.awaited) {
    const auto it = given.left.find(rank);
    if (it == given.left.end()) continue;
    gone.push_back(absl::StrCat(roster_->Describe(rank), " has left the group: ", it->second));
  }
  if (!gone.empty() && given.lost.empty() && KindOf(given.cause) == ErrorKind::kNetwork) {
    failure.cause = BackendError(absl::StrJoin(gone, "; "));
  }
  const absl::StatusOr<Reports> reports = RunBounded(store_, roster_, failure, Listening::kYes);
  Verdict verdict = Judge(*roster_, failure, reports).Decide();
  if (KindOf(reports.status()) == ErrorKind::kBackend) {
    absl::StrAppend(&verdict.text,
                    "; other ranks' reports are not known: ", reports.status().message());
  } else if (!reports.ok()) {
    absl::StrAppend(&verdict.text, "; the store at ", store_->ToString(),
                    " does not answer either: its process, rank 0 or the launcher, must be ",
                    "presumed lost (", reports.status().message(), ")");
  }
  return MakeStatus(verdict);
}

}  // namespace syncline
