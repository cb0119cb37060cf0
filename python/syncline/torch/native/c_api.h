/* The functions of syncline._syncline that the native backend of torch.distributed calls.

   The extension holds Syncline's core with all that a process has once. The native backend is
   compiled elsewhere, for the torch of the machine, and must not link a second core: it gets this
   table through a capsule, `_syncline._c_api()`, and shares nothing else with the extension,
   neither C++ types nor a standard library.

   The table is private to one version of Syncline. A change of it changes SYNCLINE_C_API_VERSION.
   All functions are thread-safe; those that need the GIL say so. */
#ifndef SYNCLINE_TORCH_NATIVE_C_API_H_
#define SYNCLINE_TORCH_NATIVE_C_API_H_

#include <Python.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SYNCLINE_C_API_VERSION 1
#define SYNCLINE_C_API_NAME "syncline._syncline.c_api"

typedef struct SynclineGroup
    SynclineGroup; /* A process group; see include/syncline/process_group.h. */
typedef struct SynclineWork SynclineWork;   /* An operation in flight. */
typedef struct SynclineError SynclineError; /* Why a call has failed. Null where it has not. */

/* An element type, by the place of its name in include/syncline/dtype.h. */
typedef enum SynclineDType {
  kSynclineBool,
  kSynclineInt8,
  kSynclineInt16,
  kSynclineInt32,
  kSynclineInt64,
  kSynclineUInt8,
  kSynclineUInt16,
  kSynclineUInt32,
  kSynclineUInt64,
  kSynclineFloat16,
  kSynclineBFloat16,
  kSynclineFloat32,
  kSynclineFloat64,
  kSynclineComplex64,
  kSynclineComplex128,
  kSynclineFloat8E4M3,
  kSynclineFloat8E5M2
} SynclineDType;

/* A contiguous tensor in memory of the host. */
typedef struct SynclineTensor {
  void* data;
  const int64_t* shape;
  int32_t dimensions;
  int32_t dtype; /* A SynclineDType. */
} SynclineTensor;

typedef enum SynclineOperation {
  kSynclineBroadcast,
  kSynclineAllReduce,
  kSynclineAllReduceCoalesced,
  kSynclineReduce,
  kSynclineAllGather,
  kSynclineAllGatherSingle,
  kSynclineAllGatherCoalesced,
  kSynclineGather,
  kSynclineScatter,
  kSynclineReduceScatter,
  kSynclineReduceScatterSingle,
  kSynclineReduceScatterCoalesced,
  kSynclineAllToAll,
  kSynclineAllToAllSingle,
  kSynclineBarrier,
  kSynclineSend,
  kSynclineRecv
} SynclineOperation;

/* One call, with the arguments of the function of ProcessGroup of that name. Operations that work
   in place, and send, have their tensors in `outputs`. */
typedef struct SynclineCall {
  int32_t operation; /* A SynclineOperation. */
  int32_t reduce_op; /* By the place of its name in include/syncline/reduce_op.h. */
  double factor;     /* Of premul_sum. */
  int64_t peer;      /* The root, or the other rank of a message; -1 for any, of recv. */
  int64_t tag;
  int64_t timeout_ns; /* Negative: the group's own. */
  const SynclineTensor* outputs;
  size_t output_count;
  const SynclineTensor* inputs;
  size_t input_count;
  const int64_t* output_splits; /* Of all_to_all_single. */
  size_t output_split_count;
  const int64_t* input_splits;
  size_t input_split_count;
} SynclineCall;

typedef struct SynclineCApi {
  int32_t version; /* SYNCLINE_C_API_VERSION. */

  /* Of a syncline._syncline.ProcessGroup; null, with an exception, for other objects. With the GIL.
     The result keeps the group until it is dropped, without the GIL held or with it. */
  SynclineGroup* (*group)(PyObject* object);
  void (*drop_group)(SynclineGroup* group);

  /* Runs an operation on this thread, without the GIL. */
  SynclineError* (*run)(SynclineGroup* group, const SynclineCall* call);

  /* Starts one. Calls drop(owner) once, on any thread, when the memory of its tensors is no longer
     needed: also if it returns an error. */
  SynclineError* (*start)(SynclineGroup* group, const SynclineCall* call, void* owner,
                          void (*drop)(void* owner), SynclineWork** work);

  /* Waits until it is over, as Work::Wait does, without the GIL; a negative timeout is none. */
  SynclineError* (*wait)(SynclineWork* work, int64_t timeout_ns);
  int (*is_completed)(const SynclineWork* work);
  /* Of a receive that has succeeded: who has sent. Else -1. */
  int (*source_rank)(const SynclineWork* work);
  /* Calls callback(argument) once when it is over: now, or on the thread that ends it. */
  void (*on_complete)(SynclineWork* work, void (*callback)(void* argument), void* argument);
  /* Forgets it: it goes on. */
  void (*drop_work)(SynclineWork* work);

  /* Sets the exception of Python that stands for the error, and drops it. With the GIL. */
  void (*raise)(SynclineError* error);
  /* What it says; valid until it is dropped. */
  const char* (*message)(const SynclineError* error);
  void (*drop_error)(SynclineError* error);

  /* Calls action(argument) with the GIL, from any thread. Returns 0, without calling it, where
     Python is exiting. */
  int (*with_gil)(void (*action)(void* argument), void* argument);
} SynclineCApi;

#ifdef __cplusplus
}
#endif

#endif /* SYNCLINE_TORCH_NATIVE_C_API_H_ */
