// MPI's functions, for a library that lets only one thread call them.
#ifndef SYNCLINE_BACKENDS_MPI_ONE_THREAD_API_H_
#define SYNCLINE_BACKENDS_MPI_ONE_THREAD_API_H_

#include "absl/functional/function_ref.h"
#include "backends/mpi/mpi_api.h"

namespace syncline::mpi {

// Calls the function on the thread that may call MPI, and waits for it. False, without having
// called it, if that thread is stuck.
using CallOnOneThread = bool (*)(absl::FunctionRef<void()> function);

// A table whose functions call those of `api` by `call`, so that any thread may use it. Where that
// returns false they return an error, for which error_string of the table has a text. A call costs
// two changes of thread.
//
// There is one for a process, as there is one MPI; a second call replaces what the first was given.
const MpiApi* MakeOneThreadApi(const MpiApi& api, CallOnOneThread call);

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_ONE_THREAD_API_H_
