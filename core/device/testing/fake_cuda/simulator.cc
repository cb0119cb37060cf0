#include "core/device/testing/fake_cuda/simulator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/device/kernels/host_kernels.h"
#include "core/device/testing/fake_cuda/protection.h"

namespace fake_cuda {
namespace {

std::string Setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

thread_local bool is_in_host_function = false;

Simulator& Simulator::Get() {
  static auto* const simulator = new Simulator;
  return *simulator;
}

Simulator::Simulator()
    : version(std::stoi(Setting("FAKE_CUDA_DRIVER_VERSION", "13000"))),
      compute_capability(std::stoi(Setting("FAKE_CUDA_CAPABILITY", "90"))),
      delay_us(std::stoll(Setting("FAKE_CUDA_DELAY_US", "0"))),
      free_waits(Setting("FAKE_CUDA_FREE_WAITS", "0") == "1"),
      random_(std::stoull(Setting("FAKE_CUDA_SEED", "1"))) {
  const int count = std::stoi(Setting("FAKE_CUDA_DEVICES", "1"));
  std::vector<int> visible;
  if (const char* const names = std::getenv("CUDA_VISIBLE_DEVICES"); names != nullptr) {
    // As CUDA does: the list ends before the first entry that names no device.
    for (const std::string& name : Split(names, ',')) {
      char* end = nullptr;
      const long index = std::strtol(name.c_str(), &end, 10);
      if (end == name.c_str() || index < 0 || index >= count) break;
      visible.push_back(static_cast<int>(index));
    }
  } else {
    for (int index = 0; index < count; ++index) visible.push_back(index);
  }
  for (const int physical : visible) {
    Device& device = devices.emplace_back();
    device.physical = physical;
  }
  for (size_t index = 0; index < devices.size(); ++index) {
    devices[index].legacy = std::make_shared<Stream>();
    devices[index].legacy->device = static_cast<int>(index);
    devices[index].legacy->kind = StreamKind::kLegacy;
  }
  for (const std::string& fault : Split(Setting("FAKE_CUDA_FAIL", ""), ',')) {
    const std::vector<std::string> parts = Split(fault, ':');
    if (parts.size() < 2) continue;
    faults[parts[0]][std::stoll(parts[1])] =
        parts.size() > 2 ? static_cast<CUresult>(std::stoi(parts[2])) : CUDA_ERROR_OUT_OF_MEMORY;
  }
  for (size_t i = 0; i < kernels::HostKernelCount(); ++i) {
    const kernels::HostKernel& kernel = kernels::HostKernels()[i];
    this->kernels[kernel.name] =
        std::make_unique<Kernel>(Kernel{kernel.name, kernel.run, {kernel.args_bytes}});
  }
}

uintptr_t Simulator::NewHandle() { return last_handle_ += 16; }

// Contexts have the handles 0x100, 0x110, ...
CUcontext Simulator::ContextOf(int device) const {
  return reinterpret_cast<CUcontext>(uintptr_t{0x100} + 16 * static_cast<uintptr_t>(device));
}

int Simulator::DeviceOf(CUcontext context) const {
  const uintptr_t handle = reinterpret_cast<uintptr_t>(context);
  if (handle < 0x100 || (handle - 0x100) % 16 != 0) return -1;
  const uintptr_t device = (handle - 0x100) / 16;
  return device < devices.size() ? static_cast<int>(device) : -1;
}

std::vector<PointPtr> Simulator::EndsBefore(const StreamPtr& stream) const {
  std::vector<PointPtr> ends;
  const auto add = [&ends](const StreamPtr& other) {
    if (other->last != nullptr && !other->last->is_reached) ends.push_back(other->last);
  };
  const Device& device = devices[stream->device];
  if (stream->kind == StreamKind::kBlocking) add(device.legacy);
  if (stream->kind == StreamKind::kLegacy) {
    for (const auto& [handle, other] : streams) {
      if (other->device == stream->device && other->kind == StreamKind::kBlocking) add(other);
    }
    for (const auto& [thread, other] : device.per_thread) add(other);
  }
  return ends;
}

std::vector<PointPtr> Simulator::EndsOn(int device) const {
  std::vector<PointPtr> ends;
  const auto add = [&](const StreamPtr& stream) {
    if (stream->device == device && stream->last != nullptr) ends.push_back(stream->last);
  };
  for (const auto& [handle, stream] : streams) add(stream);
  add(devices[device].legacy);
  for (const auto& [thread, stream] : devices[device].per_thread) add(stream);
  for (const auto& [handle, executable] : graph_execs) {
    for (const StreamPtr& lane : executable->lanes) add(lane);
  }
  return ends;
}

CUresult Simulator::Enqueue(const StreamPtr& stream, std::function<void()> work,
                            std::vector<PointPtr> after) {
  if (devices[stream->device].error != CUDA_SUCCESS) return devices[stream->device].error;
  for (PointPtr& end : EndsBefore(stream)) after.push_back(std::move(end));
  return EnqueueItem(stream, std::move(work), std::move(after));
}

CUresult Simulator::EnqueueItem(const StreamPtr& stream, std::function<void()> work,
                                std::vector<PointPtr> after) {
  if (!stream->has_thread) {
    try {
      std::thread([this, stream] { Serve(stream); }).detach();
    } catch (const std::system_error&) {
      return CUDA_ERROR_OPERATING_SYSTEM;
    }
    stream->has_thread = true;
  }
  stream->last = std::make_shared<Point>();
  stream->items.push_back({std::move(after), std::move(work), stream->last});
  ++pending_items;
  stream->has_news.notify_all();
  return CUDA_SUCCESS;
}

void Simulator::Serve(const StreamPtr& stream) {
  Lock lock(mutex);
  while (true) {
    stream->has_news.wait(lock, [&] { return !stream->items.empty() || stream->is_destroyed; });
    if (stream->items.empty()) return;
    Item item = std::move(stream->items.front());
    stream->items.pop_front();
    for (const PointPtr& point : item.after) point->Await(lock);
    const Device& device = devices[stream->device];
    resumed.wait(lock, [&] { return !device.is_held; });
    Delay(lock);
    if (item.work != nullptr && device.error == CUDA_SUCCESS) {
      lock.unlock();
      is_in_host_function = true;
      item.work();
      is_in_host_function = false;
      CloseOpened();
      item.work = nullptr;
      lock.lock();
    }
    --pending_items;
    item.end->Reach();
  }
}

void Simulator::Delay(Lock& lock) {
  const int64_t most = delay_us.load();
  if (most <= 0) return;
  const std::chrono::microseconds delay(random_() % (static_cast<uint64_t>(most) + 1));
  lock.unlock();
  std::this_thread::sleep_for(delay);
  lock.lock();
}

const Allocation* Simulator::Find(uintptr_t address, size_t bytes, bool* is_known) const {
  *is_known = false;
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  const auto& [start, allocation] = *std::prev(after);
  if (address - start >= allocation.bytes) return nullptr;
  *is_known = true;
  return bytes <= allocation.bytes - (address - start) ? &allocation : nullptr;
}

}  // namespace fake_cuda
