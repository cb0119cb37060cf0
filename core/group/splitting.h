// One tensor as the parts that its ranks have in it.
#ifndef SYNCLINE_CORE_GROUP_SPLITTING_H_
#define SYNCLINE_CORE_GROUP_SPLITTING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "syncline/tensor.h"

namespace syncline::group {

// Views of parts of one tensor, in order, as many as a group has ranks. Neither copied nor moved:
// it lives on the stack of a call, where few parts take no memory of the heap.
class Parts {
 public:
  // What keeps the memory: each part, as calls need that outlive the caller's tensor, or nothing.
  enum class Owner { kEachPart, kCaller };

  Parts(int size, Owner owner) : owner_(owner) {
    if (size <= kFew) return;
    many_.reset(new Room[size]);  // Not initialized.
    parts_ = many_.get();
  }
  ~Parts() {
    // Views of one dimension without an owner hold nothing that would have to be given back.
    if (owner_ == Owner::kCaller) return;
    for (size_t i = 0; i < size_; ++i) At(i)->~Tensor();
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  // Adds what Tensor::Slice returns. Not more often than the size.
  void Add(const Tensor& whole, int64_t offset, int64_t count) {
    if (owner_ == Owner::kEachPart) {
      new (&parts_[size_]) Tensor(whole.Slice(offset, count));
    } else {
      new (&parts_[size_]) Tensor(whole.SliceWithoutOwner(offset, count));
    }
    ++size_;
  }
  // Adds the first `size` parts of `whole` of `count` elements each.
  void AddEach(const Tensor& whole, int64_t count, int size) {
    if (owner_ == Owner::kEachPart) {
      for (int i = 0; i < size; ++i) Add(whole, i * count, count);
      return;
    }
    whole.CheckedOffset(0, size * count);  // Then each part is inside, too.
    for (int i = 0; i < size; ++i) {
      new (&parts_[size_ + i]) Tensor(whole, i * count, count, nullptr);
    }
    size_ += size;
  }

  absl::Span<const Tensor> list() const { return {size_ == 0 ? nullptr : At(0), size_}; }

 private:
  static constexpr int kFew = 4;
  struct alignas(Tensor) Room {
    std::byte bytes[sizeof(Tensor)];
  };
  static_assert(sizeof(Room) == sizeof(Tensor), "they follow each other like tensors");

  Tensor* At(size_t index) const { return std::launder(reinterpret_cast<Tensor*>(&parts_[index])); }

  const Owner owner_;
  size_t size_ = 0;
  Room few_[kFew];
  std::unique_ptr<Room[]> many_;
  Room* parts_ = few_;
};

// Adds to `parts` those of `whole`, in `size` equal ones, each with as many elements as `part`.
// ArgumentError if it has others.
absl::Status SplitEqually(const Tensor& whole, absl::string_view whole_name, const Tensor& part,
                          absl::string_view part_name, int size, Parts& parts);

// Adds to `parts` those of `whole` along its first dimension, as many as `splits` says; without
// splits, in `size` equal ones. ArgumentError if these do not fit.
absl::Status SplitRows(const Tensor& whole, absl::string_view name,
                       absl::Span<const int64_t> splits, int size, Parts& parts);

}  // namespace syncline::group

#endif  // SYNCLINE_CORE_GROUP_SPLITTING_H_
