#include "backends/common/fingerprint_exchange.h"

#include <algorithm>
#include <vector>

#include "core/base/hash.h"

namespace syncline {
namespace {

// Bits of FingerprintRecord::flags.
constexpr uint8_t kDisagree = 1;
constexpr uint8_t kUneven = 2;

template <typename Words>
uint64_t HashWords(const Words& words) {
  WordHash hash;
  for (const auto word : words) hash.Add(static_cast<uint64_t>(word));
  return hash.value();
}

int64_t EvenCount(const Call& call) {
  auto differs = [&](int64_t count) { return count != call.counts[0]; };
  const bool even = std::none_of(call.counts.begin(), call.counts.end(), differs) &&
                    std::none_of(call.expected.begin(), call.expected.end(), differs);
  return even ? call.counts[0] : -1;
}

bool SameCall(const FingerprintRecord& a, const FingerprintRecord& b) {
  return a.sequence == b.sequence && a.count == b.count && a.lists == b.lists && a.peer == b.peer &&
         a.kind == b.kind && a.dtype == b.dtype && a.op == b.op;
}

}  // namespace

uint64_t HashOf(const FingerprintRecord& record) {
  const uint64_t words[] = {record.sequence, static_cast<uint64_t>(record.count),
                            record.lists,    static_cast<uint64_t>(record.peer),
                            record.kind,     record.dtype,
                            record.op};
  return HashWords(words);
}

FingerprintExchange::FingerprintExchange(const Call& call, int rank, int size)
    : rank_(rank), size_(size) {
  record_.sequence = call.sequence;
  record_.peer = call.peer;
  record_.kind = static_cast<uint8_t>(call.kind);
  record_.dtype = static_cast<uint8_t>(call.dtype);
  record_.op = static_cast<uint8_t>(call.op);
  // all_to_all leaves out its sizes: those of two ranks need not be equal, only fit each other.
  // That takes no more messages where all sizes are the same, which is what `even` shows.
  if (call.kind == OpKind::kAllToAll) {
    record_.even = EvenCount(call);
    if (record_.even < 0) record_.flags |= kUneven;
  } else if (call.counts.empty()) {
    record_.count = call.count;
  } else {
    record_.lists = HashWords(call.counts);
  }
  record_.lists ^= call.form;
}

int FingerprintExchange::Rounds(int size) {
  int rounds = 0;
  while ((int64_t{1} << rounds) < size) ++rounds;
  return rounds;
}

int FingerprintExchange::To(int round, int rank, int size) {
  return static_cast<int>((rank + (int64_t{1} << round)) % size);
}

int FingerprintExchange::From(int round, int rank, int size) {
  return static_cast<int>((rank + size - (int64_t{1} << round)) % size);
}

void FingerprintExchange::Merge(const FingerprintRecord& received) {
  record_.flags |= received.flags;
  if (!SameCall(record_, received)) record_.flags |= kDisagree;
  if (record_.even != received.even) record_.flags |= kUneven;
}

void FingerprintExchange::Reject() { record_.flags |= kDisagree; }

bool FingerprintExchange::agreed() const { return (record_.flags & kDisagree) == 0; }

bool FingerprintExchange::all_even() const { return (record_.flags & kUneven) == 0; }

}  // namespace syncline
