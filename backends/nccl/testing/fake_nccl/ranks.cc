#include "backends/nccl/testing/fake_nccl/ranks.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "backends/nccl/nccl_library.h"
#include "core/device/testing/fake_cuda_env.h"

namespace fake_nccl {

using namespace syncline::nccl;    // NOLINT: NCCL's names, and CUDA's, are all that this is about.
using namespace syncline::device;  // NOLINT

namespace {

// Longer than anything lasts that ends at all, on a machine that does much else.
constexpr std::chrono::seconds kLimit(60);

// The functions of the simulated driver, by CUDA's names.
struct Driver {
#define FAKE_NCCL_MEMBER(name, symbol, parameters) CUresult(*name) parameters;
  SYNCLINE_CUDA_FUNCTIONS(FAKE_NCCL_MEMBER, FAKE_NCCL_MEMBER)
#undef FAKE_NCCL_MEMBER

  Driver() {
    FakeCuda::Get();  // Has opened it, or ended the process.
    void* const library = dlopen(std::getenv("SYNCLINE_CUDA_LIBRARY"), RTLD_LAZY | RTLD_NOLOAD);
#define FAKE_NCCL_FIND(name, symbol, parameters) \
  name = reinterpret_cast<decltype(name)>(dlsym(library, #symbol));
    SYNCLINE_CUDA_FUNCTIONS(FAKE_NCCL_FIND, FAKE_NCCL_FIND)
#undef FAKE_NCCL_FIND
  }

  static const Driver& Get() {
    static const Driver* const driver = [] {
      // Before the driver's first call, which reads it.
      setenv("FAKE_CUDA_DEVICES", "8", 0);
      auto* const made = new Driver;
      Require(made->cuInit(0), "cuInit");
      return made;
    }();
    return *driver;
  }

  static void Require(CUresult result, const char* function) {
    if (result == CUDA_SUCCESS) return;
    std::fprintf(stderr, "%s fails with %d\n", function, static_cast<int>(result));
    std::abort();
  }
};

// The primary context of a device, which is kept.
CUcontext ContextOf(int device) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const contexts = new std::vector<CUcontext>(64);
  const std::lock_guard<std::mutex> lock(*mutex);
  CUcontext& context = (*contexts)[static_cast<size_t>(device)];
  if (context == nullptr) {
    Driver::Require(Driver::Get().cuDevicePrimaryCtxRetain(&context, device),
                    "cuDevicePrimaryCtxRetain");
  }
  return context;
}

// Looks functions up in a library that is loaded. Ends the process where there are none.
class Finder {
 public:
  explicit Finder(const std::string& path)
      : path_(path), library_(dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD)) {}

  template <typename Function>
  void operator()(Function& function, const char* name) const {
    void* const symbol = library_ == nullptr ? nullptr : dlsym(library_, name);
    if (symbol == nullptr) {
      std::fprintf(stderr, "%s lacks %s\n", path_.c_str(), name);
      std::abort();
    }
    function = reinterpret_cast<Function>(symbol);
  }

 private:
  const std::string path_;
  void* const library_;
};

}  // namespace

const MoreNcclApi& Nccl() {
  static const MoreNcclApi* const api = [] {
    const absl::StatusOr<const NcclApi*> loaded = LoadNccl();
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
      std::abort();
    }
    auto* const made = new MoreNcclApi{**loaded};
    const Finder find(made->path);
    find(made->comm_count, "ncclCommCount");
    find(made->comm_cu_device, "ncclCommCuDevice");
    find(made->comm_user_rank, "ncclCommUserRank");
    find(made->bcast, "ncclBcast");
    find(made->comm_init_rank_scalable, "ncclCommInitRankScalable");
    find(made->comm_shrink, "ncclCommShrink");
    find(made->comm_window_register, "ncclCommWindowRegister");
    find(made->comm_window_deregister, "ncclCommWindowDeregister");
    find(made->all_to_all, "ncclAlltoAll");
    find(made->gather, "ncclGather");
    find(made->scatter, "ncclScatter");
    find(made->comm_revoke, "ncclCommRevoke");
    find(made->comm_get_unique_id, "ncclCommGetUniqueId");
    find(made->comm_grow, "ncclCommGrow");
    return made;
  }();
  return *api;
}

const Control& Control::Get() {
  static const Control* const control = [] {
    auto* const made = new Control;
    const Finder find(Nccl().path);
    find(made->fail_next, "fake_nccl_fail_next");
    find(made->set_async_error, "fake_nccl_set_async_error");
    find(made->set_stalled, "fake_nccl_set_stalled");
    find(made->live_communicators, "fake_nccl_live_communicators");
    find(made->live_registrations, "fake_nccl_live_registrations");
    find(made->live_allocations, "fake_nccl_live_allocations");
    find(made->calls, "fake_nccl_calls");
    return made;
  }();
  return *control;
}

OnDevice::OnDevice(int device) {
  Driver::Require(Driver::Get().cuCtxPushCurrent(ContextOf(device)), "cuCtxPushCurrent");
}

OnDevice::~OnDevice() {
  CUcontext context;
  Driver::Require(Driver::Get().cuCtxPopCurrent(&context), "cuCtxPopCurrent");
}

TestStream::TestStream(int device) : device_(device) {
  const OnDevice scope(device);
  Driver::Require(Driver::Get().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                  "cuStreamCreateWithPriority");
}

TestStream::~TestStream() {
  const OnDevice scope(device_);
  Driver::Require(Driver::Get().cuStreamDestroy(stream_), "cuStreamDestroy");
}

void TestStream::Enqueue(std::function<void()> function) const {
  const auto call = [](void* data) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(data));
    (*owned)();
  };
  Driver::Require(
      Driver::Get().cuLaunchHostFunc(stream_, call, new std::function<void()>(std::move(function))),
      "cuLaunchHostFunc");
}

bool TestStream::Synchronize() const {
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_set = false;
  };
  const auto signal = std::make_shared<Signal>();
  Enqueue([signal] {
    const std::lock_guard<std::mutex> lock(signal->mutex);
    signal->is_set = true;
    signal->changed.notify_all();
  });
  const auto until = std::chrono::steady_clock::now() + kLimit;
  std::unique_lock<std::mutex> lock(signal->mutex);
  while (!signal->is_set && std::chrono::steady_clock::now() < until) {
    signal->changed.wait_until(lock, until);
  }
  return signal->is_set;
}

bool TestStream::IsDone() const {
  const OnDevice scope(device_);
  const Driver& driver = Driver::Get();
  CUevent event;
  Driver::Require(driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  Driver::Require(driver.cuEventRecord(event, stream_), "cuEventRecord");
  const CUresult result = driver.cuEventQuery(event);
  Driver::Require(driver.cuEventDestroy(event), "cuEventDestroy");
  return result == CUDA_SUCCESS;
}

DeviceMemory::DeviceMemory(int device, size_t bytes) : device_(device) {
  const OnDevice scope(device);
  CUdeviceptr made = 0;
  Driver::Require(Driver::Get().cuMemAlloc(&made, bytes == 0 ? 1 : bytes), "cuMemAlloc");
  address_ = reinterpret_cast<void*>(static_cast<uintptr_t>(made));
  std::memset(address_, 0, bytes);
}

DeviceMemory::~DeviceMemory() {
  const OnDevice scope(device_);
  Driver::Require(Driver::Get().cuMemFree(reinterpret_cast<uintptr_t>(address_)), "cuMemFree");
}

Ranks::Ranks(int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(rank, ranks, rank));
  }
}

Ranks::~Ranks() {
  for (const auto& rank : ranks_) {
    if (rank->comm != nullptr) Nccl().comm_abort(rank->comm);
  }
}

void Ranks::Run(const std::function<void(Rank&)>& function) {
  std::vector<std::thread> threads;
  for (const auto& rank : ranks_) {
    threads.emplace_back([&function, &rank = *rank] {
      const OnDevice scope(rank.device);
      function(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Ranks::Init(NcclConfig config) {
  NcclUniqueId id;
  Driver::Require(static_cast<CUresult>(Nccl().get_unique_id(&id)), "ncclGetUniqueId");
  Run([&](Rank& rank) {
    NcclConfig own = config;
    const NcclResult result =
        Nccl().comm_init_rank_config(&rank.comm, rank.ranks, id, rank.rank, &own);
    if (result != kNcclSuccess && result != kNcclInProgress) {
      Driver::Require(static_cast<CUresult>(result), "ncclCommInitRankConfig");
    }
    Driver::Require(static_cast<CUresult>(AwaitState(rank.comm)), "ncclCommInitRankConfig");
  });
}

NcclResult AwaitState(NcclComm comm) {
  const auto until = std::chrono::steady_clock::now() + kLimit;
  NcclResult state = kNcclInProgress;
  while (state == kNcclInProgress && std::chrono::steady_clock::now() < until) {
    const NcclResult result = Nccl().comm_get_async_error(comm, &state);
    if (result != kNcclSuccess) return result;
    if (state == kNcclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

}  // namespace fake_nccl
