#include "core/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace syncline {
namespace {

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

// What the kernel believes that it can hand out. As much as one likes where it does not say.
size_t AvailableMemory() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    constexpr absl::string_view kName = "MemAvailable:";
    if (line.compare(0, kName.size(), kName.data()) != 0) continue;
    return std::strtoull(line.c_str() + kName.size(), nullptr, 10) << 10;
  }
  return std::numeric_limits<size_t>::max();
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(size_t size) {
  const int descriptor = memfd_create("syncline", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return Failed("make", size);
  absl::Cleanup close_it = [&] { close(descriptor); };
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) return Failed("size", size);
  if (fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return Failed("seal", size);
  std::move(close_it).Cancel();
  return Map(descriptor, size);
}

absl::StatusOr<Segment> Segment::Map(int descriptor, size_t size) {
  return MapAs(PROT_READ | PROT_WRITE, descriptor, size);
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
  struct stat status = {};
  fstat(descriptor_, &status);
  return {status.st_dev, status.st_ino};
}

absl::Status Segment::Reserve(size_t offset, size_t size) {
  if (size == 0) return absl::OkStatus();
  // Linux would kill processes rather than say that there is not so much.
  const size_t available = AvailableMemory();
  if (size > available) {
    return Failed("reserve", size,
                  absl::StrCat("this host has only ", available >> 10, " KiB available"));
  }
  int error;
  do {
    error = posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(size));
  } while (error == EINTR);  // By a signal, which undoes all.
  return error == 0 ? absl::OkStatus() : Failed("reserve", size, std::strerror(error));
}

void Segment::Discard() {
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

}  // namespace syncline
