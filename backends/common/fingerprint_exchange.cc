#include "backends/common/fingerprint_exchange.h"

#include <algorithm>
#include <cstring>

#include "core/base/hash.h"

namespace syncline::backends {
namespace {

// Bits of FingerprintRecord::flags.
constexpr uint64_t kDisagree = 1;
constexpr uint64_t kUneven = 2;
constexpr uint64_t kGoesAhead = 4;
constexpr uint64_t kRelays = 8;

int64_t EvenCount(const Collective& call) {
  const int64_t first =
      call.kind == OpKind::kAllGather ? call.outputs[0].numel() : call.inputs[0].numel();
  const auto differs = [&](const Tensor& tensor) { return tensor.numel() != first; };
  const bool even = std::none_of(call.inputs.begin(), call.inputs.end(), differs) &&
                    std::none_of(call.outputs.begin(), call.outputs.end(), differs);
  return even ? first : -1;
}

}  // namespace

// The fingerprint leaves out the sizes of all_to_all. Where all of them are the same, `even` shows
// that they fit, at the price of no other message. Of other operations it is for messages alone.
FingerprintRecord FingerprintRecord::Of(const CallContext& context) {
  FingerprintRecord record = {CallFingerprint::Of(context), 0, 0};
  if (!HasFixedSize(context.collective->kind)) {
    record.even = EvenCount(*context.collective);
    if (record.even < 0) record.flags |= kUneven;
  }
  return record;
}

void FingerprintRecord::SetGoesAhead() { flags |= kGoesAhead; }

bool FingerprintRecord::goes_ahead() const { return (flags & kGoesAhead) != 0; }

void FingerprintRecord::SetRelays() { flags |= kRelays; }

bool FingerprintRecord::relays() const { return (flags & kRelays) != 0; }

bool FingerprintRecord::is_rejected() const { return (flags & kDisagree) != 0; }

uint64_t HashOf(const FingerprintRecord& record) {
  uint64_t words[sizeof(CallFingerprint) / sizeof(uint64_t)];
  std::memcpy(words, &record.call, sizeof(words));
  base::WordHash hash;
  for (const uint64_t word : words) hash.Add(word);
  return hash.value();
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
  if (record_.call != received.call) record_.flags |= kDisagree;
  if (record_.even != received.even) record_.flags |= kUneven;
}

void FingerprintExchange::SetEvenCount(int64_t count) {
  record_.even = count;
  if (count < 0) record_.flags |= kUneven;
}

void FingerprintExchange::Reject() { record_.flags |= kDisagree; }

bool FingerprintExchange::agreed() const { return (record_.flags & kDisagree) == 0; }

bool FingerprintExchange::all_even() const { return (record_.flags & kUneven) == 0; }

}  // namespace syncline::backends
