// Segment: memory that processes of one host share.
#ifndef SYNCLINE_CORE_TENSOR_SEGMENT_H_
#define SYNCLINE_CORE_TENSOR_SEGMENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace syncline::tensor {

// A mapping of anonymous memory (memfd_create). It has no name in any file system, and is gone when
// the last process that maps it is. Its size is sealed. Reserve allocates its pages: a process that
// touches a page that has not been reserved may be killed for lack of memory. Owns the mapping and
// the descriptor. Movable. Not thread-safe; synchronising access to the bytes is up to the users.
//
//   SYNCLINE_ASSIGN_OR_RETURN(Segment segment, Segment::Create(1 << 20));
//   SYNCLINE_RETURN_IF_ERROR(segment.Reserve(0, segment.size()));
//   // Pass segment.descriptor() to another process, which calls Map with it.
class Segment {
 public:
  // Tells a segment from all others of the host, while it exists.
  struct Identity {
    uint64_t device = 0;
    uint64_t inode = 0;
    bool operator==(const Identity& other) const {
      return device == other.device && inode == other.inode;
    }
  };

  // A new segment, all zeros. Takes no memory yet.
  static absl::StatusOr<Segment> Create(size_t size);

  // Bytes to be written to a segment.
  struct Part {
    size_t offset = 0;
    absl::Span<const char> bytes;
  };

  // A new segment of `size` bytes that holds these parts, in the order of their offsets, and zeros
  // between them. Returns its descriptor, which is the caller's. Costs less than Create, Reserve
  // and a copy, since this process does not map it. BackendError with sizes if there is not so much
  // memory.
  static absl::StatusOr<int> Write(size_t size, absl::Span<const Part> parts);

  // Writes the parts to the memory of `descriptor`, which has `size` bytes, and zeros between them.
  // Parts are in the order of their offsets, and do not overlap. Errors as of Write.
  static absl::Status Fill(int descriptor, size_t size, absl::Span<const Part> parts);

  // As Fill and Reserve, of a new file in /dev/shm of `size` bytes, after a look at how much memory
  // there is. BackendError with sizes, also those of /dev/shm, if there is too little.
  static absl::Status FillFile(int descriptor, size_t size, absl::Span<const Part> parts);
  static absl::Status ReserveFile(int descriptor, size_t size);

  // Maps the memory of `descriptor`, and takes ownership of it: to read and write, or to read only.
  // BackendError if it is not a sealed segment of at least `size` bytes.
  static absl::StatusOr<Segment> Map(int descriptor, size_t size);
  static absl::StatusOr<Segment> MapToRead(int descriptor, size_t size);

  // As Map, of a file in /dev/shm, which cannot be sealed: whoever shrinks it makes those who use
  // it crash. For files that only processes of this user can open.
  static absl::StatusOr<Segment> MapUnsealed(int descriptor, size_t size);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  // Requires a descriptor, as do the next two.
  Identity identity() const;

  // Allocates memory for these bytes, on the NUMA node of the calling thread. Their contents stay.
  // BackendError with sizes if there is not so much memory, or a control group allows less.
  absl::Status Reserve(size_t offset, size_t size);

  // Frees the memory of all bytes, which are then zero in every process, and no longer reserved.
  void Discard();

  // Touches all pages, so that later accesses take no page faults. Requires that all bytes have
  // been reserved.
  void Populate() const;

  // The memory stays mapped, but can no longer be passed to other processes.
  void CloseDescriptor();

 private:
  Segment(int descriptor, char* data, size_t size)
      : descriptor_(descriptor), data_(data), size_(size) {}

  static absl::StatusOr<Segment> MapAs(int protection, int descriptor, size_t size);

  int descriptor_;
  char* data_;
  size_t size_;
};

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_SEGMENT_H_
