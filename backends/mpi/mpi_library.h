// Finds and loads the MPI library of this process, and the plug-in for it.
//
// Nothing of Syncline is linked with MPI. A program that needs it opens what there is:
//
// 1. the MPI library that the process has loaded already, whoever did and from wherever;
// 2. else the one that SYNCLINE_MPI_LIBRARY names, by a path or as dlopen(3) finds it;
// 3. else what is installed, by the names that MPI libraries have. Of several, the one of the
// family
//    of the launcher that has started the process: any other comes up as a world of one.
//
// The library is opened with RTLD_GLOBAL, as a program linked with it would have it, since the
// plug-in and the library's own components take their symbols from there. It is never closed.
#ifndef SYNCLINE_BACKENDS_MPI_MPI_LIBRARY_H_
#define SYNCLINE_BACKENDS_MPI_MPI_LIBRARY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "backends/mpi/mpi_api.h"
#include "core/base/env.h"

namespace syncline::mpi {

// Libraries of one family have the same ABI.
enum class MpiFamily {
  kOpenMpi,
  kMpich,        // And what shares its ABI: Intel MPI, Cray MPICH, MVAPICH.
  kStandardAbi,  // That of MPI 5, whoever made the library.
};

// "Open MPI", "MPICH", "MPI 5 ABI"; as MpiApi::family.
absl::string_view NameOf(MpiFamily family);

// The family whose launcher has started this process, by what launchers set: OMPI_COMM_WORLD_SIZE
// or PMIX_RANK for Open MPI, PMI_RANK, PMI_SIZE or PMI_FD for MPICH. Nothing if none is set.
std::optional<MpiFamily> FamilyOfLauncher(const base::EnvironmentLookup& environment);

// Whether PMIx is the only way in which srun can start processes of the Open MPI library at `path`:
// it has no component for PMI-1 or PMI-2, as before version 5 it may. False where its components
// are not found, which are looked for beside the library and in OPAL_PKGLIBDIR.
bool NeedsPmix(const std::string& path, const base::EnvironmentLookup& environment);

// An MPI library that is loaded, with its plug-in. Immutable; any thread may use it.
class MpiLibrary {
 public:
  // The library of this process. The first call that finds one loads it; the result then stays. A
  // call that fails leaves nothing loaded, and the next tries again. Does not initialise MPI. Any
  // thread may call it.
  //
  // BackendError or UnsupportedError that says what was looked for and found, what dlerror(3) said,
  // and what to set: there is none, it cannot be loaded, it is no MPI or none that Syncline knows,
  // its plug-in is missing, or the process has loaded MPI libraries of two families.
  static absl::StatusOr<const MpiLibrary*> Get();

  const MpiApi& api() const { return *api_; }
  MpiFamily family() const { return family_; }
  const std::string& path() const { return path_; }        // Of the file.
  const std::string& version() const { return version_; }  // "Open MPI v4.1.4", "MPICH 5.0.2".
  // For messages: "MPICH 5.0.2 (/usr/lib/libmpi.so.12)".
  std::string Describe() const;

 private:
  friend class MpiLibraryLoader;

  const MpiApi* api_ = nullptr;
  MpiFamily family_ = MpiFamily::kOpenMpi;
  std::string path_;
  std::string version_;
};

// For tests: what Get looks for.
struct MpiLibrarySearch {
  struct Name {
    MpiFamily family;  // Of libraries of this name. In what order names are tried depends on it.
    std::string name;
  };

  base::EnvironmentLookup environment = base::GetEnv;
  // In which environment variables name folders to look in: see mpi_library.cc.
  std::vector<Name> names = KnownNames();

  static std::vector<Name> KnownNames();
};

// As Get, but loads a library at each call. For tests.
absl::StatusOr<MpiLibrary> LoadMpiLibrary(const MpiLibrarySearch& search);

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_MPI_LIBRARY_H_
