// How data come into memory that other ranks read.
#ifndef SYNCLINE_BACKENDS_SHM_WRITER_H_
#define SYNCLINE_BACKENDS_SHM_WRITER_H_

#include <atomic>
#include <cstddef>

namespace syncline {

// Brings the line to this core, and out of all others.
inline void PrefetchToWrite(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Copies past the caches. What is read after a release store that follows is complete.
void StreamingCopy(void* to, const void* from, size_t bytes);

// Copies in the way that is the faster one at present. Between cores that share a cache, that is
// through the cache. Between others, a line that the reader still has in its own costs the writer
// 20 ns and more, one after the other; then it is faster to write past the caches, and read from
// main memory. Where ranks run may change at any time, so this goes by what a copy took: if it was
// slow, the next ones go past the caches, until another trial. Thread-safe.
class Writer {
 public:
  // Neither may overlap the other. Before a release store that tells a reader.
  void Write(void* to, const void* from, size_t bytes);

  // Whether the next copy, unless it is short, will go past the caches.
  bool streams() const { return until_trial_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<int> until_trial_{0};  // Copies.
};

}  // namespace syncline

#endif  // SYNCLINE_BACKENDS_SHM_WRITER_H_
