// Finds and loads the NCCL of this process.
//
// Nothing of Syncline is linked with NCCL. A program that needs it opens what there is:
//
// 1. the NCCL that the process has loaded already, whoever did and from wherever: torch, JAX and
//    CuPy bring one along, and two in one process would not know of each other;
// 2. else the one that SYNCLINE_NCCL_LIBRARY names, by a path or as dlopen(3) finds it. If it names
//    another than the process has loaded, that is an error;
// 3. else libnccl.so.2, as dlopen(3) finds it;
// 4. else nvidia/nccl/lib/libnccl.so.2, where wheels have it, in each of these folders: those of
//    SetNcclSearchPath, those that SYNCLINE_NCCL_PATH and PYTHONPATH list, and the site-packages in
//    which Syncline itself is installed.
//
// It is opened with RTLD_LOCAL, and never closed.
//
// A function counts as there if the library has the symbol, and its version is not older than the
// one that NCCL had the function in first. Only the second is certain: libraries have had functions
// before they worked, and the stand-in of the tests has them all, whatever version it says it is.
#ifndef SYNCLINE_BACKENDS_NCCL_NCCL_LIBRARY_H_
#define SYNCLINE_BACKENDS_NCCL_NCCL_LIBRARY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/nccl/nccl_api.h"
#include "core/base/env.h"

namespace syncline::nccl {

// The NCCL of this process. The first call that finds one loads it; the result then stays, as long
// as the process. A call that fails leaves nothing loaded, and the next one tries again. Needs no
// device: NCCL looks for CUDA later. Any thread may call it.
//
// UnsupportedError that says where was looked, what dlerror(3) said, and what to set: there is no
// NCCL, it cannot be loaded, it is older than 2.18, it lacks a function that every NCCL has, or the
// process has loaded another one than SYNCLINE_NCCL_LIBRARY names.
absl::StatusOr<const NcclApi*> LoadNccl();

// Names folders in which LoadNccl looks for wheels, such as Python's sys.path: only the language
// knows it. Replaces what an earlier call has named. Any thread may call it.
void SetNcclSearchPath(std::vector<std::string> folders);

// For tests: where LoadNccl looks.
struct NcclSearch {
  base::EnvironmentLookup environment = base::GetEnv;
  std::string name = "libnccl.so.2";
  std::vector<std::string> folders;  // Those of SetNcclSearchPath.
};

// As LoadNccl(), but loads at each call. For tests.
absl::StatusOr<NcclApi> LoadNccl(const NcclSearch& search);

// "2.30.7". A number that NCCL has no more is shown as it is.
std::string VersionText(int version);

// "NCCL 2.30.7 (/usr/lib/libnccl.so.2)", for messages.
std::string Describe(const NcclApi& api);

}  // namespace syncline::nccl

#endif  // SYNCLINE_BACKENDS_NCCL_NCCL_LIBRARY_H_
