#include "backends/common/call_agreement.h"

#include <algorithm>
#include <vector>

namespace syncline {
namespace {

// Bits of Ballot::found.
constexpr uint8_t kDisagree = 1;
constexpr uint8_t kUneven = 2;

// FNV-1a, over whole numbers. Not 0 for a list that has elements, as far as anyone will see.
uint64_t Hash(const Call::Counts& numbers) {
  if (numbers.empty()) return 0;
  uint64_t hash = 14695981039346656037u;
  for (const int64_t number : numbers) {
    hash = (hash ^ static_cast<uint64_t>(number)) * 1099511628211u;
    hash ^= hash >> 32;
  }
  return hash;
}

int64_t EvenCount(const Call& call) {
  auto differs = [&](int64_t count) { return count != call.counts[0]; };
  const bool even = std::none_of(call.counts.begin(), call.counts.end(), differs) &&
                    std::none_of(call.expected.begin(), call.expected.end(), differs);
  return even ? call.counts[0] : -1;
}

bool Same(const Ballot& a, const Ballot& b) {
  return a.sequence == b.sequence && a.count == b.count && a.lists == b.lists && a.peer == b.peer &&
         a.kind == b.kind && a.dtype == b.dtype && a.op == b.op;
}

}  // namespace

CallAgreement::CallAgreement(const Call& call, int rank, int size) : rank_(rank), size_(size) {
  ballot_.sequence = call.sequence;
  ballot_.peer = call.peer;
  ballot_.kind = static_cast<uint8_t>(call.kind);
  ballot_.dtype = static_cast<uint8_t>(call.dtype);
  ballot_.op = static_cast<uint8_t>(call.op);
  if (call.kind == OpKind::kAllToAll) {
    ballot_.even = EvenCount(call);
    if (ballot_.even < 0) ballot_.found |= kUneven;
  } else if (call.counts.empty()) {
    ballot_.count = call.count;
  } else {
    ballot_.lists = Hash(call.counts);
  }
  ballot_.lists ^= call.form;
}

int CallAgreement::Rounds(int size) {
  int rounds = 0;
  while ((int64_t{1} << rounds) < size) ++rounds;
  return rounds;
}

int CallAgreement::To(int round, int rank, int size) {
  return static_cast<int>((rank + (int64_t{1} << round)) % size);
}

int CallAgreement::From(int round, int rank, int size) {
  return static_cast<int>((rank + size - (int64_t{1} << round)) % size);
}

void CallAgreement::Merge(const Ballot& received) {
  ballot_.found |= received.found;
  if (!Same(ballot_, received)) ballot_.found |= kDisagree;
  if (ballot_.even != received.even) ballot_.found |= kUneven;
}

void CallAgreement::Object() { ballot_.found |= kDisagree; }

bool CallAgreement::agreed() const { return (ballot_.found & kDisagree) == 0; }

bool CallAgreement::all_even() const { return (ballot_.found & kUneven) == 0; }

}  // namespace syncline
