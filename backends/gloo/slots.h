// The numbers by which Gloo tells the messages of one pair of ranks apart.
#ifndef SYNCLINE_BACKENDS_GLOO_SLOTS_H_
#define SYNCLINE_BACKENDS_GLOO_SLOTS_H_

#include <cstdint>

namespace syncline::gloo_backend {

// Each is the first slot of a range that has its highest byte to itself. Gloo's own collectives use
// the highest bytes 1 to 8. The comment says what is added to the first slot.
inline constexpr uint64_t kCollectiveSlot = uint64_t{0x10} << 56;   // + number of the operation
inline constexpr uint64_t kHeaderSlot = uint64_t{0x11} << 56;       // + tag
inline constexpr uint64_t kElementsSlot = uint64_t{0x12} << 56;     // + number and tag of a message
inline constexpr uint64_t kFingerprintSlot = uint64_t{0x13} << 56;  // + round
inline constexpr uint64_t kCallSlot = uint64_t{0x14} << 56;         // GatherCalls
inline constexpr uint64_t kDrainSlot = uint64_t{0x15} << 56;        // see Mesh::Leave
inline constexpr uint64_t kWatchSlot = uint64_t{0x20} << 56;        // + number of the receive

}  // namespace syncline::gloo_backend

#endif  // SYNCLINE_BACKENDS_GLOO_SLOTS_H_
