// libfake_cuda.so: CUDA's driver API over simulated devices, for tests. C, so that every language
// can reach the functions that control it; programs find them by dlsym.
//
// A device is memory of the host, a stream is a thread that does what is enqueued, late if it is
// told to. What CUDA forbids is an error here too. Environment, read by the first call:
//
//   FAKE_CUDA_DEVICES         how many devices there are; 1. CUDA_VISIBLE_DEVICES picks some.
//   FAKE_CUDA_CAPABILITY      compute capability of the devices, 90 for 9.0; 90.
//   FAKE_CUDA_DRIVER_VERSION  as CUDA counts; 13000. Images are refused below 13000.
//   FAKE_CUDA_DELAY_US        each item of a stream is delayed by a random time up to this; 0.
//   FAKE_CUDA_SEED            of these times; 1.
//   FAKE_CUDA_FAIL            "cuMemAlloc_v2:3,cuInit:1:803": the third call of the one fails with
//                             CUDA_ERROR_OUT_OF_MEMORY, the first of the other with error 803.
//   FAKE_CUDA_FREE_WAITS      1: cuMemFree and cuMemFreeHost wait until all streams of the device
//                             have done what is enqueued, as CUDA's may; 0.
//   FAKE_CUDA_PROTECT         1: the host cannot touch memory of devices, which ends the process,
//                             except while an item of a stream uses the same memory; 0.
#ifndef SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_FAKE_CUDA_H_
#define SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// From now on, the call of `function` with the number `nth`, counted from 1, fails with `result`,
// of all threads' calls. Several may be set. nth 0: none fails any more. Names are those of the
// symbols, such as "cuMemAlloc_v2".
void fake_cuda_fail_next(const char* function, int nth, int result);

// How often `function` was called since the process began.
int64_t fake_cuda_calls(const char* function);

// Calls `visit` with the name of each function that was called so far.
void fake_cuda_each_called(void (*visit)(const char* function, void* data), void* data);

// While `on`, no stream of `device` begins an item.
void fake_cuda_hold_streams(int device, int on);

// Sets FAKE_CUDA_DELAY_US to another value, for items that begin later.
void fake_cuda_delay_us(int64_t most);

// Sets FAKE_CUDA_FREE_WAITS to another value, for calls that begin later. Returns the former one.
int fake_cuda_free_waits(int on);

// Work on `device` fails with `result` from now on, as after an access to a bad address: what is
// enqueued is dropped, and most calls return `result`. 0 makes the device whole again, which CUDA
// never does.
void fake_cuda_break_device(int device, int result);

// What the process has made and not given back.
typedef struct {
  int64_t contexts;  // Retained ones.
  int64_t streams;
  int64_t events;
  int64_t device_allocations;
  int64_t pinned_allocations;
  int64_t libraries;
  int64_t graphs;
  int64_t pending_items;  // Enqueued and not done.
} fake_cuda_counts;
void fake_cuda_live_objects(fake_cuda_counts* counts);

// How many contexts are on this thread's stack.
int fake_cuda_context_depth(void);

// What stands for a kernel: called once for a launch, on the stream's thread. `arguments` points to
// copies of the arguments, made at the launch.
typedef void (*fake_cuda_kernel)(const unsigned int grid[3], const unsigned int block[3],
                                 void* const* arguments);

// Every image that is loaded from now on has a kernel `name`, of `count` arguments of these sizes.
void fake_cuda_register_kernel(const char* name, fake_cuda_kernel kernel, const size_t* sizes,
                               size_t count);

#ifdef __cplusplus
}
#endif

#endif  // SYNCLINE_CORE_DEVICE_TESTING_FAKE_CUDA_FAKE_CUDA_H_
