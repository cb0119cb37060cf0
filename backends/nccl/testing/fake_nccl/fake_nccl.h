// The stand-in for NCCL: what tests control in it.
//
// libfake_nccl.so has NCCL's C interface (backends/nccl/nccl_api.h), and the functions below. These
// concern the calling process alone; a test that is linked with nothing finds them by dlsym(3).
// README.md says what it does as NCCL does, and which environment variables it reads.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_FAKE_NCCL_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_FAKE_NCCL_H_

#include "backends/nccl/nccl_api.h"

extern "C" {

// The next call of `function` ("ncclAllReduce"), in whatever thread, does nothing and returns
// `result`. Of several requests each concerns one call. Null forgets all requests.
void fake_nccl_fail_next(const char* function, syncline::nccl::NcclResult result);

// What ncclCommGetAsyncError reports from now on, for `comm`; or, if that is null, for every
// communicator of this process in which it is rank `rank`, or any if `rank` is -1. As after a
// network error, calls then return it, and operations that run end at ncclCommAbort alone. Returns
// the number of communicators.
int fake_nccl_set_async_error(syncline::nccl::NcclComm comm, int rank,
                              syncline::nccl::NcclResult result);

// Keeps the operations of these communicators (see above) from going on, or no longer.
int fake_nccl_set_stalled(syncline::nccl::NcclComm comm, int rank, int is_stalled);

// Keeps ncclCommAbort from returning, once the work has ended, or no longer: as NCCL does while a
// graph lives that was captured from the communicator.
void fake_nccl_hold_aborts(int is_held);

// Keeps threads in the function that enqueues an operation, of whichever communicator, or no
// longer.
void fake_nccl_hold_operations(int is_held);
// How many threads are kept so.
int fake_nccl_held_operations();

// Communicators of this process that were neither destroyed nor aborted.
int fake_nccl_live_communicators();

// Buffers and windows that are registered, and memory of ncclMemAlloc that was not freed.
int fake_nccl_live_registrations();
int fake_nccl_live_allocations();

// How often this process has called `function`.
int fake_nccl_calls(const char* function);

}  // extern "C"

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_FAKE_NCCL_H_
