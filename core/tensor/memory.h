// Tells how much memory this process can get. Thread-safe; reads files below /proc and /sys.
#ifndef SYNCLINE_CORE_TENSOR_MEMORY_H_
#define SYNCLINE_CORE_TENSOR_MEMORY_H_

#include <cstddef>
#include <string>

namespace syncline::tensor {

struct MemoryBudget {
  size_t available = 0;  // Bytes.
  std::string owner;     // Whose limit that is, for messages: "this host", "control group '/a'".
};

// Linux grants more memory than there is, and kills processes that then use it; so large
// allocations are checked against these first. Both respect the memory limits (memory.max, or
// memory.limit_in_bytes) of this process's control group and of those above it, less the memory in
// use there. `root` is put before the paths under /proc and /sys.
//
// The memory that can be used without swapping.
MemoryBudget AvailableMemory(const std::string& root = "");
// The largest allocation that Linux grants, which may be more than is available.
MemoryBudget LargestMemory(const std::string& root = "");

}  // namespace syncline::tensor

#endif  // SYNCLINE_CORE_TENSOR_MEMORY_H_
