#include "backends/mpi/mpi_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/testing/environments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::mpi {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string PathOf(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/syncline/backends/mpi/", name);
}

// Finds no library by name: the machine may have some.
absl::StatusOr<MpiLibrary> Load(Variables environment) {
  environment = With({{"TEST_SRCDIR", std::getenv("TEST_SRCDIR")}}, environment);
  return LoadMpiLibrary({LookUpIn(environment),
                         {{MpiFamily::kOpenMpi, "libno_such_mpi.so.40"},
                          {MpiFamily::kMpich, "libno_such_mpi.so.12"}}});
}

std::string Failure(const Variables& environment) {
  const absl::StatusOr<MpiLibrary> library = Load(environment);
  EXPECT_FALSE(library.ok());
  return std::string(library.status().message());
}

TEST(MpiLibraryTest, WhereNothingIsInstalledTheErrorSaysWhatWasLookedForAndWhatToDo) {
  EXPECT_EQ(KindOf(Load({}).status()), ErrorKind::kBackend);
  EXPECT_THAT(Failure({}), AllOf(HasSubstr("no MPI library can be loaded"),
                                 HasSubstr("libno_such_mpi.so.40: cannot open shared object file"),
                                 HasSubstr("libno_such_mpi.so.12: cannot open shared object file"),
                                 HasSubstr("LD_LIBRARY_PATH"), HasSubstr("SYNCLINE_MPI_LIBRARY")));
}

TEST(MpiLibraryTest, LibrariesOfTheLaunchersFamilyAreTriedFirst) {
  const std::string without = Failure({});
  EXPECT_LT(without.find("so.40"), without.find("so.12"));
  const std::string of_mpich = Failure({{"PMI_RANK", "0"}});
  EXPECT_LT(of_mpich.find("so.12"), of_mpich.find("so.40"));
}

TEST(MpiLibraryTest, FoldersOfOpenMpiAndOfVirtualEnvironmentsAreLookedIn) {
  EXPECT_THAT(Failure({{"OPAL_PREFIX", "/of/launcher"}, {"VIRTUAL_ENV", "/of/python"}}),
              AllOf(HasSubstr("/of/launcher/lib/libno_such_mpi.so.40"),
                    Not(HasSubstr("/of/launcher/lib/libno_such_mpi.so.12")),
                    HasSubstr("/of/python/lib/libno_such_mpi.so.12")));
}

TEST(MpiLibraryTest, TheLauncherIsKnownByItsVariables) {
  EXPECT_EQ(FamilyOfLauncher(LookUpIn({})), std::nullopt);
  EXPECT_EQ(FamilyOfLauncher(LookUpIn({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_RANK", "0"}})),
            MpiFamily::kOpenMpi);
  EXPECT_EQ(FamilyOfLauncher(LookUpIn({{"PMIX_RANK", "0"}})), MpiFamily::kOpenMpi);
  EXPECT_EQ(FamilyOfLauncher(LookUpIn({{"PMI_FD", "5"}, {"PMI_RANK", "0"}})), MpiFamily::kMpich);
}

TEST(MpiLibraryTest, OpenMpiNeedsPmixUnlessItHasAComponentForAnotherPmi) {
  const std::string library = absl::StrCat(testing::TempDir(), "/lib/libmpi.so.40");
  const std::string components = absl::StrCat(testing::TempDir(), "/components");
  const Variables named = {{"OPAL_PKGLIBDIR", components}};
  EXPECT_FALSE(NeedsPmix(library, LookUpIn(named)));  // No components are found.
  mkdir(components.c_str(), 0700);
  std::ofstream(absl::StrCat(components, "/mca_pmix_isolated.so"));
  EXPECT_TRUE(NeedsPmix(library, LookUpIn(named)));
  EXPECT_FALSE(NeedsPmix(library, LookUpIn({})));
  std::ofstream(absl::StrCat(components, "/mca_pmix_s2.so"));
  EXPECT_FALSE(NeedsPmix(library, LookUpIn(named)));
}

TEST(MpiLibraryTest, OpenMpisComponentsAreFoundBesideIt) {
  std::string folder = absl::StrCat(testing::TempDir(), "/debian");
  const std::string library = absl::StrCat(folder, "/libmpi.so.40");
  mkdir(folder.c_str(), 0700);
  for (const char* const name : {"/openmpi", "/lib", "/openmpi3"}) {
    absl::StrAppend(&folder, name);
    mkdir(folder.c_str(), 0700);
  }
  std::ofstream(absl::StrCat(folder, "/mca_pmix_isolated.so"));
  EXPECT_TRUE(NeedsPmix(library, LookUpIn({})));
}

TEST(MpiLibraryTest, AVariableThatNamesNoFileIsAnErrorThatNamesBoth) {
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", "/no/such/libmpi.so"}}),
              AllOf(HasSubstr("SYNCLINE_MPI_LIBRARY"),
                    HasSubstr("/no/such/libmpi.so: cannot open shared object file"),
                    Not(HasSubstr("libno_such_mpi"))));
}

TEST(MpiLibraryTest, AVariableThatNamesAnotherLibraryIsAnError) {
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("no_mpi.so")}}),
              AllOf(HasSubstr("no_mpi.so"), HasSubstr("is no MPI library")));
}

TEST(MpiLibraryTest, AnUnknownMpiIsUnsupported) {
  const Variables environment = {{"SYNCLINE_MPI_LIBRARY", PathOf("fake_other.so")}};
  EXPECT_EQ(KindOf(Load(environment).status()), ErrorKind::kUnsupported);
  EXPECT_THAT(Failure(environment), AllOf(HasSubstr("fake_other.so is an MPI that Syncline does"),
                                          HasSubstr("'Other MPI 1.0'")));
}

TEST(MpiLibraryTest, AMissingPluginIsNamedWithTheFolderThatWasLookedIn) {
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("fake_mpich.so")},
                       {"SYNCLINE_MPI_PLUGIN_DIR", "/no/such/folder"}}),
              AllOf(HasSubstr("plug-in for MPICH 4.9"), HasSubstr("fake_mpich.so"),
                    HasSubstr("/no/such/folder/libsyncline_mpi_mpich.so"),
                    HasSubstr("SYNCLINE_MPI_PLUGIN_DIR")));
}

TEST(MpiLibraryTest, AnIncompleteLibraryIsAnErrorThatNamesWhatItLacks) {
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("fake_mpich.so")}}),
              AllOf(HasSubstr("plug-in for MPICH 4.9"), HasSubstr("undefined symbol: MPI_")));
}

TEST(MpiLibraryTest, ALibraryThatIsLoadedAlreadyIsTakenUnderAnyName) {
  void* const loaded = dlopen(PathOf("fake_mpich.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr);
  EXPECT_THAT(Failure({}), HasSubstr("plug-in for MPICH 4.9"));
  // And what the variable names has to be the same.
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("fake_mpich.so")}}),
              HasSubstr("plug-in for MPICH 4.9"));
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("fake_other.so")}}),
              AllOf(HasSubstr("has loaded MPICH 4.9"), HasSubstr("fake_mpich.so"),
                    HasSubstr("SYNCLINE_MPI_LIBRARY is '"), HasSubstr("fake_other.so")));
  dlclose(loaded);
}

TEST(MpiLibraryTest, AFailedCallLeavesNothingLoaded) {
  EXPECT_THAT(Failure({{"SYNCLINE_MPI_LIBRARY", PathOf("fake_mpich.so")}}), HasSubstr("MPICH 4.9"));
  EXPECT_EQ(dlopen(PathOf("fake_mpich.so").c_str(), RTLD_LAZY | RTLD_NOLOAD), nullptr);
}

}  // namespace
}  // namespace syncline::mpi
