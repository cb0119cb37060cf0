// Ranks of the stand-in for NCCL on simulated devices, for its own tests.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_RANKS_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_RANKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/nccl/nccl_api.h"
#include "backends/nccl/testing/fake_nccl/fake_nccl.h"
#include "backends/nccl/testing/fake_nccl/more_functions.h"
#include "core/device/cuda_types.h"

namespace fake_nccl {

// NCCL's functions, of the library that SYNCLINE_NCCL_LIBRARY names. Ends the process without it.
const syncline::nccl::MoreNcclApi& Nccl();

// The functions of fake_nccl.h.
struct Control {
  decltype(&fake_nccl_fail_next) fail_next;
  decltype(&fake_nccl_set_async_error) set_async_error;
  decltype(&fake_nccl_set_stalled) set_stalled;
  decltype(&fake_nccl_live_communicators) live_communicators;
  decltype(&fake_nccl_live_registrations) live_registrations;
  decltype(&fake_nccl_live_allocations) live_allocations;
  decltype(&fake_nccl_calls) calls;

  static const Control& Get();
};

// Makes a device's context current on this thread, until the end.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
};

// A stream of a device.
class TestStream {
 public:
  explicit TestStream(int device);
  ~TestStream();

  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  operator syncline::nccl::NcclStream() const { return stream_; }  // NOLINT: as a stream is used.
  int device() const { return device_; }

  // Enqueues a call.
  void Enqueue(std::function<void()> function) const;
  // Waits until what was enqueued has ended. False after a minute, which no test waits for.
  bool Synchronize() const;
  // Whether it has.
  bool IsDone() const;

 private:
  const int device_;
  syncline::device::CUstream stream_ = nullptr;
};

// Memory of a device, set to zero.
class DeviceMemory {
 public:
  DeviceMemory(int device, size_t bytes);
  ~DeviceMemory();

  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* get() const { return address_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(address_);
  }

 private:
  const int device_;
  void* address_ = nullptr;
};

// A rank: a thread of the test makes its calls, with its device current.
struct Rank {
  Rank(int rank, int ranks, int device)
      : rank(rank), ranks(ranks), device(device), stream(device) {}

  const int rank;
  const int ranks;
  const int device;
  const TestStream stream;
  syncline::nccl::NcclComm comm = nullptr;
};

// Ranks as threads of this process, rank r on device r. The end aborts what communicators are left.
class Ranks {
 public:
  explicit Ranks(int ranks);
  ~Ranks();

  // Calls `function` for each rank, on threads, and returns when all have returned.
  void Run(const std::function<void(Rank&)>& function);
  // Makes a communicator of them all.
  void Init(syncline::nccl::NcclConfig config = {});

  Rank& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// Polls ncclCommGetAsyncError while it is kNcclInProgress. That after a minute.
syncline::nccl::NcclResult AwaitState(syncline::nccl::NcclComm comm);

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_RANKS_H_
