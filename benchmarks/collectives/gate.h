// Where the ranks of one system start each timed call together, and leave what it took.
#ifndef SYNCLINE_BENCHMARKS_COLLECTIVES_GATE_H_
#define SYNCLINE_BENCHMARKS_COLLECTIVES_GATE_H_

#include <cstdint>

namespace syncline::benchmarks {

// How a rank waits at the gate: on a core of its own, which it gives away only after a while, or
// giving way at once to the ranks that it shares one with.
enum class Waiting { kSpin, kYield };

// Nanoseconds of the clock that all processes share.
int64_t NowNs();

// A barrier of processes or threads in a file that the runner makes, zeroed, and removes:
//   0: ranks that have arrived (uint32)   64: passages so far (uint32)
//   128: when to start (int64)           192: not 0 once a rank has given up (uint32)
//   4096: kMostIterations durations of each rank in nanoseconds (int64)
// peer.py and CollectivesPeer.java know this layout too. Thread-compatible; each rank has its own.
class Gate {
 public:
  static constexpr int kMostIterations = 4096;

  // Of a rank of `size`. Null if the file cannot be mapped; errno says why.
  static Gate* Open(const char* path, int size, Waiting waiting);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Waits for all ranks. They return at one time, within the clock's accuracy, where each has a
  // core. False if a rank has given up, or has not come for a minute.
  bool Pass();

  // Makes all ranks' calls of Pass false.
  void GiveUp();

  // Where `rank` writes its durations.
  int64_t* Durations(int rank) const;

 private:
  struct Shared;

  Gate(void* memory, int64_t bytes, int size, Waiting waiting);
  bool WaitForPassage(uint32_t passages) const;

  Shared* const shared_;
  const int64_t bytes_;
  const uint32_t size_;
  const Waiting waiting_;
};

}  // namespace syncline::benchmarks

#endif  // SYNCLINE_BENCHMARKS_COLLECTIVES_GATE_H_
