#include "core/tensor/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/tensor/memory.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::tensor {
namespace {

#ifndef MFD_NOEXEC_SEAL  // Linux 6.3.
#define MFD_NOEXEC_SEAL 8U
#endif

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr size_t kPage = 4096;  // Or larger,
constexpr size_t kLargestPage = 64 << 10;

absl::Status Failed(absl::string_view what, size_t size, absl::string_view why) {
  return BackendError(
      absl::StrCat("cannot ", what, " shared memory of ", size >> 10, " KiB: ", why));
}

absl::Status Failed(absl::string_view what, size_t size) {
  return Failed(what, size, std::strerror(errno));
}

// What errno says; of a full file system, how large it is.
std::string WhyNoRoom(int descriptor) {
  std::string why = std::strerror(errno);
  struct statvfs system = {};
  if (errno != ENOSPC || fstatvfs(descriptor, &system) != 0 || system.f_blocks == 0) return why;
  return absl::StrCat(why, ": /dev/shm has ", (system.f_blocks * system.f_frsize) >> 10,
                      " KiB, of which ", (system.f_bavail * system.f_frsize) >> 10,
                      " KiB are free; make it larger (mount -o remount,size=..., --shm-size of "
                      "Docker), or use the sharing strategy file_descriptor");
}

// Between two looks at how much memory there is.
constexpr size_t kSlice = 64 << 20;
// Of a piece of a slice, where signals interrupt it.
constexpr size_t kSmallestPiece = kLargestPage;
constexpr int kMostInterruptions = 1000;

// Until Linux 6.11 a signal undoes all that a call has reserved: where signals keep coming, only
// calls that are short enough succeed. 0, or the error.
int Allocate(int descriptor, size_t offset, size_t size) {
  size_t piece = size;
  int interruptions = 0;
  while (size > 0) {
    piece = std::min(piece, size);
    const int error =
        posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(piece));
    if (error == EINTR && ++interruptions < kMostInterruptions) {
      piece = std::max(piece / 2, std::min(piece, kSmallestPiece));
      continue;
    }
    if (error != 0) return error;
    interruptions = 0;
    offset += piece;
    size -= piece;
  }
  return 0;
}

// A descriptor of a sealed segment.
absl::StatusOr<int> MakeSealed(size_t size) {
  // Linux 6.3 to 6.5 refuse any other where vm.memfd_noexec is 2; older ones know no such flag.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int descriptor = memfd_create("syncline", kFlags | MFD_NOEXEC_SEAL);
  if (descriptor < 0 && errno == EINVAL) descriptor = memfd_create("syncline", kFlags);
  if (descriptor < 0 && (errno == EMFILE || errno == ENFILE)) {
    return Failed("make", size,
                  absl::StrCat(std::strerror(errno),
                               ": each shared array takes one until it is freed; free or receive "
                               "some before making more, send several in one message, or raise "
                               "the limit (ulimit -n)"));
  }
  if (descriptor < 0) return Failed("make", size);
  absl::Cleanup close_it = [&] { close(descriptor); };
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) return Failed("size", size);
  if (fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return Failed("seal", size);
  std::move(close_it).Cancel();
  return descriptor;
}

absl::Status CheckAvailable(size_t size) {
  const MemoryBudget memory = AvailableMemory();
  if (size <= memory.available) return absl::OkStatus();
  return Failed("reserve", size,
                absl::StrCat(memory.owner, " has only ", memory.available >> 10, " KiB available"));
}

// As CheckAvailable. What it has found is good for a while, and for a small part of the memory, as
// it costs more than the writing of a small segment.
absl::Status CheckAvailableAtTimes(size_t size) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kWhile = std::chrono::milliseconds(10);
  constexpr int64_t kPart = 16 << 20;
  static std::atomic<int64_t> until{0}, granted{0};
  const int64_t now = Clock::now().time_since_epoch().count();
  const auto wanted = static_cast<int64_t>(size);
  if (wanted <= kPart && now < until.load(std::memory_order_relaxed) &&
      granted.fetch_sub(wanted, std::memory_order_relaxed) >= wanted) {
    return absl::OkStatus();
  }
  SYNCLINE_RETURN_IF_ERROR(CheckAvailable(size + kPart));
  granted.store(kPart, std::memory_order_relaxed);
  until.store((Clock::now() + kWhile).time_since_epoch().count(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status ReserveBytes(int descriptor, size_t offset, size_t size) {
  for (size_t done = 0; done < size;) {
    // Others take memory at the same time.
    const MemoryBudget memory = AvailableMemory();
    if (size - done > memory.available) {
      return Failed(
          "reserve", size,
          absl::StrCat(memory.owner, " has only ", memory.available >> 10, " KiB available",
                       done == 0 ? "" : absl::StrCat(" for the last ", (size - done) >> 10)));
    }
    const size_t slice = std::min(kSlice, size - done);
    const int error = Allocate(descriptor, offset + done, slice);
    if (error != 0) {
      errno = error;
      return Failed("reserve", size, WhyNoRoom(descriptor));
    }
    done += slice;
  }
  return absl::OkStatus();
}

// Writes bytes one after another to a file of `size` bytes: small pieces together, in one call.
class FileWriter {
 public:
  FileWriter(int descriptor, size_t size) : descriptor_(descriptor), size_(size) {}

  // The bytes must live until Flush returns.
  absl::Status Add(absl::Span<const char> bytes) {
    if (bytes.empty()) return absl::OkStatus();
    if (bytes.size() >= kLargePiece) {
      SYNCLINE_RETURN_IF_ERROR(Flush());
      return WriteAll(bytes);
    }
    pieces_.push_back({const_cast<char*>(bytes.data()), bytes.size()});
    return pieces_.size() == kMostPieces ? Flush() : absl::OkStatus();
  }

  absl::Status Flush() {
    if (pieces_.empty()) return absl::OkStatus();
    const ssize_t result = pwritev(descriptor_, pieces_.data(), static_cast<int>(pieces_.size()),
                                   static_cast<off_t>(done_));
    size_t written = result > 0 ? static_cast<size_t>(result) : 0;
    done_ += written;
    for (const iovec& piece : pieces_) {  // What is left says why.
      const size_t skipped = std::min(written, piece.iov_len);
      written -= skipped;
      SYNCLINE_RETURN_IF_ERROR(
          WriteAll({static_cast<const char*>(piece.iov_base) + skipped, piece.iov_len - skipped}));
    }
    pieces_.clear();
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kLargePiece = 64 << 10;
  static constexpr size_t kMostPieces = 128;

  absl::Status WriteAll(absl::Span<const char> bytes) {
    for (bool is_first = true; !bytes.empty();) {
      // In slices, since others take memory at the same time.
      if (!is_first) SYNCLINE_RETURN_IF_ERROR(CheckAvailable(bytes.size()));
      const ssize_t written = pwrite(descriptor_, bytes.data(), std::min(kSlice, bytes.size()),
                                     static_cast<off_t>(done_));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return Failed("write", size_, WhyNoRoom(descriptor_));
      bytes.remove_prefix(static_cast<size_t>(written));
      done_ += static_cast<size_t>(written);
      is_first = false;
    }
    return absl::OkStatus();
  }

  const int descriptor_;
  const size_t size_;
  size_t done_ = 0;
  absl::InlinedVector<iovec, 8> pieces_;
};

}  // namespace

absl::StatusOr<Segment> Segment::Create(size_t size) {
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor, MakeSealed(size));
  return Map(descriptor, size);
}

absl::StatusOr<int> Segment::Write(size_t size, absl::Span<const Part> parts) {
  SYNCLINE_RETURN_IF_ERROR(CheckAvailableAtTimes(size));
  SYNCLINE_ASSIGN_OR_RETURN(const int descriptor, MakeSealed(size));
  absl::Cleanup close_it = [&] { close(descriptor); };
  SYNCLINE_RETURN_IF_ERROR(Fill(descriptor, size, parts));
  std::move(close_it).Cancel();
  return descriptor;
}

absl::Status Segment::Fill(int descriptor, size_t size, absl::Span<const Part> parts) {
  static const char kZeros[kPage] = {};
  FileWriter writer(descriptor, size);
  size_t end = 0;
  for (const Part& part : parts) {
    SYNCLINE_DCHECK(part.offset >= end && part.offset <= size &&
                    part.bytes.size() <= size - part.offset);
    while (end < part.offset) {
      const size_t gap = std::min(part.offset - end, sizeof kZeros);
      SYNCLINE_RETURN_IF_ERROR(writer.Add({kZeros, gap}));
      end += gap;
    }
    SYNCLINE_RETURN_IF_ERROR(writer.Add(part.bytes));
    end += part.bytes.size();
  }
  return writer.Flush();
}

absl::Status Segment::FillFile(int descriptor, size_t size, absl::Span<const Part> parts) {
  SYNCLINE_RETURN_IF_ERROR(CheckAvailableAtTimes(size));
  return Fill(descriptor, size, parts);
}

absl::Status Segment::ReserveFile(int descriptor, size_t size) {
  return ReserveBytes(descriptor, 0, size);
}

absl::StatusOr<Segment> Segment::Map(int descriptor, size_t size) {
  return MapAs(PROT_READ | PROT_WRITE, descriptor, size);
}

absl::StatusOr<Segment> Segment::MapUnsealed(int descriptor, size_t size) {
  absl::Cleanup close_it = [&] { close(descriptor); };
  struct stat status;
  if (fstat(descriptor, &status) != 0) return Failed("map", size);
  if (static_cast<size_t>(status.st_size) < size) {
    return BackendError("shared memory is smaller than its sender says");
  }
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return Failed("map", size);
  std::move(close_it).Cancel();
  return Segment(descriptor, static_cast<char*>(data), size);
}

absl::StatusOr<Segment> Segment::MapToRead(int descriptor, size_t size) {
  return MapAs(PROT_READ, descriptor, size);
}

absl::StatusOr<Segment> Segment::MapAs(int protection, int descriptor, size_t size) {
  absl::Cleanup close_it = [&] { close(descriptor); };
  struct stat status;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(descriptor, &status) != 0 ||
      static_cast<size_t>(status.st_size) < size) {
    return BackendError("what a peer handed over is no sealed segment of the size agreed on");
  }
  void* const data = mmap(nullptr, size, protection, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return Failed("map", size);
  std::move(close_it).Cancel();
  return Segment(descriptor, static_cast<char*>(data), size);
}

Segment::Segment(Segment&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Segment::~Segment() {
  CloseDescriptor();
  if (data_ != nullptr) munmap(data_, size_);
}

Segment::Identity Segment::identity() const {
  SYNCLINE_DCHECK(descriptor_ >= 0);
  struct stat status = {};
  fstat(descriptor_, &status);
  return {status.st_dev, status.st_ino};
}

absl::Status Segment::Reserve(size_t offset, size_t size) {
  SYNCLINE_DCHECK(descriptor_ >= 0);
  return ReserveBytes(descriptor_, offset, size);
}

void Segment::Discard() {
  SYNCLINE_DCHECK(descriptor_ >= 0);
  const size_t whole_pages = (size_ + kLargestPage - 1) / kLargestPage * kLargestPage;
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
            static_cast<off_t>(whole_pages));
}

void Segment::Populate() const {
  const volatile char* const bytes = data_;
  for (size_t at = 0; at < size_; at += kPage) static_cast<void>(bytes[at]);
}

void Segment::CloseDescriptor() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

}  // namespace syncline::tensor
