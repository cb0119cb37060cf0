#include "backends/hierarchical/rail_history.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "backends/common/call_description.h"
#include "backends/hierarchical/thresholds.h"
#include "syncline/deadline.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::hierarchical {
namespace {

// As far as its record shows it.
backends::CallDescription DescriptionOf(const backends::FingerprintRecord& record, int size) {
  backends::CallDescription call(record.call);
  if (!backends::HasFixedSize(call.kind) && record.even >= 0) {
    call.counts.assign(size, record.even);
    if (call.kind == OpKind::kAllToAll) call.expected = call.counts;
    call.count = record.even;  // So it is known.
  }
  return call;
}

}  // namespace

// Where TLS encrypts each record by itself, it adds 22 bytes.
static_assert(RailHistory::kCalls * (sizeof(backends::FingerprintRecord) + 22) <= kRecordBytesAhead,
              "records that nobody reads find room, too");

RailHistory::RailHistory(const Topology& topology, RailSockets& rail)
    : topology_(topology),
      rail_(rail),
      max_bytes_ahead_(
          std::min(kMaxBytesAhead, rail.window() - std::min(rail.window(), kRecordBytesAhead))),
      peers_(topology.node_count()),
      awaited_ends_(topology.node_count()) {
  for (Call& call : calls_) {
    call.of.resize(topology.node_count());
    call.ends.resize(topology.node_count());
    call.given.resize(topology.node_count());
  }
}

absl::Status RailHistory::Begin(const backends::FingerprintRecord& own, const CallContext& call) {
  call_ = &call;
  call_number_ = number_ + 1;
  has_given_ = false;
  // The slot of the collective that begins is still that of this one.
  if (number_ + 1 > kCalls) SYNCLINE_RETURN_IF_ERROR(AwaitRecordsOf(number_ + 1 - kCalls));
  const bool has_met = met_ == number_;
  Call& begun = CallOf(++number_);
  begun.own = own;
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node == topology_.node) continue;
    Peer& peer = peers_[node];
    // All were there in the collective before, and have taken what was given before that.
    if (has_met) peer.taken = peer.given;
    begun.given[node] = peer.given;
    rail_.Receive(node, &begun.of[node], sizeof(begun.of[node]));
    begun.ends[node] = rail_.bytes_to_receive(node);
  }
  if (!own.goes_ahead() && !own.relays()) SendAllRecords();
  return absl::OkStatus();
}

void RailHistory::SendRecords(int node) {
  Peer& peer = peers_[node];
  while (peer.sent < number_) {
    const backends::FingerprintRecord& record = CallOf(peer.sent + 1).own;
    rail_.Send(node, &record, sizeof(record));  // If this throws, it is sent later.
    ++peer.sent;
  }
  peer.untold = 0;
}

void RailHistory::SendAllRecords() {
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node != topology_.node) SendRecords(node);
  }
}

bool RailHistory::HasRecordCome(uint64_t number, int node) const {
  return rail_.bytes_received(node) >= CallOf(number).ends[node];
}

absl::Status RailHistory::AwaitEarlierRecords() {
  return number_ == 1 ? absl::OkStatus() : AwaitRecordsOf(number_ - 1);
}

absl::Status RailHistory::AwaitRecords() {
  return Await([&](int node) { return !HasCome(node); }, number_ - 1);
}

absl::Status RailHistory::AwaitRecordsOf(uint64_t number) {
  // Mostly they have come long ago.
  bool are_compared = true;
  for (int node = 0; node < topology_.node_count(); ++node) {
    are_compared = are_compared && (node == topology_.node || peers_[node].compared >= number);
  }
  if (are_compared) return absl::OkStatus();
  // Of all that had begun before, whatever is awaited of them.
  return Await([&](int node) { return !HasRecordCome(number, node); }, call_number_ - 1);
}

absl::Status RailHistory::AwaitData(absl::Span<const int> nodes) {
  std::fill(awaited_ends_.begin(), awaited_ends_.end(), 0);
  for (const int node : nodes) {
    awaited_ends_[node] = rail_.bytes_to_receive(node);
    TellOfDataFrom(node);
  }
  return Await([&](int node) { return rail_.bytes_received(node) < awaited_ends_[node]; }, number_);
}

absl::Status RailHistory::AwaitRecord(int node) {
  return Await([&](int other) { return other == node && !HasCome(node); }, number_ - 1);
}

absl::Status RailHistory::AwaitRelayed(int node) {
  const uint64_t end = rail_.bytes_to_receive(node);
  return Await([&](int other) { return other == node && rail_.bytes_received(node) < end; },
               number_ - 1);
}

// Who gives much waits for the record of this call before it gives more.
void RailHistory::TellOfDataFrom(int node) {
  Peer& peer = peers_[node];
  peer.untold += rail_.bytes_to_receive(node) - CallOf(number_).ends[node];
  if (peer.untold > max_bytes_ahead_ / 4) SendRecords(node);
}

// A rank that has begun a call has taken the data of those before. What it has not taken must find
// room in its kernel: this rank may leave once it has given, and what is then still here is lost.
absl::Status RailHistory::AwaitRoom(absl::Span<const int> nodes,
                                    absl::FunctionRef<size_t(int)> bytes_for) {
  const auto has_room = [&](int node) { return HasRoom(node, bytes_for(node)); };
  const auto is_awaited = [&](int other) {
    return std::find(nodes.begin(), nodes.end(), other) != nodes.end() &&
           std::none_of(nodes.begin(), nodes.end(), has_room);
  };
  return Await(is_awaited, number_);
}

// Nobody is sure to tell of a call in which it takes nothing, so that must always have room.
bool RailHistory::HasRoom(int node, size_t bytes) const {
  const Peer& peer = peers_[node];
  return bytes == 0 || HasCome(node) || peer.given - peer.taken + bytes <= max_bytes_ahead_;
}

void RailHistory::Give(int node, const Tensor& tensor) {
  has_given_ = true;
  SendRecords(node);
  rail_.Send(node, tensor.data(), tensor.nbytes());
  peers_[node].given += tensor.nbytes();
}

void RailHistory::Relay(int node, const Tensor& tensor) {
  SendRecords(node);
  rail_.Send(node, tensor.data(), tensor.nbytes());
}

absl::Status RailHistory::EndRelayed() {
  met_ = number_;
  return End();
}

// Nobody serves the rail between calls, so data must have gone. For a record others do not wait
// before they are more than kCalls ahead, or meet.
absl::Status RailHistory::End() {
  const bool tells_all = has_given_ && topology_.local_ranks().size() > 1;
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node == topology_.node) continue;
    if (tells_all || number_ - peers_[node].sent >= kCalls / 2) SendRecords(node);
  }
  // Mostly all goes at once, and this call needs nothing of what comes. A group that has failed
  // takes nothing any more, which is no wait.
  const bool looks = number_ % kLookInterval == 0;
  if (!looks) rail_.SendNow();
  if (rail_.is_aborted()) return NetworkError("the connections were closed");
  if (!looks && IsAllSent()) return absl::OkStatus();
  return Await([&](int node) { return !rail_.is_sent(node); }, number_);
}

bool RailHistory::IsAllSent() const {
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node != topology_.node && !rail_.is_sent(node)) return false;
  }
  return true;
}

bool RailHistory::has_untold() const {
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node != topology_.node && peers_[node].sent < number_) return true;
  }
  return !IsAllSent();
}

// First to all: what follows ends at the first connection that has.
void RailHistory::Tell() {
  SendAllRecords();
  rail_.SendNow();
  rail_.MakeProgress().IgnoreError();
}

void RailHistory::Flush(absl::Duration limit) {
  SendAllRecords();
  rail_.SendNow();
  rail_.Await([&] { return IsAllSent(); }, Deadline(limit)).IgnoreError();
}

absl::Status RailHistory::Await(IsAwaited is_awaited, uint64_t last) {
  const auto is_done = [&] {
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node != topology_.node && is_awaited(node)) return false;
    }
    return true;
  };
  const auto has_news = [&] {
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node != topology_.node && HasNews(node, last)) return true;
    }
    return false;
  };
  is_awaited_ = &is_awaited;
  const absl::Cleanup end_wait = [&] { is_awaited_ = nullptr; };  // By an exception, too.
  absl::Status status;
  do {
    status = rail_.Await([&] { return has_news() || is_done(); }, call_->deadline,
                         [&] { SendAllRecords(); });
    // A group that has failed says why, whatever this rank calls in it afterwards.
    if (!status.ok() && rail_.is_aborted()) break;
    const absl::Status compared = CompareWhatHasCome(last);
    if (!compared.ok()) status = compared;
    // The end of a connection from which no more was awaited is for a later wait. And what came
    // last may have made room, or be what was awaited.
    const bool is_of_others = status == rail_.ended() || KindOf(status) == ErrorKind::kTimeout;
    if (!status.ok() && is_of_others && is_done()) status = absl::OkStatus();
  } while (status.ok() && !is_done());
  if (!status.ok()) {
    // One that has left may be awaited through another.
    const std::vector<int> ended = status == rail_.ended() ? RanksOf(status) : std::vector<int>();
    for (int node = 0; node < topology_.node_count(); ++node) {
      if (node == topology_.node) continue;
      const bool has_ended = std::find(ended.begin(), ended.end(), rail_.rank(node)) != ended.end();
      if (has_ended || is_awaited(node)) late_nodes_.push_back(node);
    }
  }
  return status;
}

// Where this rank is to meet the others, one that does not meet will not come to quote its call, so
// its record is news at once.
bool RailHistory::HasNews(int node, uint64_t last) const {
  const uint64_t next = peers_[node].compared + 1;
  if (next > number_ || !HasRecordCome(next, node)) return false;
  return next <= last || (next == call_number_ && !own().goes_ahead() && of(node).goes_ahead());
}

absl::Status RailHistory::CompareWhatHasCome(uint64_t last) {
  for (int node = 0; node < topology_.node_count(); ++node) {
    if (node == topology_.node) continue;
    Peer& peer = peers_[node];
    while (HasNews(node, last)) {
      SYNCLINE_RETURN_IF_ERROR(CompareRecord(peer.compared + 1, node));
      ++peer.compared;
      peer.taken = std::max(peer.taken, CallOf(peer.compared).given[node]);
    }
  }
  return absl::OkStatus();
}

void RailHistory::NoteMeeting() {
  met_ = number_;
  for (Peer& peer : peers_) peer.compared = number_;
}

// A rank's own call shows more than its record, where it is there. Ranks of which only some meet
// send each other different data.
absl::Status RailHistory::CompareRecord(uint64_t number, int node) const {
  const Call& call = CallOf(number);
  backends::FingerprintExchange exchange(call.own, 0, 1);
  exchange.Merge(call.of[node]);
  if (exchange.agreed() && call.own.goes_ahead() == call.of[node].goes_ahead() &&
      call.own.relays() == call.of[node].relays()) {
    return absl::OkStatus();
  }
  const int size = topology_.size();
  const backends::CallDescription own =
      number == call_number_ ? backends::CallDescription(*call_) : DescriptionOf(call.own, size);
  return backends::DifferentCallsError(own, rail_.rank(topology_.node),
                                       DescriptionOf(call.of[node], size), rail_.rank(node));
}

backends::Lifecycle::Awaited RailHistory::WhoIsAwaited() const {
  std::vector<int> nodes = late_nodes_;
  for (int node = 0; is_awaited_ != nullptr && node < topology_.node_count(); ++node) {
    if (node != topology_.node && (*is_awaited_)(node)) nodes.push_back(node);
  }
  backends::Lifecycle::Awaited awaited;
  if (nodes.empty()) return awaited;
  uint64_t first = number_;
  for (const int node : nodes) {
    awaited.ranks.push_back(rail_.rank(node));
    first = std::min(first, std::max(peers_[node].compared, met_) + 1);
  }
  if (first < number_ || call_->sequence != CallOf(number_).own.call.sequence) {
    awaited.call = backends::CallDescription(CallOf(first).own.call).ShortName();
  }
  std::sort(awaited.ranks.begin(), awaited.ranks.end());
  return awaited;
}

absl::Status RailHistory::Late() const {
  const backends::Lifecycle::Awaited awaited = WhoIsAwaited();
  if (awaited.ranks.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (int node = 0; node < topology_.node_count(); ++node) {
    const bool is_awaited =
        std::binary_search(awaited.ranks.begin(), awaited.ranks.end(), rail_.rank(node));
    if (is_awaited) names.push_back(rail_.name(node));
  }
  const std::string what =
      awaited.call.empty()
          ? absl::StrCat(backends::Have(awaited.ranks), " not come, sent or taken all data")
          : absl::StrCat("as far as it has told, it has not taken ", awaited.call);
  return WithRanks(TimeoutError(absl::StrCat("not complete after ",
                                             absl::FormatDuration(call_->deadline.timeout()), ": ",
                                             absl::StrJoin(names, ", "), " ", what)),
                   awaited.ranks);
}

}  // namespace syncline::hierarchical
