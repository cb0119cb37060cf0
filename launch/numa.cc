#include "launch/numa.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Numa = LaunchOptions::Numa;

struct Gpu {
  int node = NumaTopology::kUnknown;
  std::string uuid;
};

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> ReadInt(const std::string& path) {
  int value = 0;
  if (!absl::SimpleAtoi(ReadLine(path), &value)) return std::nullopt;
  return value;
}

// The names in a folder, sorted. Empty if there is no such folder.
std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The number in `name` behind `prefix`.
std::optional<int> NumberIn(absl::string_view name, absl::string_view prefix) {
  int number = 0;
  if (!absl::ConsumePrefix(&name, prefix) || !absl::SimpleAtoi(name, &number)) return std::nullopt;
  return number;
}

int Lowest(const std::vector<int>& cpus, int default_value) {
  return cpus.empty() ? default_value : *std::min_element(cpus.begin(), cpus.end());
}

// The lowest CPU that shares the level-3 cache of the CPU with this folder.
std::optional<int> CacheOf(const std::string& cpu_folder) {
  const std::string caches = cpu_folder + "/cache";
  for (const std::string& name : Names(caches)) {
    const std::string cache = absl::StrCat(caches, "/", name);
    if (ReadInt(cache + "/level") != 3) continue;
    const std::vector<int> sharers = ParseCpuList(ReadLine(cache + "/shared_cpu_list"));
    if (!sharers.empty()) return Lowest(sharers, 0);
  }
  return std::nullopt;
}

std::map<int, int> NodesOfCpus(const std::string& root) {
  const std::string nodes = root + "/sys/devices/system/node";
  std::map<int, int> node_of_cpu;
  for (const std::string& name : Names(nodes)) {
    const std::optional<int> node = NumberIn(name, "node");
    if (!node.has_value()) continue;
    for (const int cpu : ParseCpuList(ReadLine(absl::StrCat(nodes, "/", name, "/cpulist")))) {
      node_of_cpu[cpu] = *node;
    }
  }
  return node_of_cpu;
}

std::string NvidiaUuid(const std::string& information) {
  std::ifstream file(information);
  for (std::string line; std::getline(file, line);) {
    absl::string_view text = line;
    if (absl::ConsumePrefix(&text, "GPU UUID:")) {
      return std::string(absl::StripAsciiWhitespace(text));
    }
  }
  return "";
}

std::vector<Gpu> FindGpus(const std::string& root) {
  std::vector<Gpu> gpus;
  const std::string nvidia = root + "/proc/driver/nvidia/gpus";
  for (const std::string& address : Names(nvidia)) {
    const std::string device = absl::StrCat(root, "/sys/bus/pci/devices/", address);
    gpus.push_back({ReadInt(device + "/numa_node").value_or(NumaTopology::kUnknown),
                    NvidiaUuid(absl::StrCat(nvidia, "/", address, "/information"))});
  }
  if (!gpus.empty()) return gpus;
  std::map<std::string, Gpu> by_address;
  const std::string drm = root + "/sys/class/drm";
  for (const std::string& name : Names(drm)) {
    const std::string device = absl::StrCat(drm, "/", name, "/device");
    if (!absl::StartsWith(name, "renderD") || ReadLine(device + "/vendor") != "0x1002") continue;
    std::error_code error;
    const std::string address = std::filesystem::canonical(device, error).filename().string();
    by_address[address].node = ReadInt(device + "/numa_node").value_or(NumaTopology::kUnknown);
  }
  for (const auto& [address, gpu] : by_address) gpus.push_back(gpu);
  return gpus;
}

// The node of each GPU that workers see.
std::vector<int> VisibleNodes(const std::vector<Gpu>& gpus, const std::string& visible) {
  std::vector<int> nodes;
  if (visible.empty()) {
    for (const Gpu& gpu : gpus) nodes.push_back(gpu.node);
    return nodes;
  }
  for (absl::string_view name : absl::StrSplit(visible, ',')) {
    name = absl::StripAsciiWhitespace(name);
    size_t number = 0;
    auto found = gpus.end();
    if (absl::SimpleAtoi(name, &number)) {
      if (number < gpus.size()) found = gpus.begin() + static_cast<std::ptrdiff_t>(number);
    } else {  // UUIDs may be abbreviated.
      found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
        return !name.empty() && absl::StartsWith(gpu.uuid, name);
      });
    }
    nodes.push_back(found == gpus.end() ? NumaTopology::kUnknown : found->node);
  }
  return nodes;
}

std::vector<int> NodesWithCpus(const NumaTopology& topology) {
  std::set<int> nodes;
  for (const Cpu& cpu : topology.cpus) nodes.insert(cpu.node);
  return std::vector<int>(nodes.begin(), nodes.end());
}

// The node of each worker.
std::vector<int> NodesOfWorkers(const NumaTopology& topology, int workers) {
  const std::vector<int> nodes = NodesWithCpus(topology);
  std::vector<int> result;
  for (int i = 0; i < workers; ++i) {
    const size_t gpu = static_cast<size_t>(i);
    const bool known =
        gpu < topology.gpu_nodes.size() && topology.gpu_nodes[gpu] != NumaTopology::kUnknown;
    const size_t spread = gpu * nodes.size() / static_cast<size_t>(workers);
    result.push_back(known ? topology.gpu_nodes[gpu] : nodes[spread]);
  }
  return result;
}

template <typename Predicate>
std::vector<int> CpusWith(const NumaTopology& topology, Predicate predicate) {
  std::vector<int> ids;
  for (const Cpu& cpu : topology.cpus) {
    if (predicate(cpu)) ids.push_back(cpu.id);
  }
  return ids;
}

std::vector<int> CpusOfSocket(const NumaTopology& topology, int node) {
  std::set<int> sockets;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) sockets.insert(cpu.socket);
  }
  return CpusWith(topology, [&](const Cpu& cpu) { return sockets.count(cpu.socket) > 0; });
}

// The `index`th of `count` shares of the node's cores.
std::vector<int> ShareOfCores(const NumaTopology& topology, int node, size_t index, size_t count) {
  std::set<int> distinct;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) distinct.insert(cpu.core);
  }
  const std::vector<int> cores(distinct.begin(), distinct.end());
  const size_t each = cores.size() / count;
  const size_t more = cores.size() % count;
  const size_t begin = index * each + std::min(index, more);
  const size_t end = begin + each + (index < more ? 1 : 0);
  const std::set<int> share(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                            cores.begin() + static_cast<std::ptrdiff_t>(end));
  return CpusWith(topology,
                  [&](const Cpu& cpu) { return cpu.node == node && share.count(cpu.core) > 0; });
}

std::vector<int> CoreComplex(const NumaTopology& topology, int node, size_t index) {
  std::map<int, std::vector<int>> by_cache;
  for (const Cpu& cpu : topology.cpus) {
    if (cpu.node == node) by_cache[cpu.cache].push_back(cpu.id);
  }
  if (by_cache.empty()) return {};
  std::vector<std::vector<int>> complexes;
  for (auto& [cache, cpus] : by_cache) complexes.push_back(std::move(cpus));
  std::stable_sort(complexes.begin(), complexes.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return complexes[index % complexes.size()];
}

absl::Status NoCpus(const NumaTopology& topology, int worker, int node, size_t neighbours) {
  const size_t cpus = CpusWith(topology, [&](const Cpu& cpu) { return cpu.node == node; }).size();
  if (cpus == 0) {
    return ArgumentError(absl::StrCat(
        "the worker with local rank ", worker, " belongs to NUMA node ", node,
        ", where its GPU is, but this process may use no CPU of that node. Leave out "
        "--numa-binding, or widen the launcher's own CPUs (taskset, cpuset, --cpus-per-task)"));
  }
  return ArgumentError(absl::StrCat("NUMA node ", node, " has fewer cores (of ", cpus,
                                    " CPUs) than workers (", neighbours,
                                    "): none is left for local rank ", worker,
                                    ". Use --numa-binding=node, or start fewer workers"));
}

}  // namespace

std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  for (absl::string_view range :
       absl::StrSplit(absl::StripAsciiWhitespace(text), ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first)) return {};
    last = first;
    if (!ends.second.empty() && !absl::SimpleAtoi(ends.second, &last)) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  for (int count = 1024; count <= (1 << 20); count *= 4) {
    cpu_set_t* set = CPU_ALLOC(count);
    const size_t size = CPU_ALLOC_SIZE(count);
    const bool ok = sched_getaffinity(0, size, set) == 0;
    for (int cpu = 0; ok && cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, size, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (ok) break;  // Otherwise the kernel has more CPUs than that.
  }
  return cpus;
}

absl::StatusOr<NumaTopology> ReadTopology(const std::string& root, const std::vector<int>& allowed,
                                          const std::string& visible) {
  const std::map<int, int> node_of_cpu = NodesOfCpus(root);
  NumaTopology topology;
  for (const int id : allowed) {
    const std::string folder = absl::StrCat(root, "/sys/devices/system/cpu/cpu", id);
    Cpu cpu;
    cpu.id = id;
    const auto node = node_of_cpu.find(id);
    if (node != node_of_cpu.end()) cpu.node = node->second;  // Kernels without NUMA have only one.
    cpu.socket = std::max(0, ReadInt(folder + "/topology/physical_package_id").value_or(0));
    cpu.core = Lowest(ParseCpuList(ReadLine(folder + "/topology/thread_siblings_list")), id);
    cpu.cache = CacheOf(folder).value_or(-1 - cpu.node);
    topology.cpus.push_back(cpu);
  }
  if (topology.cpus.empty()) {
    return UnsupportedError(
        "the CPUs of this process cannot be found out. Leave out --numa-binding");
  }
  topology.gpu_nodes = VisibleNodes(FindGpus(root), visible);
  return topology;
}

absl::StatusOr<std::vector<std::vector<int>>> BindWorkers(const NumaTopology& topology, Numa mode,
                                                          int workers) {
  std::vector<std::vector<int>> result(static_cast<size_t>(workers));
  if (mode == Numa::kNone) return result;
  const std::vector<int> nodes = NodesOfWorkers(topology, workers);
  std::map<int, size_t> seen;  // Workers of each node so far.
  for (size_t i = 0; i < nodes.size(); ++i) {
    const int node = nodes[i];
    const size_t index = seen[node]++;
    const auto neighbours = static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
    if (mode == Numa::kNode) {
      result[i] = CpusWith(topology, [&](const Cpu& cpu) { return cpu.node == node; });
    } else if (mode == Numa::kSocket) {
      result[i] = CpusOfSocket(topology, node);
    } else if (mode == Numa::kExclusive) {
      result[i] = ShareOfCores(topology, node, index, neighbours);
    } else {
      result[i] = CoreComplex(topology, node, index);
    }
    if (result[i].empty()) return NoCpus(topology, static_cast<int>(i), node, neighbours);
  }
  return result;
}

}  // namespace syncline::launch
