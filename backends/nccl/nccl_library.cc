#include "backends/nccl/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

constexpr char kLibraryVariable[] = "SYNCLINE_NCCL_LIBRARY";
constexpr char kPathVariable[] = "SYNCLINE_NCCL_PATH";

struct Closer {
  void operator()(void* handle) const { dlclose(handle); }
};

// A reference to an object that dlopen(3) has opened.
using DlHandle = std::unique_ptr<void, Closer>;

std::string DlError() {
  const char* const error = dlerror();
  return error == nullptr ? "dlopen gives no reason" : error;
}

// The paths of all objects of this process; that of the program is empty.
std::vector<std::string> LoadedObjects() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        static_cast<std::vector<std::string>*>(data)->push_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

// The NCCL that this process has loaded, or null. Each object is asked, not its name: a library is
// found wherever it came from, and one that a program or torch was linked with statically too.
DlHandle FindLoaded() {
  for (const std::string& path : LoadedObjects()) {
    DlHandle handle(dlopen(path.empty() ? nullptr : path.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    if (handle != nullptr && dlsym(handle.get(), "ncclGetVersion") != nullptr) return handle;
  }
  return nullptr;
}

// The folders in which Python has installed what the code of this function is part of.
std::vector<std::string> OwnSitePackages() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&OwnSitePackages), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::vector<std::string> found;
  absl::string_view folder = info.dli_fname;
  while (true) {
    const size_t slash = folder.rfind('/');
    if (slash == absl::string_view::npos) return found;
    folder = folder.substr(0, slash);
    if (absl::EndsWith(folder, "/site-packages") || absl::EndsWith(folder, "/dist-packages")) {
      found.emplace_back(folder);
    }
  }
}

// The paths that step 4 of nccl_library.h tries.
std::vector<std::string> PathsOfWheels(const NcclSearch& search) {
  std::vector<std::string> folders = search.folders;
  for (const absl::string_view variable :
       {absl::string_view(kPathVariable), absl::string_view("PYTHONPATH")}) {
    const std::string listed = search.environment(variable).value_or("");
    for (const absl::string_view folder : absl::StrSplit(listed, ':', absl::SkipEmpty())) {
      folders.emplace_back(folder);
    }
  }
  for (std::string& folder : OwnSitePackages()) folders.push_back(std::move(folder));
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    paths.push_back(absl::StrCat(folder, "/nvidia/nccl/lib/", search.name));
  }
  return paths;
}

absl::StatusOr<DlHandle> OpenChosen(const std::string& chosen) {
  DlHandle handle(dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle != nullptr) return handle;
  return UnsupportedError(absl::StrCat("cannot load the NCCL that ", kLibraryVariable,
                                       " names: ", DlError(),
                                       ". Set it to the path of libnccl.so.2, or unset it to have "
                                       "the installed ones looked for"));
}

absl::StatusOr<DlHandle> FindInstalled(const NcclSearch& search) {
  std::vector<std::string> paths = PathsOfWheels(search);
  paths.insert(paths.begin(), search.name);
  std::vector<std::string> failures;
  for (const std::string& path : paths) {
    DlHandle handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (handle != nullptr) return handle;
    failures.push_back(DlError());
  }
  return UnsupportedError(absl::StrCat(
      "no NCCL can be loaded: ", absl::StrJoin(failures, "; "),
      ". Install it (the package nvidia-nccl-cu13 or nvidia-nccl-cu12, or the system's), add its "
      "folder to LD_LIBRARY_PATH, or set ",
      kLibraryVariable, " to the path of libnccl.so.2"));
}

absl::StatusOr<DlHandle> Open(const NcclSearch& search) {
  const std::string chosen = search.environment(kLibraryVariable).value_or("");
  DlHandle loaded = FindLoaded();
  if (loaded == nullptr) return chosen.empty() ? FindInstalled(search) : OpenChosen(chosen);
  if (chosen.empty()) return loaded;
  // The reference of `same`, if it is the same one, keeps its mapping and that of `loaded` valid.
  const DlHandle same(dlopen(chosen.c_str(), RTLD_LAZY | RTLD_NOLOAD));
  void* const symbol = same == nullptr ? nullptr : dlsym(same.get(), "ncclGetVersion");
  if (symbol != nullptr && symbol == dlsym(loaded.get(), "ncclGetVersion")) return loaded;
  Dl_info info;
  const bool is_known = dladdr(dlsym(loaded.get(), "ncclGetVersion"), &info) != 0;
  const std::string path = is_known ? info.dli_fname : "of an unknown file";
  return UnsupportedError(absl::StrCat("this process has loaded the NCCL ", path, " already, but ",
                                       kLibraryVariable, " is '", chosen,
                                       "'. A process can use one NCCL: unset the variable, or set "
                                       "it to ",
                                       path));
}

// Looks functions up, and keeps the names of those that are missing.
class Symbols {
 public:
  Symbols(void* handle, int version) : handle_(handle), version_(version) {}

  template <typename Function>
  void Require(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(handle_, name));
    if (function == nullptr) missing_.push_back(name);
  }

  template <typename Function>
  void FindSince(int since, const char* name, Function*& function) {
    function = version_ < since ? nullptr : reinterpret_cast<Function*>(dlsym(handle_, name));
  }

  const std::vector<std::string>& missing() const { return missing_; }

 private:
  void* const handle_;
  const int version_;
  std::vector<std::string> missing_;
};

// Fills in the functions of `api`, whose version is set. Returns those missing that must be there.
std::vector<std::string> FindFunctions(void* handle, NcclApi& api) {
  Symbols symbols(handle, api.version);
  symbols.Require("ncclGetVersion", api.get_version);
  symbols.Require("ncclGetErrorString", api.get_error_string);
  symbols.Require("ncclGetLastError", api.get_last_error);
  symbols.Require("ncclGetUniqueId", api.get_unique_id);
  symbols.Require("ncclCommInitRank", api.comm_init_rank);
  symbols.Require("ncclCommInitRankConfig", api.comm_init_rank_config);
  symbols.Require("ncclCommFinalize", api.comm_finalize);
  symbols.Require("ncclCommDestroy", api.comm_destroy);
  symbols.Require("ncclCommAbort", api.comm_abort);
  symbols.Require("ncclCommSplit", api.comm_split);
  symbols.Require("ncclCommGetAsyncError", api.comm_get_async_error);
  symbols.Require("ncclRedOpCreatePreMulSum", api.red_op_create_pre_mul_sum);
  symbols.Require("ncclRedOpDestroy", api.red_op_destroy);
  symbols.Require("ncclReduce", api.reduce);
  symbols.Require("ncclBroadcast", api.broadcast);
  symbols.Require("ncclAllReduce", api.all_reduce);
  symbols.Require("ncclReduceScatter", api.reduce_scatter);
  symbols.Require("ncclAllGather", api.all_gather);
  symbols.Require("ncclSend", api.send);
  symbols.Require("ncclRecv", api.recv);
  symbols.Require("ncclGroupStart", api.group_start);
  symbols.Require("ncclGroupEnd", api.group_end);
  symbols.FindSince(NcclVersion(2, 19, 0), "ncclMemAlloc", api.mem_alloc);
  symbols.FindSince(NcclVersion(2, 19, 0), "ncclMemFree", api.mem_free);
  symbols.FindSince(NcclVersion(2, 19, 0), "ncclCommRegister", api.comm_register);
  symbols.FindSince(NcclVersion(2, 19, 0), "ncclCommDeregister", api.comm_deregister);
  return symbols.missing();
}

// The folders of SetNcclSearchPath. Never destroyed, nor is what LoadNccl has loaded: threads may
// use it until the process ends.
struct Process {
  absl::Mutex mutex;
  std::vector<std::string> folders ABSL_GUARDED_BY(mutex);
  const NcclApi* loaded ABSL_GUARDED_BY(mutex) = nullptr;
};

Process& ThisProcess() {
  static Process* const process = new Process;
  return *process;
}

}  // namespace

absl::StatusOr<NcclApi> LoadNccl(const NcclSearch& search) {
  SYNCLINE_ASSIGN_OR_RETURN(DlHandle handle, Open(search));
  NcclApi api;
  void* const symbol = dlsym(handle.get(), "ncclGetVersion");
  if (symbol == nullptr) {
    return UnsupportedError(
        absl::StrCat("what was found as NCCL has no ncclGetVersion: ", DlError()));
  }
  Dl_info info;
  if (dladdr(symbol, &info) != 0 && info.dli_fname != nullptr) api.path = info.dli_fname;
  const NcclResult result = reinterpret_cast<decltype(api.get_version)>(symbol)(&api.version);
  if (result != kNcclSuccess) {
    return UnsupportedError(absl::StrCat("ncclGetVersion of ", api.path, " fails with result ",
                                         static_cast<int>(result)));
  }
  if (api.version < NcclApi::kOldest) {
    return UnsupportedError(absl::StrCat(Describe(api), " is too old: Syncline needs ",
                                         VersionText(NcclApi::kOldest), " or later"));
  }
  const std::vector<std::string> missing = FindFunctions(handle.get(), api);
  if (!missing.empty()) {
    return UnsupportedError(
        absl::StrCat(Describe(api), " lacks functions: ", absl::StrJoin(missing, ", ")));
  }
  handle.release();  // Stays loaded.
  return api;
}

absl::StatusOr<const NcclApi*> LoadNccl() {
  Process& process = ThisProcess();
  absl::MutexLock lock(&process.mutex);
  if (process.loaded == nullptr) {
    NcclSearch search;
    search.folders = process.folders;
    SYNCLINE_ASSIGN_OR_RETURN(NcclApi api, LoadNccl(search));
    process.loaded = new NcclApi(std::move(api));
  }
  return process.loaded;
}

void SetNcclSearchPath(std::vector<std::string> folders) {
  Process& process = ThisProcess();
  absl::MutexLock lock(&process.mutex);
  process.folders = std::move(folders);
}

std::string VersionText(int version) {
  if (version < 0) return absl::StrCat(version);
  const int major = version < NcclVersion(2, 9, 0) ? version / 1000 : version / 10000;
  return absl::StrCat(major, ".",
                      version < NcclVersion(2, 9, 0) ? version / 100 % 10 : version / 100 % 100,
                      ".", version % 100);
}

std::string Describe(const NcclApi& api) {
  return absl::StrCat("NCCL ", VersionText(api.version), " (", api.path, ")");
}

}  // namespace syncline::nccl
