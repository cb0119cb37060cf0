// Reads the ordinary memory of other ranks: Cross Memory Attach (CMA), process_vm_readv(2).
#ifndef SYNCLINE_BACKENDS_SHM_CROSS_MEMORY_H_
#define SYNCLINE_BACKENDS_SHM_CROSS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/common/peer_table.h"
#include "backends/shm/segment_layout.h"

namespace syncline::shm {

// What SYNCLINE_CMA says of this process.
enum class CmaPolicy {
  kOn,       // Reads the memory of others, and lets them read: where the kernel allows it.
  kOff,      // Neither.
  kPtracer,  // As kOn; and where Yama (ptrace_scope 1) lets only ancestors read a process, allows
             // every process of its user to attach to this one.
};

// "on", the default, "off" or "ptracer". Anything else is an ArgumentError.
absl::StatusOr<CmaPolicy> ReadCmaPolicy();

// OK if processes of this user, in containers like this one, can read each other's memory as far as
// this process can tell; else why not.
absl::Status CheckCma();

// One rank's part. The kernel copies from the other process's memory, which saves the copy through
// shared memory. It lets a process read what it may trace (ptrace(2),
// PTRACE_MODE_ATTACH_REALCREDS): processes of its user, unless Yama, seccomp, another pid namespace
// or a process that is not dumpable is in the way. So each rank reads a random number from each
// peer before it relies on it, which also shows that the pid is the peer's.
//
// Thread-safe once Probe has returned. Borrows the layout and the peers.
class CrossMemory {
 public:
  CrossMemory(const SegmentLayout& layout, const backends::PeerTable& peers, CmaPolicy policy)
      : layout_(layout), peers_(peers), policy_(policy), can_read_(peers.size(), 0) {}

  CrossMemory(const CrossMemory&) = delete;
  CrossMemory& operator=(const CrossMemory&) = delete;

  // Publishes this rank's number, before it joins.
  void Publish();
  // Once all ranks have joined: tries to read theirs.
  void Probe();

  // Whether this rank lets others read its memory.
  bool is_readable() const { return policy_ != CmaPolicy::kOff; }
  // Whether this rank can read that of `rank`; of all other ranks.
  bool CanRead(int rank) const { return can_read_[rank] != 0; }
  bool CanReadAll() const { return can_read_all_; }

  // Copies `bytes`, at most kMaxBytes, from `address` in the process of `rank`. Fails if the kernel
  // cannot or does not want to read any of them there, and if the pid is not that of the peer any
  // more; then some may have been copied. The same call reads the peer's random number: both come
  // from one process, though its pid may be used again, and its program replaced, at any time.
  absl::Status Read(int rank, uint64_t address, void* to, size_t bytes) const;
  static constexpr size_t kMaxBytes = size_t{16} << 20;

 private:
  const SegmentLayout& layout_;
  const backends::PeerTable& peers_;
  const CmaPolicy policy_;
  uint64_t nonce_ = 0;          // Others read it here.
  std::vector<char> can_read_;  // By rank.
  bool can_read_all_ = false;
};

}  // namespace syncline::shm

#endif  // SYNCLINE_BACKENDS_SHM_CROSS_MEMORY_H_
