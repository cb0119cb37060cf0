#include "backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status Failed(absl::string_view what, size_t size, int error) {
  return BackendError(absl::StrCat("cannot ", what, " a shared segment of ", size >> 10,
                                   " KiB: ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<Segment> Segment::Create(size_t size) {
  // Linux would kill processes rather than say that there is not so much.
  const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size / page > pages / 2) return Failed("make", size, ENOMEM);
  const int descriptor = memfd_create("syncline", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return Failed("make", size, errno);
  absl::Cleanup close_it = [&] { close(descriptor); };
  if (ftruncate(descriptor, static_cast<off_t>(size)) != 0) return Failed("size", size, errno);
  // Without this, the first touch of a page that there is no memory for would kill the process.
  const int error = posix_fallocate(descriptor, 0, static_cast<off_t>(size));
  if (error != 0) return Failed("reserve", size, error);
  if (fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Failed("seal", size, errno);
  }
  std::move(close_it).Cancel();
  return Map(descriptor, size);
}

absl::StatusOr<Segment> Segment::Map(int descriptor, size_t size) {
  absl::Cleanup close_it = [&] { close(descriptor); };
  struct stat status;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(descriptor, &status) != 0 ||
      static_cast<size_t>(status.st_size) < size) {
    return BackendError("what a peer handed over is no sealed segment of the size agreed on");
  }
  void* const data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (data == MAP_FAILED) return Failed("map", size, errno);
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

void Segment::CloseDescriptor() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

}  // namespace syncline
