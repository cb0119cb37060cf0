// Memory that processes of one host share.
#ifndef SYNCLINE_CORE_TENSOR_SEGMENT_H_
#define SYNCLINE_CORE_TENSOR_SEGMENT_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace syncline {

// A mapping of anonymous memory (memfd_create), which has no name in any file system and is gone
// when the last process that maps it is. Its size is sealed; pages come with Reserve, and who is
// the first to touch one that has not been reserved may be killed for want of memory. Movable.
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

  // Zeros. Takes no memory yet.
  static absl::StatusOr<Segment> Create(size_t size);

  // The memory of `descriptor`, which it takes: to read and write, or to read only. BackendError if
  // that is not a sealed segment of at least `size` bytes.
  static absl::StatusOr<Segment> Map(int descriptor, size_t size);
  static absl::StatusOr<Segment> MapToRead(int descriptor, size_t size);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }
  // Requires a descriptor, as do the next two.
  Identity identity() const;

  // Gets memory for these bytes, on the NUMA node of the calling thread. What is there stays.
  // BackendError with sizes if there is not so much, be it for a limit of a control group.
  absl::Status Reserve(size_t offset, size_t size);

  // Gives back the memory of all bytes, which are zero then, in every process. They are no longer
  // reserved.
  void Discard();

  // Makes later accesses free of page faults. All bytes must have been reserved.
  void Populate() const;

  // The memory stays mapped; nobody can be given it any more.
  void CloseDescriptor();

 private:
  Segment(int descriptor, char* data, size_t size)
      : descriptor_(descriptor), data_(data), size_(size) {}

  static absl::StatusOr<Segment> MapAs(int protection, int descriptor, size_t size);

  int descriptor_;
  char* data_;
  size_t size_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TENSOR_SEGMENT_H_
