#include "backends/nccl/testing/fake_nccl/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <new>
#include <random>

namespace fake_nccl {
namespace {

using syncline::nccl::NcclUniqueId;

constexpr uint64_t kMagic = 0x66616b656e63636c;

// The contents of an NcclUniqueId.
struct Id {
  uint64_t magic;
  uint64_t token;  // Also the first word of the file: a pid and a descriptor may be used again.
  int32_t pid;
  int32_t fd;
};
static_assert(sizeof(Id) <= sizeof(NcclUniqueId));

Id Unpack(const NcclUniqueId& id) {
  Id unpacked;
  std::memcpy(&unpacked, id.internal, sizeof unpacked);
  return unpacked;
}

// Files that this process has made, and segments that it has mapped, by their tokens.
struct Registry {
  std::mutex mutex;
  std::map<uint64_t, int> files;
  std::map<uint64_t, std::weak_ptr<Segment>> segments;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

uint64_t RandomToken() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

// A descriptor that is closed at the end.
struct Fd {
  int value;
  ~Fd() {
    if (value >= 0) close(value);
  }
};

}  // namespace

size_t Ring::Write(const void* from, size_t bytes) {
  const uint64_t written = written_.load(std::memory_order_relaxed);
  const uint64_t room = kRingBytes - (written - read_.load(std::memory_order_acquire));
  const size_t count = std::min<size_t>(bytes, room);
  const size_t at = written % kRingBytes;
  const size_t first = std::min(count, kRingBytes - at);
  if (first > 0) std::memcpy(data_ + at, from, first);
  if (count > first) {
    std::memcpy(data_, static_cast<const unsigned char*>(from) + first, count - first);
  }
  written_.store(written + count, std::memory_order_release);
  return count;
}

size_t Ring::Read(void* to, size_t bytes) {
  if (is_lost_.load() != 0) return 0;
  const uint64_t read = read_.load(std::memory_order_relaxed);
  const size_t count = std::min<size_t>(bytes, written_.load(std::memory_order_acquire) - read);
  const size_t at = read % kRingBytes;
  const size_t first = std::min(count, kRingBytes - at);
  if (first > 0) std::memcpy(to, data_ + at, first);
  if (count > first) std::memcpy(static_cast<unsigned char*>(to) + first, data_, count - first);
  read_.store(read + count, std::memory_order_release);
  return count;
}

struct Segment::Header {
  uint64_t token;
  std::atomic<int32_t> ranks;
  std::atomic<int32_t> arrived;
};

struct Segment::Rank {
  std::atomic<uint32_t> is_claimed;
  std::atomic<uint32_t> has_ended;
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleepers;
  RankInfo info;
};

namespace {

// Where the ranks begin, and the rings.
constexpr size_t kRanksOffset = 64;
constexpr size_t kRankBytes = 128;
constexpr size_t kRingsOffset = 20480;
static_assert(kRanksOffset + kMaxRanks * kRankBytes <= kRingsOffset);

size_t SizeFor(int ranks) {
  return kRingsOffset + sizeof(Ring) * kChannels * static_cast<size_t>(ranks) * ranks;
}

}  // namespace

Segment::Header& Segment::header() const { return *static_cast<Header*>(memory_); }

Segment::Rank& Segment::rank(int rank) const {
  static_assert(sizeof(Rank) <= kRankBytes);
  return *reinterpret_cast<Rank*>(static_cast<char*>(memory_) + kRanksOffset + rank * kRankBytes);
}

bool Segment::Create(NcclUniqueId* id, std::string* error) {
  const int fd = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (fd < 0) {
    *error = std::string("memfd_create: ") + std::strerror(errno);
    return false;
  }
  const uint64_t token = RandomToken();
  // The header, to which Open adds the rest.
  if (ftruncate(fd, kRingsOffset) != 0 || pwrite(fd, &token, sizeof token, 0) != sizeof token) {
    *error = std::string("writing to a memory file: ") + std::strerror(errno);
    close(fd);
    return false;
  }
  const Id made = {kMagic, token, getpid(), fd};
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &made, sizeof made);
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  TheRegistry().files[token] = fd;
  return true;
}

void Segment::Forget(const NcclUniqueId& id) {
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  const auto found = TheRegistry().files.find(Unpack(id).token);
  // A child of the process has the same table, and the same descriptor, as copies.
  if (found == TheRegistry().files.end()) return;
  close(found->second);
  TheRegistry().files.erase(found);
}

std::shared_ptr<Segment> Segment::Open(const NcclUniqueId& id, int ranks, std::string* error) {
  const Id known = Unpack(id);
  if (known.magic != kMagic) {
    *error = "the unique id is not one of ncclGetUniqueId";
    return nullptr;
  }
  std::shared_ptr<Segment> segment;  // Outlives the lock, which its destructor takes.
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  segment = TheRegistry().segments[known.token].lock();
  if (segment == nullptr) {
    const std::string path =
        "/proc/" + std::to_string(known.pid) + "/fd/" + std::to_string(known.fd);
    const Fd fd = {open(path.c_str(), O_RDWR | O_CLOEXEC)};
    uint64_t token = 0;
    if (fd.value < 0 || pread(fd.value, &token, sizeof token, 0) != sizeof token ||
        token != known.token) {
      *error = "the unique id was used already, or its process has gone: " + path;
      return nullptr;
    }
    segment.reset(new Segment);
    segment->bytes_ = SizeFor(ranks);
    segment->ranks_ = ranks;
    // The number of ranks is agreed on in the header, which has its size already. The file then
    // gets the one size that follows from it, by as many as come.
    void* const header =
        mmap(nullptr, kRingsOffset, PROT_READ | PROT_WRITE, MAP_SHARED, fd.value, 0);
    if (header == MAP_FAILED) {
      *error = std::string("mmap: ") + std::strerror(errno);
      return nullptr;
    }
    int32_t agreed = 0;
    const bool is_agreed =
        static_cast<Header*>(header)->ranks.compare_exchange_strong(agreed, ranks) ||
        agreed == ranks;
    munmap(header, kRingsOffset);
    if (!is_agreed) {
      *error = "another rank has said that there are " + std::to_string(agreed) + " ranks, not " +
               std::to_string(ranks);
      return nullptr;
    }
    if (ftruncate(fd.value, static_cast<off_t>(segment->bytes_)) != 0) {
      *error = std::string("ftruncate: ") + std::strerror(errno);
      return nullptr;
    }
    void* const memory = mmap(nullptr, segment->bytes_, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE, fd.value, 0);
    if (memory == MAP_FAILED) {
      *error = std::string("mmap: ") + std::strerror(errno);
      return nullptr;
    }
    segment->memory_ = memory;
    TheRegistry().segments[known.token] = segment;
  }
  if (segment->ranks_ != ranks) {
    *error = "another rank has said that there are " + std::to_string(segment->ranks_) +
             " ranks, not " + std::to_string(ranks);
    return nullptr;
  }
  return segment;
}

Segment::~Segment() {
  if (memory_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(TheRegistry().mutex);
  const auto found = TheRegistry().segments.find(header().token);
  if (found != TheRegistry().segments.end() && found->second.expired()) {
    TheRegistry().segments.erase(found);
  }
  munmap(memory_, bytes_);
}

bool Segment::Claim(int rank, const RankInfo& info) {
  Rank& claimed = this->rank(rank);
  if (claimed.is_claimed.exchange(1) != 0) return false;
  claimed.info = info;
  header().arrived.fetch_add(1);
  for (int other = 0; other < ranks_; ++other) RingDoorbell(other);
  return true;
}

bool Segment::HaveAllArrived() const { return header().arrived.load() == ranks_; }

void Segment::SetEnded(int rank) {
  this->rank(rank).has_ended.store(1);
  for (int other = 0; other < ranks_; ++other) RingDoorbell(other);
}

bool Segment::HasEnded(int rank) const { return this->rank(rank).has_ended.load() != 0; }

const RankInfo& Segment::InfoOf(int rank) const { return this->rank(rank).info; }

Ring& Segment::RingOf(Channel channel, int from, int to) {
  const size_t index =
      (static_cast<size_t>(channel) * ranks_ + static_cast<size_t>(from)) * ranks_ +
      static_cast<size_t>(to);
  return *reinterpret_cast<Ring*>(static_cast<char*>(memory_) + kRingsOffset +
                                  index * sizeof(Ring));
}

uint32_t Segment::Doorbell(int rank) const { return this->rank(rank).doorbell.load(); }

void Segment::Wait(int rank, uint32_t value) {
  Rank& waiting = this->rank(rank);
  // Peers often answer at once.
  for (int i = 0; i < 20; ++i) {
    if (waiting.doorbell.load() != value) return;
    sched_yield();
  }
  // Either RingDoorbell sees the sleeper, or the kernel sees the doorbell's new value: both words
  // are written before the other is read, sequentially consistent.
  waiting.sleepers.fetch_add(1);
  const timespec limit = {0,
                          20'000'000};  // For what rings no bell, such as an environment's stall.
  syscall(SYS_futex, &waiting.doorbell, FUTEX_WAIT, value, &limit, nullptr, 0);
  waiting.sleepers.fetch_sub(1);
}

void Segment::RingDoorbell(int rank) {
  Rank& rung = this->rank(rank);
  rung.doorbell.fetch_add(1);
  if (rung.sleepers.load() == 0) return;
  syscall(SYS_futex, &rung.doorbell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fake_nccl
