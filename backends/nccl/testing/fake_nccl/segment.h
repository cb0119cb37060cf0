// The memory that the ranks of one communicator share: a ring of bytes for each pair of ranks and
// channel, and for each rank a doorbell, on which it waits.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SEGMENT_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backends/nccl/nccl_api.h"

namespace fake_nccl {

inline constexpr int kMaxRanks = 128;
inline constexpr size_t kRingBytes = 32768;

// What rings are for. Messages of one channel do not hold up those of another.
enum class Channel { kCollective, kPointToPoint, kControl };
inline constexpr int kChannels = 3;

// A queue of bytes from one rank to one other. One thread at a time writes, and one reads. All
// zeros is an empty one.
class Ring {
 public:
  // Copies as much of `bytes` bytes as there is room for, or as there is. Returns how much.
  size_t Write(const void* from, size_t bytes);
  size_t Read(void* to, size_t bytes);
  // Whether all was read that was written.
  bool IsEmpty() const { return written_.load() == read_.load(); }
  // Nothing more can be read.
  void Lose() { is_lost_.store(1); }

 private:
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> read_;
  std::atomic<uint32_t> is_lost_;
  alignas(64) unsigned char data_[kRingBytes];
};

// What a rank says of itself when it joins.
struct RankInfo {
  char bus_id[32];  // Of its device.
  int32_t device;
};

// The memory, as one process has it mapped: once, however many of its ranks use it. Nothing of it
// has a name: a memory file of the process that has made the id, which others open by /proc. So
// whoever is killed when, nothing remains.
class Segment {
 public:
  // Makes the file for a new communicator, and an id that leads to it. The file stays open in this
  // process until Close or Forget. Returns false, with `error`, where there is no memory.
  static bool Create(syncline::nccl::NcclUniqueId* id, std::string* error);
  // Closes the file of `id`, if this process has made it: everybody has mapped it, or nobody will.
  static void Forget(const syncline::nccl::NcclUniqueId& id);

  // Maps the segment of `id`, for `ranks` ranks. Null, with `error`, if the process that has made
  // the id has gone or has forgotten it, or if the first one here has said another number of ranks.
  static std::shared_ptr<Segment> Open(const syncline::nccl::NcclUniqueId& id, int ranks,
                                       std::string* error);
  ~Segment();

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // False if somebody else was rank `rank` here before.
  bool Claim(int rank, const RankInfo& info);
  bool HaveAllArrived() const;
  // That rank `rank` reads nothing more.
  void SetEnded(int rank);
  bool HasEnded(int rank) const;
  const RankInfo& InfoOf(int rank) const;

  Ring& RingOf(Channel channel, int from, int to);

  // The doorbell of a rank: Wait returns once it was rung after `value` was read, or a moment later
  // all the same; it is for loops.
  uint32_t Doorbell(int rank) const;
  void Wait(int rank, uint32_t value);
  void RingDoorbell(int rank);

 private:
  struct Header;
  struct Rank;

  Segment() = default;

  Header& header() const;
  Rank& rank(int rank) const;

  void* memory_ = nullptr;
  size_t bytes_ = 0;
  int ranks_ = 0;
};

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SEGMENT_H_
