#include "backends/shm/call_fingerprint.h"

#include <algorithm>
#include <cstring>

#include "core/base/hash.h"
#include "core/group/backend.h"

namespace syncline::shm {
namespace {

// Distinguishes a recorded call from the zeros of a new segment.
constexpr uint64_t kIsRecorded = 1 << 8;

// The kind comes from memory that other processes write, so it may be out of range.
Call CallOf(uint64_t kind, uint64_t sequence, int peer) {
  Call call{AllOpKinds()[std::min<uint64_t>(kind, AllOpKinds().size() - 1)], sequence};
  call.peer = peer;
  return call;
}

}  // namespace

void SetFingerprint(const Call& call, EntrySlot::Content& content) {
  uint64_t* const fingerprint = content.fingerprint;
  fingerprint[0] = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                   static_cast<uint64_t>(call.op) << 16 |
                   static_cast<uint64_t>(static_cast<uint32_t>(call.peer)) << 32;
  fingerprint[1] = call.sequence;
  fingerprint[2] = static_cast<uint64_t>(call.count);
  fingerprint[3] = call.form;
  if (call.counts.empty()) return;
  // The rank's own count may differ from those of others, and so may all counts of all_to_all:
  // CollectiveEntry::CheckSplits compares these.
  fingerprint[2] = call.counts.size();
  if (call.kind == OpKind::kAllToAll) return;
  WordHash hash;
  for (int64_t count : call.counts) hash.Add(static_cast<uint64_t>(count));
  fingerprint[3] ^= hash.value();
}

bool SameFingerprint(const EntrySlot::Content& a, const EntrySlot::Content& b) {
  return std::memcmp(a.fingerprint, b.fingerprint, sizeof(a.fingerprint)) == 0;
}

std::string NameOfFingerprint(const EntrySlot::Content& content) {
  return CallOf(content.fingerprint[0] & 0xff, content.fingerprint[1], -1).ShortName();
}

// Relaxed, here and below: a reader that sees halves of two calls only names a wrong one.
void RecordCall(const Call& call, LastCall& last) {
  const uint64_t peer = static_cast<uint32_t>(call.peer);
  last.what.store(kIsRecorded | static_cast<uint64_t>(call.kind) | peer << 32,
                  std::memory_order_relaxed);
  last.sequence.store(call.sequence, std::memory_order_relaxed);
}

std::string NameOf(const LastCall& last) {
  const uint64_t what = last.what.load(std::memory_order_relaxed);
  if ((what & kIsRecorded) == 0) return "";
  const int peer = static_cast<int>(static_cast<uint32_t>(what >> 32));
  return CallOf(what & 0xff, last.sequence.load(std::memory_order_relaxed), peer).ShortName();
}

}  // namespace syncline::shm
