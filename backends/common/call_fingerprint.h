// The part of a call that ranks compare, in a fixed number of bytes.
#ifndef SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_
#define SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "syncline/backend.h"

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

  uint64_t sequence;
  int64_t count;  // Elements of this rank's tensor; 0 where ranks may pass different sizes.
  uint64_t hash;  // Of the sizes for each rank, the user's name and tensors, and the salt.
  int32_t peer;   // The root, or the other rank of a message.
  uint8_t kind;
  uint8_t dtype;
  uint8_t reduce_op;
  uint8_t reserved;  // 0.
};
static_assert(sizeof(CallFingerprint) == 32 && std::is_trivial_v<CallFingerprint>,
              "plain bytes, without padding");

inline bool operator==(const CallFingerprint& a, const CallFingerprint& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
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

}  // namespace syncline::backends

#endif  // SYNCLINE_BACKENDS_COMMON_CALL_FINGERPRINT_H_
