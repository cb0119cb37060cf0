// The numbers by which Gloo tells messages of one pair of ranks apart.
#ifndef SYNCLINE_BACKENDS_GLOO_SLOTS_H_
#define SYNCLINE_BACKENDS_GLOO_SLOTS_H_

#include <cstdint>

namespace syncline {

// Each is the first of a range with that highest byte. Those of Gloo's own collectives have 1 to 8.
inline constexpr uint64_t kCollectiveSlot = uint64_t{0x10} << 56;  // + number of the operation
inline constexpr uint64_t kHeaderSlot = uint64_t{0x11} << 56;      // + tag
inline constexpr uint64_t kElementsSlot = uint64_t{0x12} << 56;  // + number and tag of the message
inline constexpr uint64_t kBallotSlot = uint64_t{0x13} << 56;    // + round
inline constexpr uint64_t kCallSlot = uint64_t{0x14} << 56;      // + number of the operation
inline constexpr uint64_t kLastSlot = uint64_t{0x15} << 56;      // of a rank that leaves
inline constexpr uint64_t kWatchSlot = uint64_t{0x20} << 56;     // + number of the alarm

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_GLOO_SLOTS_H_
