#include "backends/mpi/mpi_library.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <initializer_list>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "backends/mpi/embedded_plugins.h"
#include "core/base/unique_fd.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

constexpr char kLibraryVariable[] = "SYNCLINE_MPI_LIBRARY";
constexpr char kPluginFolderVariable[] = "SYNCLINE_MPI_PLUGIN_DIR";

// A reference to an object that dlopen(3) has opened, given back unless Keep is called.
class DlHandle {
 public:
  explicit DlHandle(void* handle) : handle_(handle) {}
  DlHandle(DlHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  DlHandle& operator=(DlHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~DlHandle() {
    if (handle_ != nullptr) dlclose(handle_);
  }

  void* get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  void Keep() { handle_ = nullptr; }

 private:
  void* handle_;
};

std::string DlError() {
  const char* const error = dlerror();
  return error == nullptr ? "dlopen gives no reason" : error;
}

// An MPI library that this process has loaded.
struct Candidate {
  DlHandle handle;
  std::string path;
  std::string text;  // MPI_Get_library_version.
  MpiFamily family;
};

// "Open MPI v4.1.4, package: ..." and "MPICH Version:\t4.0.2\nMPICH Release date: ..." to
// "Open MPI v4.1.4" and "MPICH 4.0.2".
std::string ShortVersion(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(absl::ByAnyChar("\n,"), 1));
  std::string version =
      absl::StrReplaceAll(parts.first, {{"Version", " "}, {":", " "}, {"\t", " "}});
  absl::RemoveExtraAsciiWhitespace(&version);
  return version;
}

std::string Describe(const Candidate& candidate) {
  return absl::StrCat(ShortVersion(candidate.text), " (", candidate.path, ")");
}

// Nothing if `handle`, and all that it depends on, has no MPI. Its `text` is then empty.
Candidate Examine(DlHandle handle) {
  Candidate candidate{std::move(handle), "", "", MpiFamily::kOpenMpi};
  void* const symbol = dlsym(candidate.handle.get(), "MPI_Get_library_version");
  if (symbol == nullptr) return candidate;
  // No family allows itself more than 8192 bytes.
  std::array<char, 65536> text{};
  int length = 0;
  reinterpret_cast<int (*)(char*, int*)>(symbol)(text.data(), &length);
  candidate.text = text.data();
  Dl_info info;
  if (dladdr(symbol, &info) != 0 && info.dli_fname != nullptr) candidate.path = info.dli_fname;
  return candidate;
}

// Tells the family of what Examine has found, or why there is none.
absl::Status FindFamily(Candidate& candidate) {
  void* const abi_version = dlsym(candidate.handle.get(), "MPI_Abi_get_version");
  // A library with an ABI of its own may have the function too, and says -1.
  int major = -1;
  int minor = -1;
  if (abi_version != nullptr) reinterpret_cast<int (*)(int*, int*)>(abi_version)(&major, &minor);
  if (major == 1) {
    candidate.family = MpiFamily::kStandardAbi;
  } else if (major > 1) {
    return UnsupportedError(absl::StrCat(Describe(candidate), " has version ", major, ".", minor,
                                         " of the standard ABI of MPI; Syncline knows version 1"));
  } else if (dlsym(candidate.handle.get(), "ompi_mpi_comm_world") != nullptr) {
    candidate.family = MpiFamily::kOpenMpi;
  } else if (absl::StrContains(candidate.text, "MPICH") ||
             absl::StrContains(candidate.text, "MVAPICH") ||
             absl::StrContains(candidate.text, "Intel(R) MPI")) {
    candidate.family = MpiFamily::kMpich;
  } else {
    return UnsupportedError(absl::StrCat(
        candidate.path, " is an MPI that Syncline does not know: '", ShortVersion(candidate.text),
        "'. It knows Open MPI, MPICH and what shares its ABI, and the standard ABI of MPI 5"));
  }
  return absl::OkStatus();
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

// The MPI libraries that this process has loaded: each object is asked, not its name, so that a
// library is found wherever it came from.
std::vector<Candidate> LoadedLibraries() {
  std::vector<Candidate> found;
  for (const std::string& path : LoadedObjects()) {
    DlHandle handle(dlopen(path.empty() ? nullptr : path.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    if (!handle) continue;
    Candidate candidate = Examine(std::move(handle));
    // An object that depends on the library finds it too.
    const bool is_new = std::none_of(found.begin(), found.end(), [&](const Candidate& other) {
      return other.path == candidate.path;
    });
    if (!candidate.text.empty() && is_new) found.push_back(std::move(candidate));
  }
  return found;
}

// An anonymous file with the contents of a plug-in, from which it can be loaded.
absl::StatusOr<base::UniqueFd> FileWith(const EmbeddedPlugin& plugin) {
#ifndef MFD_EXEC
  constexpr unsigned int MFD_EXEC = 0x10;  // Linux 6.3; older kernels refuse it.
#endif
  base::UniqueFd file(memfd_create(plugin.name, MFD_CLOEXEC | MFD_EXEC));
  if (!file.valid()) file = base::UniqueFd(memfd_create(plugin.name, MFD_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  for (size_t done = 0; done < plugin.size;) {
    const ssize_t written = write(file.get(), plugin.data + done, plugin.size - done);
    if (written < 0) return absl::ErrnoToStatus(errno, "writing to a memfd");
    done += static_cast<size_t>(written);
  }
  return file;
}

absl::string_view PluginOf(MpiFamily family) {
  switch (family) {
    case MpiFamily::kOpenMpi:
      return "libsyncline_mpi_openmpi.so";
    case MpiFamily::kMpich:
      return "libsyncline_mpi_mpich.so";
    case MpiFamily::kStandardAbi:
      break;
  }
  return "libsyncline_mpi_abi.so";
}

// Families in the order in which their libraries are tried.
std::vector<MpiFamily> Preference(const base::EnvironmentLookup& environment) {
  if (FamilyOfLauncher(environment) == MpiFamily::kMpich) {
    return {MpiFamily::kMpich, MpiFamily::kStandardAbi, MpiFamily::kOpenMpi};
  }
  if (FamilyOfLauncher(environment) == MpiFamily::kOpenMpi) {
    return {MpiFamily::kOpenMpi, MpiFamily::kStandardAbi, MpiFamily::kMpich};
  }
  return {MpiFamily::kOpenMpi, MpiFamily::kMpich, MpiFamily::kStandardAbi};
}

// Where dlopen(3) may find `name`, in the order in which it is tried. mpirun of Open MPI tells its
// processes where it is installed, which may be a folder that no search path has; so may a virtual
// environment, into which pip installs MPI libraries.
std::vector<std::string> PathsOf(const MpiLibrarySearch::Name& name,
                                 const base::EnvironmentLookup& environment) {
  std::vector<std::string> paths;
  const auto add_folder_of = [&](absl::string_view variable) {
    const std::optional<std::string> prefix = environment(variable);
    if (prefix.has_value() && !prefix->empty()) {
      paths.push_back(absl::StrCat(*prefix, "/lib/", name.name));
    }
  };
  if (name.family == MpiFamily::kOpenMpi) add_folder_of("OPAL_PREFIX");
  paths.push_back(name.name);
  add_folder_of("VIRTUAL_ENV");
  add_folder_of("CONDA_PREFIX");
  return paths;
}

absl::Status TwoLibraries(const Candidate& one, const Candidate& other) {
  return BackendError(absl::StrCat(
      "this process has loaded two MPI libraries, ", Describe(one), " and ", Describe(other),
      ". A process can use one: check what its modules (mpi4py, for example) are built for, and ",
      kLibraryVariable));
}

}  // namespace

// The steps of LoadMpiLibrary.
class MpiLibraryLoader {
 public:
  explicit MpiLibraryLoader(const MpiLibrarySearch& search) : search_(search) {}

  absl::StatusOr<MpiLibrary> Load() {
    SYNCLINE_ASSIGN_OR_RETURN(Candidate candidate, Find());
    SYNCLINE_RETURN_IF_ERROR(FindFamily(candidate));
    return LoadPlugin(std::move(candidate));
  }

 private:
  absl::StatusOr<Candidate> Find() {
    std::vector<Candidate> loaded = LoadedLibraries();
    for (Candidate& candidate : loaded) {
      SYNCLINE_RETURN_IF_ERROR(FindFamily(candidate));
      if (candidate.family != loaded[0].family) return TwoLibraries(loaded[0], candidate);
    }
    const std::optional<std::string> chosen = search_.environment(kLibraryVariable);
    const bool is_chosen = chosen.has_value() && !chosen->empty();
    if (!loaded.empty()) {
      if (is_chosen) SYNCLINE_RETURN_IF_ERROR(CheckIsChosen(loaded[0], *chosen));
      return std::move(loaded[0]);
    }
    return is_chosen ? OpenChosen(*chosen) : FindInstalled();
  }

  // The process has loaded `loaded`, and the environment names `chosen`.
  absl::Status CheckIsChosen(const Candidate& loaded, const std::string& chosen) {
    const DlHandle handle(dlopen(chosen.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    if (handle) return absl::OkStatus();
    return BackendError(absl::StrCat(
        "this process has loaded ", Describe(loaded), " already, but ", kLibraryVariable, " is '",
        chosen, "'. A process can use one MPI library: unset the variable, or set it to ",
        loaded.path));
  }

  absl::StatusOr<Candidate> OpenChosen(const std::string& chosen) {
    DlHandle handle(dlopen(chosen.c_str(), RTLD_NOW | RTLD_LOCAL));
    if (!handle) {
      return BackendError(absl::StrCat("cannot load the MPI library that ", kLibraryVariable,
                                       " names: ", DlError(),
                                       ". Set it to the path of an MPI library, or unset it to "
                                       "have the installed ones looked for"));
    }
    Candidate candidate = Examine(std::move(handle));
    if (candidate.text.empty()) {
      return BackendError(absl::StrCat(chosen, ", which ", kLibraryVariable,
                                       " names, is no MPI library: it has no "
                                       "MPI_Get_library_version"));
    }
    return candidate;
  }

  absl::StatusOr<Candidate> FindInstalled() {
    std::vector<std::string> failures;
    for (const MpiFamily family : Preference(search_.environment)) {
      for (const MpiLibrarySearch::Name& name : search_.names) {
        if (name.family != family) continue;
        for (const std::string& path : PathsOf(name, search_.environment)) {
          DlHandle handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL));
          if (!handle) {
            failures.push_back(DlError());
            continue;
          }
          Candidate candidate = Examine(std::move(handle));
          if (!candidate.text.empty()) return candidate;
          failures.push_back(absl::StrCat(path, ": it is no MPI library"));
        }
      }
    }
    return BackendError(absl::StrCat(
        "no MPI library can be loaded: ", absl::StrJoin(failures, "; "),
        ". Install Open MPI or MPICH, add the folder of its libraries to LD_LIBRARY_PATH, or set ",
        kLibraryVariable, " to the path of the library"));
  }

  // The plug-in for the candidate's family.
  absl::StatusOr<DlHandle> OpenPlugin(const Candidate& candidate) {
    const absl::string_view name = PluginOf(candidate.family);
    const auto failed = [&](absl::string_view reason) {
      return BackendError(
          absl::StrCat("cannot load Syncline's plug-in for ", Describe(candidate), ": ", reason));
    };
    const std::optional<std::string> folder = search_.environment(kPluginFolderVariable);
    if (folder.has_value() && !folder->empty()) {
      DlHandle handle(dlopen(absl::StrCat(*folder, "/", name).c_str(), RTLD_NOW | RTLD_LOCAL));
      if (handle) return handle;
      return failed(absl::StrCat(DlError(), " (", kPluginFolderVariable, ")"));
    }
    for (const EmbeddedPlugin& plugin : EmbeddedPlugins()) {
      if (plugin.name != name) continue;
      absl::StatusOr<base::UniqueFd> file = FileWith(plugin);
      if (!file.ok()) return failed(file.status().message());
      DlHandle handle(
          dlopen(absl::StrCat("/proc/self/fd/", file->get()).c_str(), RTLD_NOW | RTLD_LOCAL));
      if (handle) return handle;
      return failed(absl::StrCat(DlError(), ". Where memory files may not be executed, set ",
                                 kPluginFolderVariable, " to a folder that has ", name));
    }
    return failed(absl::StrCat("this build of Syncline has no ", name));
  }

  absl::StatusOr<MpiLibrary> LoadPlugin(Candidate candidate) {
    // What was loaded with RTLD_LOCAL, as modules of Python are with all that they need, becomes
    // global: the plug-in has to find it. On failure both references go, and the library with them
    // unless somebody else has one.
    DlHandle library(candidate.handle.get() == dlopen(nullptr, RTLD_LAZY)
                         ? nullptr  // The program itself is global.
                         : dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD));
    SYNCLINE_ASSIGN_OR_RETURN(DlHandle plugin, OpenPlugin(candidate));
    const auto function =
        reinterpret_cast<MpiPluginFunction>(dlsym(plugin.get(), kMpiPluginSymbol));
    const MpiApi* const api = function == nullptr ? nullptr : function();
    if (api == nullptr || api->version != MpiApi::kVersion ||
        api->family != NameOf(candidate.family)) {
      return BackendError(absl::StrCat(PluginOf(candidate.family), " does not fit ",
                                       Describe(candidate),
                                       ", or is of another build of Syncline"));
    }
    // Symbols of another MPI library, loaded before, would come first.
    std::array<char, 65536> text{};
    api->library_version(text.data(), text.size());
    if (candidate.text != text.data()) {
      return BackendError(absl::StrCat("the symbols of ", ShortVersion(text.data()),
                                       ", which this process has loaded, hide those of ",
                                       Describe(candidate), ". A process can use one MPI library"));
    }
    MpiLibrary made;
    made.api_ = api;
    made.family_ = candidate.family;
    made.path_ = candidate.path;
    made.version_ = ShortVersion(candidate.text);
    candidate.handle.Keep();
    library.Keep();
    plugin.Keep();
    return made;
  }

  const MpiLibrarySearch& search_;
};

absl::string_view NameOf(MpiFamily family) {
  switch (family) {
    case MpiFamily::kOpenMpi:
      return "Open MPI";
    case MpiFamily::kMpich:
      return "MPICH";
    case MpiFamily::kStandardAbi:
      break;
  }
  return "MPI 5 ABI";
}

std::optional<MpiFamily> FamilyOfLauncher(const base::EnvironmentLookup& environment) {
  const auto has_any = [&](std::initializer_list<absl::string_view> names) {
    return std::any_of(names.begin(), names.end(), [&](absl::string_view name) {
      return !environment(name).value_or("").empty();
    });
  };
  // mpirun may run where PMI_* is set, in a job of Slurm for example. Slurm sets one of the others,
  // as --mpi says.
  if (has_any({"OMPI_COMM_WORLD_SIZE"})) return MpiFamily::kOpenMpi;
  if (has_any({"PMI_RANK", "PMI_SIZE", "PMI_FD"})) return MpiFamily::kMpich;
  if (has_any({"PMIX_RANK", "PMIX_NAMESPACE"})) return MpiFamily::kOpenMpi;
  return std::nullopt;
}

bool NeedsPmix(const std::string& path, const base::EnvironmentLookup& environment) {
  const std::string beside = path.substr(0, path.rfind('/'));
  // Upstream's folder, and Debian's.
  for (const std::string& folder :
       {environment("OPAL_PKGLIBDIR").value_or(""), absl::StrCat(beside, "/openmpi"),
        absl::StrCat(beside, "/openmpi/lib/openmpi3")}) {
    const auto has = [&](absl::string_view component) {
      return access(absl::StrCat(folder, "/mca_pmix_", component, ".so").c_str(), F_OK) == 0;
    };
    if (has("isolated")) return !has("s1") && !has("s2") && !has("cray");  // All have "isolated".
  }
  return false;
}

std::string MpiLibrary::Describe() const { return absl::StrCat(version_, " (", path_, ")"); }

std::vector<MpiLibrarySearch::Name> MpiLibrarySearch::KnownNames() {
  return {
      {MpiFamily::kOpenMpi, "libmpi.so.40"},
      {MpiFamily::kMpich, "libmpi.so.12"},    // MPICH, as upstream, PyPI, Intel and Cray have it.
      {MpiFamily::kMpich, "libmpich.so.12"},  // As Debian has it.
      {MpiFamily::kStandardAbi, "libmpi_abi.so.1"},
      {MpiFamily::kStandardAbi, "libmpi_abi.so.0"},
  };
}

absl::StatusOr<MpiLibrary> LoadMpiLibrary(const MpiLibrarySearch& search) {
  return MpiLibraryLoader(search).Load();
}

absl::StatusOr<const MpiLibrary*> MpiLibrary::Get() {
  // Never destroyed: threads may use the library until the process ends.
  static absl::Mutex* const mutex = new absl::Mutex;
  static const MpiLibrary* loaded ABSL_GUARDED_BY(*mutex) = nullptr;
  absl::MutexLock lock(mutex);
  if (loaded == nullptr) {
    SYNCLINE_ASSIGN_OR_RETURN(MpiLibrary library, LoadMpiLibrary({}));
    loaded = new MpiLibrary(std::move(library));
  }
  return loaded;
}

}  // namespace syncline::mpi
