#include "core/device/testing/fake_cuda/protection.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/device/testing/fake_cuda/simulator.h"

namespace fake_cuda {
namespace {

struct Opened {
  uintptr_t address;
  uint64_t id;
};

// What the item of this thread has opened, in a page of its own: a signal handler may not allocate
// otherwise.
constexpr size_t kPage = 4096;
constexpr int kMaxOpened = kPage / sizeof(Opened);
thread_local Opened* opened = nullptr;
thread_local int opened_count = 0;

bool AddOpened(const Opened& one) {
  if (opened_count == kMaxOpened) return false;
  if (opened == nullptr) {
    void* const page =
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    opened = static_cast<Opened*>(page);
  }
  opened[opened_count++] = one;
  return true;
}

struct sigaction former;

size_t Rounded(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Not a call for signal handlers, but this fault is of the code that it interrupts: an item, which
// holds no lock of the simulator or of the allocator, or the host's access that is an error.
void OnFault(int, siginfo_t* info, void*) {
  Simulator& simulator = Simulator::Get();
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  Lock lock(simulator.mutex, std::try_to_lock);
  while (is_in_host_function && !lock.owns_lock()) static_cast<void>(lock.try_lock());
  bool is_known = false;
  const Allocation* const found =
      lock.owns_lock() ? simulator.Find(address, 1, &is_known) : nullptr;
  if (found != nullptr && found->kind == MemoryKind::kDevice) {
    const auto start = std::prev(simulator.memory.upper_bound(address))->first;
    if (is_in_host_function && AddOpened({start, found->id})) {
      mprotect(reinterpret_cast<void*>(start), Rounded(found->bytes), PROT_READ | PROT_WRITE);
      return;
    }
    char text[200];
    const int length = std::snprintf(
        text, sizeof text, "fake_cuda: the host touches byte %zu of %zu of memory of device %d\n",
        static_cast<size_t>(address - start), found->bytes, found->device);
    static_cast<void>(!write(STDERR_FILENO, text, static_cast<size_t>(length)));
  }
  // The access is made again, and its fault is whoever's it was before.
  sigaction(SIGSEGV, &former, nullptr);
}

bool Install() {
  const char* const setting = std::getenv("FAKE_CUDA_PROTECT");
  if (setting == nullptr || std::strcmp(setting, "1") != 0) return false;
  struct sigaction action = {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGSEGV, &action, &former) == 0;
}

}  // namespace

bool Protects() {
  static const bool protects = Install();
  return protects;
}

void* MapPages(size_t bytes) {
  void* const pages =
      mmap(nullptr, Rounded(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

void UnmapPages(void* address, size_t bytes) { munmap(address, Rounded(bytes)); }

void Protect(void* address, size_t bytes) { mprotect(address, Rounded(bytes), PROT_NONE); }

void CloseOpened() {
  if (opened_count == 0) return;
  Simulator& simulator = Simulator::Get();
  const Lock lock(simulator.mutex);
  for (int i = 0; i < opened_count; ++i) {
    const Opened& one = opened[i];
    const auto found = simulator.memory.find(one.address);
    if (found == simulator.memory.end() || found->second.id != one.id) continue;
    Protect(reinterpret_cast<void*>(one.address), found->second.bytes);
  }
  opened_count = 0;
  munmap(std::exchange(opened, nullptr), kPage);
}

}  // namespace fake_cuda
