// The functions that tests control the library by.
#include <memory>
#include <string>
#include <vector>

#include "core/device/testing/fake_cuda/call.h"

using namespace fake_cuda;  // NOLINT: defines the C functions below.

extern "C" {

void fake_cuda_fail_next(const char* function, int nth, int result) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  if (nth == 0) {
    simulator.faults.erase(function);
    return;
  }
  simulator.faults[function][simulator.calls[function] + nth] = static_cast<CUresult>(result);
}

int64_t fake_cuda_calls(const char* function) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  return simulator.calls[function];
}

void fake_cuda_each_called(void (*visit)(const char* function, void* data), void* data) {
  std::vector<std::string> names;
  {
    Simulator& simulator = Simulator::Get();
    const Lock lock(simulator.mutex);
    for (const auto& [name, count] : simulator.calls) {
      if (count > 0) names.push_back(name);
    }
  }
  for (const std::string& name : names) visit(name.c_str(), data);
}

int fake_cuda_context_depth() { return static_cast<int>(contexts.size()); }

void fake_cuda_hold_streams(int device, int on) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  simulator.devices.at(device).is_held = on != 0;
  simulator.resumed.notify_all();
}

void fake_cuda_delay_us(int64_t most) { Simulator::Get().delay_us = most; }

int fake_cuda_free_waits(int on) { return Simulator::Get().free_waits.exchange(on != 0) ? 1 : 0; }

void fake_cuda_break_device(int device, int result) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  simulator.devices.at(device).error = static_cast<CUresult>(result);
}

void fake_cuda_live_objects(fake_cuda_counts* counts) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  *counts = {};
  for (const Device& device : simulator.devices) counts->contexts += device.references > 0 ? 1 : 0;
  counts->streams = static_cast<int64_t>(simulator.streams.size());
  counts->events = static_cast<int64_t>(simulator.events.size());
  for (const auto& [address, allocation] : simulator.memory) {
    const bool is_of_device =
        allocation.kind == MemoryKind::kDevice || allocation.kind == MemoryKind::kManaged;
    ++(is_of_device ? counts->device_allocations : counts->pinned_allocations);
  }
  counts->libraries = static_cast<int64_t>(simulator.libraries.size());
  counts->graphs = static_cast<int64_t>(simulator.graphs.size() + simulator.graph_execs.size());
  counts->pending_items = simulator.pending_items;
}

void fake_cuda_register_kernel(const char* name, fake_cuda_kernel kernel, const size_t* sizes,
                               size_t count) {
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  std::unique_ptr<Kernel>& entry = simulator.kernels[name];
  if (entry == nullptr) entry = std::make_unique<Kernel>();
  *entry = {name, kernel, {sizes, sizes + count}};
}

}  // extern "C"
