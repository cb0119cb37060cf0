// How a message lies in the ring of a TensorQueue.
#ifndef SYNCLINE_CORE_QUEUE_MESSAGE_H_
#define SYNCLINE_CORE_QUEUE_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/queue/queue_layout.h"
#include "syncline/dtype.h"
#include "syncline/tensor.h"

namespace syncline::queue {

// message := head note padding (elements padding)*, where `padding` leads to the next multiple of
// kAlignment, and the head says how many tensors there are, their types and shapes, and how long
// the note is. Written by one process and read by another of the same build.

// A message that is to be written. Borrows the tensors and the note.
class OutgoingMessage {
 public:
  // ArgumentError for a tensor that is not contiguous, UnsupportedError for one on a device.
  static absl::StatusOr<OutgoingMessage> Make(absl::Span<const Tensor> tensors,
                                              absl::string_view note);

  size_t size() const { return size_; }  // In the ring.
  void Write(const QueueLayout& layout, uint64_t begin) const;

 private:
  OutgoingMessage() = default;
  template <typename T>
  void AppendToHead(const T& value);

  absl::InlinedVector<char, 256> head_;
  absl::Span<const Tensor> tensors_;
  absl::string_view note_;
  size_t size_ = 0;
};

// A message in the ring, from `begin` on, of `size` bytes. Nothing is read beyond these.
class IncomingMessage {
 public:
  // Reads the head. BackendError for one that cannot be.
  static absl::StatusOr<IncomingMessage> Read(const QueueLayout& layout, uint64_t begin,
                                              size_t size);

  // OK if the message can be read into `tensors`; ArgumentError that names both otherwise.
  absl::Status CheckFits(absl::Span<const Tensor> tensors) const;

  // New tensors, their elements not set. BackendError if there is no memory.
  absl::StatusOr<std::vector<Tensor>> Allocate() const;

  // Copies the elements. Requires that CheckFits(tensors) is OK.
  void ReadInto(absl::Span<const Tensor> tensors) const;
  std::string ReadNote() const;

 private:
  struct TensorHead {
    DType dtype;
    absl::InlinedVector<int64_t, 4> shape;
    size_t offset;  // Of the elements, from the message's begin.
    size_t size;    // Of the elements, in bytes.
  };

  explicit IncomingMessage(const QueueLayout& layout) : layout_(layout) {}

  std::string ToString() const;

  const QueueLayout& layout_;
  uint64_t begin_ = 0;
  absl::InlinedVector<TensorHead, 2> tensors_;
  size_t note_offset_ = 0;
  size_t note_size_ = 0;
};

}  // namespace syncline::queue

#endif  // SYNCLINE_CORE_QUEUE_MESSAGE_H_
