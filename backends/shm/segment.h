// Memory that processes of one host share.
#ifndef SYNCLINE_BACKENDS_SHM_SEGMENT_H_
#define SYNCLINE_BACKENDS_SHM_SEGMENT_H_

#include <cstddef>

#include "absl/status/statusor.h"

namespace syncline {

// A mapping of anonymous memory (memfd_create), which has no name in any file system and is gone
// when the last process that maps it is. Its pages are reserved when it is made, and its size is
// sealed: no access to it can fail later. Movable.
class Segment {
 public:
  // Zeros. BackendError if there is not so much memory, or it is more than half the host's.
  static absl::StatusOr<Segment> Create(size_t size);

  // The memory of `descriptor`, which it takes. BackendError if that is not a sealed segment of at
  // least `size` bytes.
  static absl::StatusOr<Segment> Map(int descriptor, size_t size);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  char* data() const { return data_; }
  size_t size() const { return size_; }
  int descriptor() const { return descriptor_; }

  // The memory stays mapped; nobody can be given it any more.
  void CloseDescriptor();

 private:
  Segment(int descriptor, char* data, size_t size)
      : descriptor_(descriptor), data_(data), size_(size) {}

  int descriptor_;
  char* data_;
  size_t size_;
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_SEGMENT_H_
