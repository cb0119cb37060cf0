#include "backends/common/failure_reporter.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/common/call_description.h"
#include "backends/common/failure_report.h"
#include "core/base/thread.h"
#include "syncline/check.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr absl::string_view kPrefix = "report/";

// How often to ask whether the processes of the awaited ranks still live. A dead rank never
// reports, so this ends most waits long before kGrace.
constexpr absl::Duration kLivenessPollInterval = absl::Milliseconds(100);

using Reports = std::map<int, RankReport>;

// What the group's ranks have reported, and who was dead before the reports were read. The order
// matters: a rank that reports and then ends its process has reported, whoever looks in between.
struct Evidence {
  std::set<int> dead;
  Reports reports;
};

std::string KeyOf(int rank) { return absl::StrCat(kPrefix, rank); }

std::set<int> DeadAmong(const std::vector<int>& ranks, const PeerTable& peers) {
  std::set<int> dead;
  for (int rank : ranks) {
    if (peers.LivenessOf(rank) == base::Liveness::kDead) dead.insert(rank);
  }
  return dead;
}

absl::StatusOr<Reports> ReadAll(Store& store, int size) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> keys, store.Keys(kPrefix));
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values,
                            store.MultiGet(keys, FailureReporter::kGrace));
  Reports reports;
  for (size_t i = 0; i < keys.size(); ++i) {
    int rank;
    if (absl::SimpleAtoi(keys[i].substr(kPrefix.size()), &rank) && rank >= 0 && rank < size) {
      reports[rank] = ParseReport(values[i], size);
    }
  }
  return reports;
}

// The ranks that may be at fault: those that the operation needs and those whose connection some
// rank lost, without those that have reported or left and without `self`.
std::vector<int> Silent(const Failure& failure, const Reports& reports, int self) {
  std::set<int> ranks(failure.awaited.begin(), failure.awaited.end());
  // When time is up, transports such as Gloo close all connections. So a lost connection then says
  // nothing about the peer.
  if (KindOf(failure.cause) != ErrorKind::kTimeout) {
    ranks.insert(failure.lost.begin(), failure.lost.end());
  }
  for (const auto& [rank, report] : reports) {
    if (report.kind == ErrorKind::kNetwork) ranks.insert(report.lost.begin(), report.lost.end());
    ranks.insert(report.waits_for.begin(), report.waits_for.end());
  }
  ranks.erase(self);
  std::vector<int> silent;
  for (int rank : ranks) {
    if (reports.count(rank) == 0 && failure.left.count(rank) == 0) silent.push_back(rank);
  }
  return silent;
}

// One report, and what other ranks reported.
struct ReportExchange {
  std::shared_ptr<Store> store;
  std::shared_ptr<const PeerTable> peers;
  Failure failure;
  absl::StatusOr<Evidence> evidence = absl::UnknownError("no answer");
};

// Waits until every rank that may be at fault has reported or is known to be dead, or for kGrace.
// Returns all reports.
absl::StatusOr<Evidence> AwaitReports(const ReportExchange& exchange) {
  const Deadline deadline(FailureReporter::kGrace);
  while (true) {
    const int self = exchange.peers->rank(), size = exchange.peers->size();
    Evidence evidence;
    SYNCLINE_ASSIGN_OR_RETURN(evidence.reports, ReadAll(*exchange.store, size));
    evidence.dead = DeadAmong(Silent(exchange.failure, evidence.reports, self), *exchange.peers);
    if (!evidence.dead.empty()) {
      SYNCLINE_ASSIGN_OR_RETURN(evidence.reports, ReadAll(*exchange.store, size));
    }
    std::vector<std::string> awaited;
    for (int rank : Silent(exchange.failure, evidence.reports, self)) {
      if (evidence.dead.count(rank) == 0) awaited.push_back(KeyOf(rank));
    }
    if (awaited.empty() || deadline.Expired()) return evidence;
    absl::Status status =
        exchange.store->Wait(awaited, std::min(kLivenessPollInterval, deadline.Remaining()));
    if (!status.ok() && KindOf(status) != ErrorKind::kTimeout) return status;
  }
}

// Whether to wait for the other ranks' reports.
enum class Await { kReports, kNothing };

absl::StatusOr<Evidence> Run(const ReportExchange& exchange, Await await) {
  SYNCLINE_RETURN_IF_ERROR(
      exchange.store->Set(KeyOf(exchange.peers->rank()), SerializeReport(exchange.failure)));
  if (await == Await::kNothing) return Evidence();
  return AwaitReports(exchange);
}

absl::StatusOr<Evidence> RunBounded(std::shared_ptr<Store> store,
                                    std::shared_ptr<const PeerTable> peers, const Failure& failure,
                                    Await await) {
  auto exchange = std::make_shared<ReportExchange>();
  exchange->store = std::move(store);
  exchange->peers = std::move(peers);
  exchange->failure = failure;
  const absl::Status answered =
      base::RunBounded("reports of failures", FailureReporter::kBound,
                       [exchange, await] { exchange->evidence = Run(*exchange, await); });
  if (KindOf(answered) == ErrorKind::kTimeout) return StoreError(answered.message());
  SYNCLINE_RETURN_IF_ERROR(answered);
  return exchange->evidence;
}

// Whether the two ranks' calls belong to one operation: for point-to-point calls, whether one of
// them sends what the other receives.
bool InSameOperation(const CallDescription& a, int rank_a, const CallDescription& b, int rank_b) {
  if (!IsP2p(a.kind) || !IsP2p(b.kind)) return a.kind == b.kind && a.sequence == b.sequence;
  auto reaches = [](const CallDescription& call, int rank) {
    return call.peer == rank || call.peer == kAnySource;
  };
  return a.kind != b.kind && a.tag == b.tag && reaches(a, rank_b) && reaches(b, rank_a);
}

struct Diagnosis {
  ErrorKind kind;
  std::string text;
  std::vector<int> ranks;  // At fault.
};

// Derives the error for the user from this rank's failure and all ranks' reports.
class DiagnosisMaker {
 public:
  DiagnosisMaker(const PeerTable& peers, const Failure& failure,
                 const absl::StatusOr<Evidence>& evidence)
      : peers_(peers), failure_(failure), known_(evidence.ok()) {
    if (known_) reports_ = evidence->reports;
    silent_ = Silent(failure, reports_, peers.rank());
    const std::set<int> dead = known_ ? evidence->dead : DeadAmong(silent_, peers);
    for (int rank : silent_) {
      if (dead.count(rank) > 0) dead_.push_back(rank);
      if (IsLost(rank)) lost_.push_back(rank);
    }
    if (!known_) KeepNamedByCause(dead_);
    missing_ = silent_;
    for (int rank : failure.awaited) {
      if (IsElsewhere(rank)) missing_.push_back(rank);
    }
    std::sort(missing_.begin(), missing_.end());
  }

  // Evidence counts in this order: a death that the kernel confirms; a mismatch or a cause that
  // this rank knows for certain; a cause that another rank reported, since this rank may only see
  // what followed from it; this rank's own timeout; that of another rank; a broken connection,
  // which says least.
  Diagnosis Make() const {
    const ErrorKind kind = KindOf(failure_.cause);
    if (!dead_.empty()) {
      return {ErrorKind::kNetwork,
              absl::StrCat(Failed(), Describe(dead_), " ", Have(dead_), " died (",
                           failure_.cause.message(), ")"),
              dead_};
    }
    const std::vector<int> ranks = RanksOf(failure_.cause);
    if (kind == ErrorKind::kMismatch) return {kind, std::string(failure_.cause.message()), ranks};
    if (kind != ErrorKind::kNetwork && kind != ErrorKind::kTimeout) {
      return {kind, absl::StrCat(Failed(), failure_.cause.message()), ranks};
    }
    const auto first = FirstCause();
    if (first != reports_.end()) {
      if (first->second.kind != ErrorKind::kTimeout) return Reported(first->first, first->second);
      if (kind != ErrorKind::kTimeout) return TimeoutReported(first->first, first->second);
    }
    if (kind == ErrorKind::kTimeout) return TimedOut();
    return ConnectionLost();
  }

 private:
  // Without the others' reports, those that have failed and ended look like the one that died
  // first. If the cause names that one, drops the others.
  void KeepNamedByCause(std::vector<int>& dead) const {
    const std::vector<int> named = RanksOf(failure_.cause);
    std::vector<int> kept;
    for (int rank : dead) {
      if (std::find(named.begin(), named.end(), rank) != named.end()) kept.push_back(rank);
    }
    if (!kept.empty()) dead = kept;
  }

  // Whether some rank lost the connection to `rank`.
  bool IsLost(int rank) const {
    auto contains = [rank](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
    };
    return contains(failure_.lost) ||
           std::any_of(reports_.begin(), reports_.end(),
                       [&](const auto& entry) { return contains(entry.second.lost); });
  }

  // Whether `rank` has reported that it is not in the operation in which this rank waits for it,
  // nor in a later one: ranks need not meet in all of them.
  bool IsElsewhere(int rank) const {
    const auto it = reports_.find(rank);
    if (it == reports_.end()) return false;
    if (!it->second.idle.empty()) return true;
    const std::vector<CallDescription>& calls = it->second.under_way;
    return !calls.empty() && !failure_.under_way.empty() &&
           std::none_of(calls.begin(), calls.end(), [&](const CallDescription& call) {
             const CallDescription& own = failure_.under_way[0];
             const bool has_passed =
                 !IsP2p(own.kind) && !IsP2p(call.kind) && call.sequence > own.sequence;
             return has_passed || InSameOperation(own, peers_.rank(), call, rank);
           });
  }

  // What `rank` does: "it is in broadcast #5"; empty if nothing is known.
  std::string ActivityOf(int rank) const {
    const auto it = reports_.find(rank);
    if (it == reports_.end()) {
      return peers_.LivenessOf(rank) == base::Liveness::kStopped ? "its process is stopped" : "";
    }
    if (!it->second.idle.empty()) return it->second.idle;
    auto name = [](std::string* out, const CallDescription& call) {
      absl::StrAppend(out, call.ShortName());
    };
    return absl::StrCat("it is in ", absl::StrJoin(it->second.under_way, " and ", name));
  }

  std::string Describe(const std::vector<int>& ranks) const {
    return absl::StrJoin(ranks, ", ", [this](std::string* out, int rank) {
      absl::StrAppend(out, peers_.Describe(rank));
    });
  }

  std::string Failed() const {
    return absl::StrCat(failure_.operation, " failed after ",
                        absl::FormatDuration(absl::Trunc(failure_.elapsed, absl::Milliseconds(1))),
                        ": ");
  }

  // The report of the lowest other rank that saw more than a connection closed by others. A timeout
  // comes last: that rank may not have heard of what another has seen.
  Reports::const_iterator FirstCause() const {
    const auto find = [this](bool is_timeout) {
      return std::find_if(reports_.begin(), reports_.end(), [&](const auto& entry) {
        const ErrorKind kind = entry.second.kind;
        return entry.first != peers_.rank() && kind != ErrorKind::kNetwork &&
               (kind == ErrorKind::kTimeout) == is_timeout;
      });
    };
    const auto cause = find(false);
    return cause != reports_.end() ? cause : find(true);
  }

  // Those that the cause names; of a send or a receive, the rank at its other end. A rank that a
  // collective waits for may itself wait for another.
  std::vector<int> RanksOfCause() const {
    const std::vector<int> named = RanksOf(failure_.cause);
    const bool is_of_two = failure_.waits_for.empty() || peers_.size() == 2;
    return named.empty() && is_of_two && failure_.awaited.size() == 1 ? failure_.awaited : named;
  }

  // The report of the lowest other rank that says which ranks are at fault. A timeout comes first:
  // a broken connection may be that of a rank which has given up after one. What blames this rank
  // alone comes last.
  Reports::const_iterator ReportWithRanks() const {
    const auto find = [this](bool blames_self, ErrorKind kind) {
      return std::find_if(reports_.begin(), reports_.end(), [&](const auto& entry) {
        const std::vector<int>& ranks = entry.second.ranks;
        return entry.first != peers_.rank() && entry.second.kind == kind && !ranks.empty() &&
               (ranks == std::vector<int>{peers_.rank()}) == blames_self;
      });
    };
    for (const bool blames_self : {false, true}) {
      for (const ErrorKind kind : {ErrorKind::kTimeout, ErrorKind::kNetwork}) {
        const auto found = find(blames_self, kind);
        if (found != reports_.end()) return found;
      }
    }
    return reports_.end();
  }

  // Those that hold up a rank that waits for `ranks` alone, which may themselves wait for others,
  // as they report: the ends of these chains. Where ranks need not meet, the times of all are up in
  // whatever call each is, in any order. Empty if the chains end nowhere but at `waiting` itself.
  std::vector<int> Culprits(int waiting, std::vector<int> ranks) const {
    std::set<int> seen = {waiting}, culprits;
    while (!ranks.empty()) {
      const int rank = ranks.back();
      ranks.pop_back();
      if (!seen.insert(rank).second) continue;
      const auto it = reports_.find(rank);
      // This rank's own wait is in no report yet.
      const std::vector<int> none;
      const std::vector<int>& others = rank == peers_.rank()  ? failure_.waits_for
                                       : it == reports_.end() ? none
                                                              : it->second.waits_for;
      if (others.empty()) culprits.insert(rank);
      ranks.insert(ranks.end(), others.begin(), others.end());
    }
    return {culprits.begin(), culprits.end()};
  }

  // The cause that `rank` reported.
  Diagnosis Reported(int rank, const RankReport& report) const {
    return {report.kind,
            absl::StrCat(Failed(), peers_.Describe(rank), " reported: ", report.operation, ": ",
                         report.message),
            report.ranks.empty() ? std::vector<int>{rank} : report.ranks};
  }

  // `rank` has timed out, which ended this rank's operation too, before its own time was up.
  Diagnosis TimeoutReported(int rank, const RankReport& report) const {
    const std::string told =
        absl::StrCat(Failed(), peers_.Describe(rank), " reported: ", report.operation);
    // If that is this rank itself, the report says best what it lacks.
    const std::vector<int> culprits = Culprits(rank, report.waits_for);
    if (!culprits.empty() && culprits != std::vector<int>{peers_.rank()}) {
      return Late(told, report.timeout, culprits);
    }
    if (report.operation == failure_.operation && !missing_.empty()) {
      return Late(told, report.timeout, missing_);
    }
    // Where ranks need not meet, it may have waited in an earlier one for those that this one
    // lacks.
    const auto are_among = [](const std::vector<int>& ranks, const std::vector<int>& others) {
      return std::includes(others.begin(), others.end(), ranks.begin(), ranks.end());
    };
    if (!report.ranks.empty() && are_among(report.ranks, missing_) &&
        are_among(silent_, report.ranks)) {
      return Late(told, report.timeout, report.ranks);
    }
    Diagnosis reported = Reported(rank, report);
    if (!silent_.empty()) reported.ranks = report.ranks;
    for (int other : silent_) {
      absl::StrAppend(&reported.text, "; ", peers_.Describe(other), " did not report");
      if (!ActivityOf(other).empty()) absl::StrAppend(&reported.text, "; ", ActivityOf(other));
      reported.ranks.push_back(other);
    }
    return reported;
  }

  // `timeout` is over, and `missing` have not arrived.
  Diagnosis Late(absl::string_view operation, absl::Duration timeout,
                 const std::vector<int>& missing) const {
    const std::string after = absl::FormatDuration(timeout);
    // What it has done last it may not have told yet.
    const bool is_known = !failure_.awaited_in.empty() &&
                          std::includes(failure_.awaited.begin(), failure_.awaited.end(),
                                        missing.begin(), missing.end());
    const std::string lacking =
        !is_known
            ? ""
            : absl::StrCat("; as far as it has told, it has not come to ", failure_.awaited_in);
    std::vector<int> unknown;
    std::vector<std::string> parts;
    for (int rank : missing) {
      if (ActivityOf(rank).empty()) {
        unknown.push_back(rank);
      } else {
        parts.push_back(absl::StrCat(peers_.Describe(rank), " has not arrived after ", after, "; ",
                                     ActivityOf(rank), lacking));
      }
    }
    if (!unknown.empty()) {
      parts.push_back(absl::StrCat(Describe(unknown), " ", Have(unknown), " not arrived after ",
                                   after, lacking));
    }
    return {ErrorKind::kTimeout, absl::StrCat(operation, ": ", absl::StrJoin(parts, "; ")),
            missing};
  }

  // This rank's own time is over.
  Diagnosis TimedOut() const {
    const std::string after = absl::FormatDuration(failure_.timeout);
    const auto timeout = [this](absl::string_view text, const std::vector<int>& ranks) {
      return Diagnosis{ErrorKind::kTimeout, absl::StrCat(failure_.operation, ": ", text), ranks};
    };
    if (!known_) {
      // The transport may know for whose data this rank waits.
      const std::vector<int> named = RanksOf(failure_.cause);
      if (!named.empty()) return timeout(failure_.cause.message(), named);
      return timeout(
          absl::StrCat("not complete after ", after, "; which ranks have not arrived is not known"),
          {});
    }
    const std::vector<int> culprits = Culprits(peers_.rank(), failure_.waits_for);
    if (!culprits.empty()) return Late(failure_.operation, failure_.timeout, culprits);
    if (missing_.empty()) {
      // The transport may know of ranks that are stopped, or for whose data this one waits; or
      // another rank's did, which has ended this operation at the same time.
      const std::vector<int> ranks = RanksOfCause();
      for (int rank : failure_.awaited) {
        const auto it = failure_.left.find(rank);
        if (it == failure_.left.end()) continue;
        // It had done its part before it left.
        if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
        return timeout(absl::StrCat("not complete after ", after, "; ", peers_.Describe(rank),
                                    " has left the group: ", it->second),
                       {rank});
      }
      const auto knows = ranks.empty() ? ReportWithRanks() : reports_.end();
      if (knows != reports_.end()) return Reported(knows->first, knows->second);
      return timeout(
          absl::StrCat("not complete after ", after,
                       " though all its ranks had arrived: allow more time, or check the network ",
                       "between the hosts",
                       RanksOf(failure_.cause).empty()
                           ? ""
                           : absl::StrCat(" (", failure_.cause.message(), ")")),
          ranks);
    }
    // Some of them may wait themselves, in calls in which ranks need not meet.
    const std::vector<int> last = Culprits(peers_.rank(), missing_);
    return Late(failure_.operation, failure_.timeout, last.empty() ? missing_ : last);
  }

  Diagnosis ConnectionLost() const {
    const auto lost = [this](absl::string_view text, const std::vector<int>& ranks) {
      return Diagnosis{ErrorKind::kNetwork, absl::StrCat(Failed(), text, HowLost()), ranks};
    };
    if (!lost_.empty()) {
      const bool all_given_up = std::all_of(lost_.begin(), lost_.end(), [this](int rank) {
        return failure_.given_up.count(rank) > 0;
      });
      return lost(absl::StrCat(Describe(lost_), all_given_up ? "" : " closed the connection,",
                               " did not report and must be presumed lost"),
                  lost_);
    }
    if (known_ && !silent_.empty()) {
      return lost(absl::StrCat(Describe(silent_), " did not report and must be presumed lost"),
                  silent_);
    }
    std::vector<std::pair<int, int>> broken = BrokenBothWays();
    if (broken.empty()) {
      const std::vector<int> ranks = RanksOfCause();
      // Another transport than that of the watch has ended: who had its connection knows which.
      const auto knows = ranks.empty() ? ReportWithRanks() : reports_.end();
      if (knows != reports_.end()) return Reported(knows->first, knows->second);
      // Each side may have failed, and told what it knew, after the first connection to the other.
      if (ranks.empty()) broken = BrokenOneWay();
      if (broken.empty()) return lost("check the network between the hosts", ranks);
    }
    std::vector<std::string> texts;
    std::set<int> ranks;
    for (const auto& [a, b] : broken) {
      ranks.insert({a, b});
      if (texts.size() == kMaxBroken) continue;
      texts.push_back(absl::StrCat("between ", peers_.Describe(a), " and ", peers_.Describe(b)));
    }
    std::string text =
        absl::StrCat("the connection ", absl::StrJoin(texts, " and that "),
                     " broke; both sides are there: check the network between the hosts");
    if (broken.size() > kMaxBroken) {
      absl::StrAppend(&text, "; so did ", broken.size() - kMaxBroken, " others");
    }
    return lost(text, {ranks.begin(), ranks.end()});
  }

  // What the transport said, or this rank itself of those whose connections it has ended.
  std::string HowLost() const {
    if (failure_.given_up.empty()) return absl::StrCat(" (", failure_.cause.message(), ")");
    std::vector<int> ranks;
    for (const auto& [rank, why] : failure_.given_up) ranks.push_back(rank);
    return absl::StrCat("; ", Describe(ranks), " had ", failure_.given_up.begin()->second);
  }

  // The pairs of ranks that have both lost the connection to the other before they closed their
  // own: a rank that fails closes its connections, but has not lost those of the ranks that then
  // lose it.
  std::vector<std::pair<int, int>> BrokenBothWays() const {
    const std::set<std::pair<int, int>> lost = LostConnections();
    std::vector<std::pair<int, int>> broken;
    for (const auto& [a, b] : lost) {
      if (a < b && lost.count({b, a}) > 0) broken.emplace_back(a, b);
    }
    return broken;
  }

  // The pairs of ranks of which one has lost the connection to the other.
  std::vector<std::pair<int, int>> BrokenOneWay() const {
    std::set<std::pair<int, int>> broken;
    for (const auto& [a, b] : LostConnections()) broken.insert({std::min(a, b), std::max(a, b)});
    return {broken.begin(), broken.end()};
  }

  // Each rank that reports, with each to which it has lost a connection.
  std::set<std::pair<int, int>> LostConnections() const {
    std::set<std::pair<int, int>> lost;
    const auto add = [&](int rank, const std::vector<int>& others) {
      for (const int other : others) lost.insert({rank, other});
    };
    // A connection that the watch does not look at is in the cause alone.
    add(peers_.rank(), failure_.lost);
    if (KindOf(failure_.cause) == ErrorKind::kNetwork) add(peers_.rank(), RanksOf(failure_.cause));
    for (const auto& [rank, report] : reports_) {
      add(rank, report.lost);
      if (report.kind == ErrorKind::kNetwork) add(rank, report.ranks);
    }
    return lost;
  }

  static constexpr size_t kMaxBroken = 3;  // That an error quotes.

  const PeerTable& peers_;
  const Failure& failure_;
  const bool known_;  // Whether the store answered.
  Reports reports_;
  std::vector<int> silent_, dead_, lost_;  // Dead and lost are also silent.
  std::vector<int> missing_;  // The silent ranks, and the awaited ranks that are elsewhere.
};

absl::Status MakeStatus(const Diagnosis& diagnosis) {
  switch (diagnosis.kind) {
    case ErrorKind::kTimeout:
    case ErrorKind::kNetwork:
    case ErrorKind::kMismatch:
      return WithRanks(ErrorOfKind(diagnosis.kind, diagnosis.text), diagnosis.ranks);
    default:
      return WithRanks(BackendError(diagnosis.text), diagnosis.ranks);
  }
}

}  // namespace

FailureReporter::FailureReporter(std::shared_ptr<Store> store, PeerTable peers)
    : store_(std::move(store)), peers_(std::make_shared<const PeerTable>(std::move(peers))) {}

void FailureReporter::Report(const Failure& failure) const {
  RunBounded(store_, peers_, failure, Await::kNothing).status().IgnoreError();
}

void FailureReporter::ReportIdle(const std::string& what) const {
  Failure failure;
  failure.cause = NetworkError("");
  failure.idle = what;
  Report(failure);
}

absl::Status FailureReporter::Diagnose(const Failure& given) const {
  SYNCLINE_DCHECK(!given.cause.ok());
  Failure failure = given;
  // A peer that left closes its connections in good order. If no other connection broke, its leave
  // is the cause.
  std::vector<int> gone;
  std::vector<std::string> reasons;
  for (int rank : given.awaited) {
    const auto it = given.left.find(rank);
    if (it == given.left.end()) continue;
    gone.push_back(rank);
    reasons.push_back(absl::StrCat(peers_->Describe(rank), " has left the group: ", it->second));
  }
  const std::vector<int> blamed = RanksOf(given.cause);
  const bool may_be_they = std::all_of(blamed.begin(), blamed.end(), [&](int rank) {
    return std::find(gone.begin(), gone.end(), rank) != gone.end();
  });
  if (!gone.empty() && may_be_they && given.lost.empty() &&
      KindOf(given.cause) == ErrorKind::kNetwork) {
    failure.cause = WithRanks(BackendError(absl::StrJoin(reasons, "; ")), std::move(gone));
  }
  const absl::StatusOr<Evidence> evidence = RunBounded(store_, peers_, failure, Await::kReports);
  Diagnosis diagnosis = DiagnosisMaker(*peers_, failure, evidence).Make();
  if (KindOf(evidence.status()) == ErrorKind::kBackend) {
    absl::StrAppend(&diagnosis.text,
                    "; other ranks' reports are not known: ", evidence.status().message());
  } else if (!evidence.ok()) {
    absl::StrAppend(&diagnosis.text, "; the store at ", WithoutPrefixes(*store_),
                    " does not answer either: its process, rank 0 or the launcher, must be ",
                    "presumed lost (", evidence.status().message(), ")");
  }
  const absl::Status status = MakeStatus(diagnosis);
  // A mismatch that this rank has found has the operations of both ranks.
  if (KindOf(failure.cause) == ErrorKind::kMismatch && diagnosis.kind == ErrorKind::kMismatch) {
    return WithOriginOf(status, failure.cause);
  }
  return failure.call.name.empty() ? status : WithOperation(status, failure.call);
}

}  // namespace syncline::backends
