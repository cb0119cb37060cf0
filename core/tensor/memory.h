// How much memory can be had.
#ifndef SYNCLINE_CORE_TENSOR_MEMORY_H_
#define SYNCLINE_CORE_TENSOR_MEMORY_H_

#include <cstddef>
#include <string>

namespace syncline {

struct MemoryBudget {
  size_t available = 0;  // Bytes.
  std::string owner;     // Whose limit that is, for messages: "this host", "control group '/a'".
};

// Linux kills processes rather than say that there is not so much. Both look at the memory limits
// (memory.max, or memory.limit_in_bytes) of this process's control group and of those above it,
// less what is in use there. `root` is put before the paths under /proc and /sys.
//
// What can be had without swapping.
MemoryBudget AvailableMemory(const std::string& root = "");
// What may be asked for at all: Linux lets a process ask for more than is available.
MemoryBudget LargestMemory(const std::string& root = "");

}  // namespace syncline

#endif  // SYNCLINE_CORE_TENSOR_MEMORY_H_
