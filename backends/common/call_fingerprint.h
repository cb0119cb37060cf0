// The part of a call that ranks compare, in a fixed number of bytes.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_

#include <cstdint>
#include <type_traits>

#include "syncline/backend.h"
#include "syncline/collective.h"
#include "syncline/dtype.h"
#include "syncline/op_kind.h"
#include "syncline/reduce_op.h"

namespace syncline::backends {

// Made from the record of a call, and sent or shared as plain bytes, in the byte order of the
// machine; all bytes are set. Those of two ranks in one collective are equal, with overwhelming
// likelihood, if and only if SameCollective is true of their descriptions. The sizes of all_to_all
// are not part of it, since they need not be equal but fit each other: see CheckSplits.
//
// A call whose ranks all pass one size can be printed from its fingerprint alone, see
// CallDescription; of the other calls it shows all but the sizes.
struct CallFingerprint {
  // Requires context.collective, whose arguments CheckArguments has accepted.
  static CallFingerprint Of(const CallContext& context);

  // The last word of a fingerprint.
  static constexpr uint64_t Pack(OpKind kind, DType dtype, ReduceOp reduce_op, int peer) {
    return uint64_t{static_cast<uint32_t>(peer)} << 32 |
           uint64_t{static_cast<uint8_t>(kind)} << 16 | uint64_t{static_cast<uint8_t>(dtype)} << 8 |
           uint64_t{static_cast<uint8_t>(reduce_op)};
  }
  // The root, or the other rank of a message; and numbers of an OpKind, a DType and a ReduceOp if
  // no broken rank has written them.
  int peer() const { return static_cast<int32_t>(packed >> 32); }
  uint8_t kind() const { return static_cast<uint8_t>(packed >> 16); }
  uint8_t dtype() const { return static_cast<uint8_t>(packed >> 8); }
  uint8_t reduce_op() const { return static_cast<uint8_t>(packed); }

  // Whole words: a processor that stores bytes and then loads the word around them waits for the
  // stores, and the way of each call would have that wait.
  uint64_t sequence;
  int64_t count;  // Elements of this rank's tensor; 0 where ranks may pass different sizes.
  uint64_t hash;  // Of the sizes for each rank, the user's name and tensors, and the salt.
  uint64_t packed;
};
static_assert(sizeof(CallFingerprint) == 32 && std::is_trivial_v<CallFingerprint>,
              "plain bytes, without padding");

inline bool operator==(const CallFingerprint& a, const CallFingerprint& b) {
  return ((a.sequence ^ b.sequence) | static_cast<uint64_t>(a.count ^ b.count) | (a.hash ^ b.hash) |
          (a.packed ^ b.packed)) == 0;
}
inline bool operator!=(const CallFingerprint& a, const CallFingerprint& b) { return !(a == b); }

// Whether the tensors of all ranks have one size, so that a fingerprint shows it.
constexpr bool HasFixedSize(OpKind kind) {
  return kind != OpKind::kAllGather && kind != OpKind::kReduceScatter && kind != OpKind::kAllToAll;
}

// The salt and the user's part of a call: what its other fields do not tell. 0 for most calls.
inline uint64_t SaltOf(const CallContext& context) {
  const Collective& call = *context.collective;
  if (call.user_tensors == nullptr || context.mismatch_check == MismatchCheck::kOff) {
    return context.salt;
  }
  return context.salt ^ call.UserHash();
}

// A hash of the sizes that a call has for each rank, which are the same on all: not of this rank's
// own tensor, whose size may differ from those of others. Of a call without a fixed size, and not
// of all_to_all.
uint64_t HashOfSizes(const Collective& call);

inline CallFingerprint CallFingerprint::Of(const CallContext& context) {
  const Collective& call = context.quoted();
  CallFingerprint fingerprint;
  fingerprint.sequence = context.sequence;
  fingerprint.count = 0;
  fingerprint.hash = SaltOf(context);
  fingerprint.packed = Pack(call.kind, call.dtype(), call.reduce_op, call.peer);
  if (HasFixedSize(call.kind)) {
    if (call.tensor != nullptr) fingerprint.count = call.tensor->numel();
  } else if (call.kind != OpKind::kAllToAll && context.step_of == nullptr) {
    fingerprint.hash ^= HashOfSizes(call);  // Of a step's call its salt shows them.
  }
  return fingerprint;
}

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_
