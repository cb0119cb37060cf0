// Chooses the CPUs of each worker: --numa-binding. All functions are thread-safe.
#ifndef SYNCLINE_LAUNCH_NUMA_H_
#define SYNCLINE_LAUNCH_NUMA_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/options/options.h"

namespace syncline::launch {

struct Cpu {
  int id = 0;
  int node = 0;    // NUMA node.
  int socket = 0;  // Physical package.
  int core = 0;    // The lowest CPU of its core: SMT siblings have the same.
  // The lowest CPU that shares its level-3 cache; its node's, if there is no such cache.
  int cache = 0;
};

struct NumaTopology {
  static constexpr int kUnknown = -1;

  std::vector<Cpu> cpus;       // The ones that this process may use, ordered by id.
  std::vector<int> gpu_nodes;  // The NUMA node of each GPU, in the order in which workers see them.
};

// Reads /sys, and /proc/driver/nvidia for GPUs (without that driver: AMD's in /sys/class/drm).
// `root` is what / is, except in tests. `allowed` are the CPUs of this process. GPUs are numbered
// by their PCI addresses, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID and, on hosts with equal
// GPUs, always; `visible` (CUDA_VISIBLE_DEVICES; empty: all) chooses and orders them, by numbers or
// UUIDs.
absl::StatusOr<NumaTopology> ReadTopology(const std::string& root, const std::vector<int>& allowed,
                                          const std::string& visible);

// The CPUs that this process may use.
std::vector<int> AllowedCpus();

// The CPUs of each worker, by local rank. The worker with local rank i belongs to the NUMA node of
// GPU i. Workers without a GPU, or whose GPU's node the system does not report, are spread evenly
// over the nodes, neighbours together.
// - kNode: all CPUs of that node.
// - kSocket: all CPUs of all nodes of that node's socket.
// - kExclusive: an even share of the node's cores, each with all its SMT siblings. Where that does
//   not come out even, the first workers get one more.
// - kCoreComplex: CPUs that share one level-3 cache. Workers of a node take its caches in turn,
//   those with the most CPUs first; if there are more workers than caches, they share them.
// - kNone: empty lists.
// ArgumentError names the worker that would get no CPU.
absl::StatusOr<std::vector<std::vector<int>>> BindWorkers(const NumaTopology& topology,
                                                          LaunchOptions::Numa mode, int workers);

// Parses the kernel's form "0-3,8". Empty for malformed text.
std::vector<int> ParseCpuList(const std::string& text);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_NUMA_H_
