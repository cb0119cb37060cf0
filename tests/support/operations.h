// Operations of whole groups as data, with the elements that every rank brings and must get: the
// independent reference of what backends do.
#ifndef SYNCLINE_TESTS_SUPPORT_OPERATIONS_H_
#define SYNCLINE_TESTS_SUPPORT_OPERATIONS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "syncline/backend.h"
#include "syncline/collective.h"

namespace syncline {

// Whether this rank's own part is the same memory on both sides, where that is allowed.
enum class BufferUse { kApart, kInPlace };

// What all ranks do.
struct Spec {
  OpKind kind;
  DType dtype = DType::kFloat32;
  int64_t count = 10;  // Elements of each part.
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  BufferUse buffers = BufferUse::kApart;
  // Of all_gather, reduce_scatter and all_to_all: the sizes of the parts, over and over, in place
  // of `count`.
  std::vector<int64_t> uneven = {};
  int tag = 0;  // send, recv: between `root` and the next rank.

  // Elements of what goes from rank `from` to rank `to`; of reduce_scatter, to `to` from all; of
  // all_gather, from `from` to all.
  int64_t SizeOf(int from, int to) const;

  std::string ToString() const;
};

inline std::ostream& operator<<(std::ostream& os, const Spec& spec) {
  return os << spec.ToString();
}

// Not those between two ranks.
std::vector<OpKind> CollectiveKinds();

// The reductions that the operation takes for elements of this type; one, which means nothing, of
// an operation that does not reduce.
std::vector<ReduceOp> ReductionsOf(OpKind kind, DType dtype);

// Whether it has a part that may be in place, sizes that may differ.
bool AllowsInPlace(OpKind kind);
bool HasSplits(OpKind kind);

// One rank's arguments: Numbers for what is reduced, Bytes for what is moved.
Collective Build(const Spec& spec, int rank, int size);

// OK if `done` is what Build's operation must have become: all results right, all else untouched.
absl::Status CheckDone(const Spec& spec, const Collective& done, int rank, int size);

// OK if `made` is as Build left it: nothing has moved.
absl::Status CheckUntouched(const Spec& spec, const Collective& made, int rank, int size);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_OPERATIONS_H_
