// From which sizes on shm does what. Measured: see below.
#ifndef SYNCLINE_BACKENDS_SHM_TUNING_H_
#define SYNCLINE_BACKENDS_SHM_TUNING_H_

#include <cstddef>

namespace syncline {

struct Tuning {
  int ranks;           // Of groups with no more.
  size_t eager;        // Bytes that a rank lays at once, for the meeting of an operation, at most.
  size_t least_piece;  // Bytes of the smallest pieces of what is longer,
  size_t most_piece;   // and of the largest. Powers of two.
  size_t in_place;     // Bytes from which on tensors in shared memory are read in place.
  size_t in_place_piece;  // As most_piece, of these.
};

// The best of those that this measures, on the machine that it runs on, but for in_place and
// in_place_piece, which it leaves as they are:
//
//   ./bazelw run //benchmarks:shm_tuning
inline constexpr Tuning kTunings[] = {
    {2, 64 << 10, 32 << 10, 512 << 10, 64 << 10, 512 << 10},
    {4, 64 << 10, 32 << 10, 512 << 10, 64 << 10, 512 << 10},
    {256, 64 << 10, 32 << 10, 512 << 10, 64 << 10, 512 << 10},
};

// That of a group of `ranks`; for that benchmark, what the variable SYNCLINE_SHM_TUNING says in its
// place: "EAGER,LEAST_PIECE,MOST_PIECE", and perhaps ",IN_PLACE,IN_PLACE_PIECE", the same on all
// ranks.
Tuning TuningFor(int ranks);

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_TUNING_H_
