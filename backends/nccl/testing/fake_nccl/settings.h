// What tests ask of the stand-in for NCCL: environment variables, and the functions of fake_nccl.h.
#ifndef SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SETTINGS_H_
#define SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SETTINGS_H_

#include <cstdint>
#include <optional>

#include "backends/nccl/nccl_api.h"

namespace fake_nccl {

// FAKE_NCCL_VERSION.
int Version();

// FAKE_NCCL_INIT_DELAY_MS.
int InitDelayMs();

// FAKE_NCCL_ABORT=loses.
bool AbortLoses();

// FAKE_NCCL_STALL_FINALIZE: the rank whose ncclCommFinalize never ends; -1: none.
int StalledFinalize();

// Counts a call of `function`. The error that it is to return, if any: by fake_nccl_fail_next or
// FAKE_NCCL_FAIL, "ncclAllReduce:3:5,...": the third call here of the function returns 5.
std::optional<syncline::nccl::NcclResult> CountCall(const char* function);

// Whether operation `number` (from 1) of a communicator never ends, by FAKE_NCCL_STALL_RANK,
// "rank[:n]": that rank's operations from the nth on, or all.
bool IsStalledByEnvironment(int rank, int64_t number);

// The asynchronous error that operation `number` causes, by FAKE_NCCL_ASYNC_ERROR, "rank:n:result":
// that rank's communicators report `result` once n operations were enqueued, and one more.
std::optional<syncline::nccl::NcclResult> AsyncErrorOf(int rank, int64_t number);

}  // namespace fake_nccl

#endif  // SYNCLINE_BACKENDS_NCCL_TESTING_FAKE_NCCL_SETTINGS_H_
