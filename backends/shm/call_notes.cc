#include "backends/shm/call_notes.h"

#include <algorithm>
#include <cstring>

#include "core/group/backend.h"

namespace syncline {
namespace {

// FNV-1a (G. Fowler, L. C. Noll, K.-P. Vo), a word at a time.
uint64_t Mix(uint64_t hash, uint64_t word) { return (hash ^ word) * 0x100000001b3; }

// Tells a note from zeros.
constexpr uint64_t kNoted = 1 << 8;

// The kind comes from memory that other processes write.
Call CallOf(uint64_t kind, uint64_t sequence, int peer) {
  Call call{AllOpKinds()[std::min<uint64_t>(kind, AllOpKinds().size() - 1)], sequence};
  call.peer = peer;
  return call;
}

}  // namespace

void SetWords(const Call& call, Header::Content& header) {
  header.words[0] = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
                    static_cast<uint64_t>(call.op) << 16 |
                    static_cast<uint64_t>(static_cast<uint32_t>(call.peer)) << 32;
  header.words[1] = call.sequence;
  header.words[2] = static_cast<uint64_t>(call.count);
  header.words[3] = call.form;
  if (call.counts.empty()) return;
  // The rank's own part may differ; so may all parts of all_to_all.
  header.words[2] = call.counts.size();
  if (call.kind == OpKind::kAllToAll) return;
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t count : call.counts) hash = Mix(hash, static_cast<uint64_t>(count));
  header.words[3] ^= hash;
}

bool SameWords(const Header::Content& a, const Header::Content& b) {
  return std::memcmp(a.words, b.words, sizeof(a.words)) == 0;
}

std::string NameOfWords(const Header::Content& header) {
  return CallOf(header.words[0] & 0xff, header.words[1], -1).ShortName();
}

void SetNote(const Call& call, Note& note) {
  const uint64_t peer = static_cast<uint32_t>(call.peer);
  note.what.store(kNoted | static_cast<uint64_t>(call.kind) | peer << 32,
                  std::memory_order_relaxed);
  note.sequence.store(call.sequence, std::memory_order_relaxed);
}

std::string NameOf(const Note& note) {
  const uint64_t what = note.what.load(std::memory_order_relaxed);
  if ((what & kNoted) == 0) return "";
  const int peer = static_cast<int>(static_cast<uint32_t>(what >> 32));
  return CallOf(what & 0xff, note.sequence.load(std::memory_order_relaxed), peer).ShortName();
}

}  // namespace syncline
