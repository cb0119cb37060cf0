#include "core/queue/message.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor/tensor_checks.h"
#include "syncline/check.h"
#include "syncline/device.h"
#include "syncline/status.h"

namespace syncline::queue {
namespace {

// What a message begins with; a TensorFields and the lengths of the dimensions, each an int64_t,
// follow for each tensor.
struct MessageFields {
  uint32_t tensors;
  uint32_t head_size;  // In bytes, with this.
  uint64_t note_size;
};
struct TensorFields {
  uint32_t dtype;
  uint32_t rank;
};

// Linux maps huge pages where it may, and memory is asked for them: then it faults in a 512th.
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMinForHugePages = 2 * kHugePage;

absl::StatusOr<Tensor> NewTensor(DType dtype, absl::Span<const int64_t> shape, size_t size) {
  const auto alignment = std::align_val_t{size >= kMinForHugePages ? kHugePage : kAlignment};
  void* const data = ::operator new(std::max<size_t>(size, 1), alignment, std::nothrow);
  if (data == nullptr) {
    return BackendError(absl::StrCat("out of memory: cannot get ", size,
                                     " bytes for a tensor of a message, which is lost"));
  }
  if (size >= kMinForHugePages) madvise(data, size, MADV_HUGEPAGE);
  std::shared_ptr<void> owner(data, [alignment](void* p) { ::operator delete(p, alignment); });
  return Tensor(data, dtype, shape, {}, Device(), std::move(owner));
}

std::string TypeAndShape(DType dtype, absl::Span<const int64_t> shape) {
  return absl::StrCat(Name(dtype), "[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace

template <typename T>
void OutgoingMessage::AppendToHead(const T& value) {
  const char* const bytes = reinterpret_cast<const char*>(&value);
  head_.insert(head_.end(), bytes, bytes + sizeof(T));
}

absl::StatusOr<OutgoingMessage> OutgoingMessage::Make(absl::Span<const Tensor> tensors,
                                                      absl::string_view note) {
  OutgoingMessage message;
  message.tensors_ = tensors;
  message.note_ = note;
  message.head_.resize(sizeof(MessageFields));
  size_t elements_size = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (tensor.device() != Device()) {
      return UnsupportedError(absl::StrCat("tensors[", i, "] (", tensor.ToString(),
                                           "): a TensorQueue holds tensors on the CPU only"));
    }
    SYNCLINE_RETURN_IF_ERROR(tensor::CheckContiguous(tensor, absl::StrCat("tensors[", i, "]")));
    message.AppendToHead(TensorFields{static_cast<uint32_t>(tensor.dtype()),
                                      static_cast<uint32_t>(tensor.shape().size())});
    for (const int64_t length : tensor.shape()) message.AppendToHead(length);
    elements_size += Align(tensor.nbytes());
  }
  const MessageFields fields{static_cast<uint32_t>(tensors.size()),
                             static_cast<uint32_t>(message.head_.size()), note.size()};
  std::memcpy(message.head_.data(), &fields, sizeof(fields));
  message.size_ = Align(message.head_.size() + note.size()) + elements_size;
  return message;
}

void OutgoingMessage::Write(const QueueLayout& layout, uint64_t begin) const {
  layout.CopyIn(begin, head_.data(), head_.size());
  layout.CopyIn(begin + head_.size(), note_.data(), note_.size());
  uint64_t at = begin + Align(head_.size() + note_.size());
  for (const Tensor& tensor : tensors_) {
    layout.CopyIn(at, tensor.data(), tensor.nbytes());
    at += Align(tensor.nbytes());
  }
}

absl::StatusOr<IncomingMessage> IncomingMessage::Read(const QueueLayout& layout, uint64_t begin,
                                                      size_t size) {
  const absl::Status broken =
      BackendError("the queue's memory is damaged: a message makes no sense");
  if (size < sizeof(MessageFields) || size > layout.capacity()) return broken;
  MessageFields fields;
  layout.CopyOut(begin, &fields, sizeof(fields));
  if (fields.head_size < sizeof(fields) || fields.head_size > size ||
      fields.note_size > size - fields.head_size) {
    return broken;
  }
  absl::InlinedVector<char, 256> head(fields.head_size);
  layout.CopyOut(begin, head.data(), head.size());
  size_t at = sizeof(fields);
  const auto take = [&](auto* value) {
    if (head.size() - at < sizeof(*value)) return false;
    std::memcpy(value, head.data() + at, sizeof(*value));
    at += sizeof(*value);
    return true;
  };
  IncomingMessage message(layout);
  message.begin_ = begin;
  message.note_offset_ = head.size();
  message.note_size_ = fields.note_size;
  size_t offset = Align(head.size() + fields.note_size);
  for (uint32_t i = 0; i < fields.tensors; ++i) {
    TensorFields tensor;
    if (!take(&tensor) || tensor.dtype >= AllDTypes().size()) return broken;
    TensorHead known{static_cast<DType>(tensor.dtype), {}, offset, 0};
    for (uint32_t d = 0; d < tensor.rank; ++d) {
      int64_t length;
      if (!take(&length)) return broken;
      known.shape.push_back(length);
    }
    if (!CheckShape(known.dtype, known.shape).ok()) return broken;
    known.size = Tensor(nullptr, known.dtype, known.shape).nbytes();
    if (offset > size || known.size > size - offset) return broken;
    offset += Align(known.size);
    message.tensors_.push_back(std::move(known));
  }
  if (offset != size) return broken;
  return message;
}

absl::Status IncomingMessage::CheckFits(absl::Span<const Tensor> tensors) const {
  bool fits = tensors.size() == tensors_.size();
  for (size_t i = 0; fits && i < tensors.size(); ++i) {
    fits = tensors[i].dtype() == tensors_[i].dtype &&
           tensors[i].shape() == absl::MakeConstSpan(tensors_[i].shape);
  }
  if (fits) return absl::OkStatus();
  const auto describe = [](std::string* out, const Tensor& tensor) {
    absl::StrAppend(out, TypeAndShape(tensor.dtype(), tensor.shape()));
  };
  return ArgumentError(absl::StrCat("the next message, ", ToString(), ", does not fit the tensors ",
                                    "to receive into, (", absl::StrJoin(tensors, ", ", describe),
                                    "); it stays in the queue"));
}

absl::StatusOr<std::vector<Tensor>> IncomingMessage::Allocate() const {
  std::vector<Tensor> tensors;
  tensors.reserve(tensors_.size());
  for (const TensorHead& head : tensors_) {
    SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor, NewTensor(head.dtype, head.shape, head.size));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

void IncomingMessage::ReadInto(absl::Span<const Tensor> tensors) const {
  SYNCLINE_DCHECK(CheckFits(tensors).ok());
  for (size_t i = 0; i < tensors.size(); ++i) {
    layout_.CopyOut(begin_ + tensors_[i].offset, tensors[i].data(), tensors[i].nbytes());
  }
}

std::string IncomingMessage::ReadNote() const {
  std::string note(note_size_, '\0');
  layout_.CopyOut(begin_ + note_offset_, note.data(), note.size());
  return note;
}

std::string IncomingMessage::ToString() const {
  const auto describe = [](std::string* out, const TensorHead& head) {
    absl::StrAppend(out, TypeAndShape(head.dtype, head.shape));
  };
  return absl::StrCat("(", absl::StrJoin(tensors_, ", ", describe), ")");
}

}  // namespace syncline::queue
