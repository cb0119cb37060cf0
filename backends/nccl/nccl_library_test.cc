#include "backends/nccl/nccl_library.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/testing/environments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string OfTest(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/syncline/backends/nccl/", name);
}

// A library with all functions, which do nothing. The stand-in for NCCL, which does more, stays
// loaded whatever references are given back, as many libraries of C++.
std::string StubPath() { return OfTest("stub_nccl.so"); }

// A search that finds nothing of the machine's own: by a name that no library has.
NcclSearch Search(const Variables& environment) {
  return {LookUpIn(environment), "libno_such_nccl.so.2", {}};
}

absl::Status Failure(const NcclSearch& search) {
  const absl::StatusOr<NcclApi> api = LoadNccl(search);
  EXPECT_FALSE(api.ok());
  EXPECT_EQ(KindOf(api.status()), ErrorKind::kUnsupported);
  return api.status();
}

std::string Message(const NcclSearch& search) { return std::string(Failure(search).message()); }

// Makes FOLDER/nvidia/nccl/lib/libno_such_nccl.so.2, a link to the stub. Returns FOLDER.
std::string MakeWheel(const std::string& name) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/", name);
  std::string path = folder;
  for (const char* const part : {"", "/nvidia", "/nccl", "/lib"}) {
    path += part;
    mkdir(path.c_str(), 0700);
  }
  path += "/libno_such_nccl.so.2";
  unlink(path.c_str());
  EXPECT_EQ(symlink(StubPath().c_str(), path.c_str()), 0);
  return folder;
}

bool IsLoaded() {
  void* const handle = dlopen(StubPath().c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

class NcclLibraryTest : public ::testing::Test {
 protected:
  // Gives back what a LoadNccl of a test keeps, so that the next test finds nothing loaded.
  static void Unload(const absl::StatusOr<NcclApi>& api) {
    ASSERT_TRUE(api.ok()) << api.status();
    void* const handle = dlopen(api->path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    ASSERT_NE(handle, nullptr);
    dlclose(handle);  // This reference, and the one that was kept.
    dlclose(handle);
    EXPECT_FALSE(IsLoaded());
  }

  ~NcclLibraryTest() override { unsetenv("FAKE_NCCL_VERSION"); }
};

TEST_F(NcclLibraryTest, WhereThereIsNoneTheErrorSaysWhatWasLookedForAndWhatToDo) {
  NcclSearch search =
      Search({{"PYTHONPATH", "/of/python:/of/more"}, {"SYNCLINE_NCCL_PATH", "/of/syncline"}});
  search.folders = {"/of/caller"};
  EXPECT_THAT(Message(search),
              AllOf(HasSubstr("libno_such_nccl.so.2: cannot open shared object file"),
                    HasSubstr("/of/caller/nvidia/nccl/lib/libno_such_nccl.so.2: cannot open"),
                    HasSubstr("/of/syncline/nvidia/nccl/lib/libno_such_nccl.so.2: cannot open"),
                    HasSubstr("/of/python/nvidia/nccl/lib/libno_such_nccl.so.2: cannot open"),
                    HasSubstr("/of/more/nvidia/nccl/lib/libno_such_nccl.so.2: cannot open"),
                    HasSubstr("nvidia-nccl-cu13"), HasSubstr("SYNCLINE_NCCL_LIBRARY")));
}

TEST_F(NcclLibraryTest, TheVariableNamesTheLibrary) {
  setenv("FAKE_NCCL_VERSION", "23007", 1);
  const absl::StatusOr<NcclApi> api = LoadNccl(Search({{"SYNCLINE_NCCL_LIBRARY", StubPath()}}));
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ(api->version, 23007);
  EXPECT_EQ(api->path, StubPath());
  EXPECT_EQ(Describe(*api), absl::StrCat("NCCL 2.30.7 (", StubPath(), ")"));
  EXPECT_NE(api->comm_register, nullptr);
  Unload(api);
}

TEST_F(NcclLibraryTest, AVariableThatNamesNoNcclIsAnError) {
  EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", "/no/such/libnccl.so"},
                              {"PYTHONPATH", MakeWheel("unused")}})),
              AllOf(HasSubstr("SYNCLINE_NCCL_LIBRARY"),
                    HasSubstr("/no/such/libnccl.so: cannot open shared object file"),
                    Not(HasSubstr("libno_such_nccl"))));
  EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", OfTest("no_nccl.so")}})),
              AllOf(HasSubstr("no_nccl.so"), HasSubstr("ncclGetVersion")));
  EXPECT_EQ(dlopen(OfTest("no_nccl.so").c_str(), RTLD_LAZY | RTLD_NOLOAD), nullptr);
}

TEST_F(NcclLibraryTest, WheelsAreFoundInEveryFolderThatIsNamed) {
  const std::string folder = MakeWheel("site");
  Unload(LoadNccl(Search({{"PYTHONPATH", absl::StrCat("/no/such:", folder)}})));
  Unload(LoadNccl(Search({{"SYNCLINE_NCCL_PATH", folder}})));
  NcclSearch search = Search({});
  search.folders = {"/no/such", folder};
  Unload(LoadNccl(search));
}

TEST_F(NcclLibraryTest, TheLoadersPathComesBeforeWheels) {
  NcclSearch search = Search({{"PYTHONPATH", "/no/such"}});
  search.name = StubPath();  // As if dlopen found it by its name.
  const absl::StatusOr<NcclApi> api = LoadNccl(search);
  Unload(api);
  EXPECT_EQ(api->path, StubPath());
}

TEST_F(NcclLibraryTest, WhatIsLoadedAlreadyIsTakenUnderAnyName) {
  void* const loaded = dlopen(StubPath().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(loaded, nullptr);
  const absl::StatusOr<NcclApi> api = LoadNccl(Search({{"PYTHONPATH", "/no/such"}}));
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ(api->path, StubPath());
  // And what the variable names has to be the same, under whatever path.
  const std::string link = MakeWheel("link") + "/nvidia/nccl/lib/libno_such_nccl.so.2";
  const absl::StatusOr<NcclApi> same = LoadNccl(Search({{"SYNCLINE_NCCL_LIBRARY", link}}));
  ASSERT_TRUE(same.ok()) << same.status();
  for (const std::string& other : {OfTest("lacking_nccl.so"), OfTest("no_nccl.so")}) {
    EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", other}})),
                AllOf(HasSubstr("has loaded the NCCL"), HasSubstr(StubPath()), HasSubstr(other)));
  }
  for (int references = 0; references < 3; ++references) dlclose(loaded);
  EXPECT_FALSE(IsLoaded());
}

TEST_F(NcclLibraryTest, TooOldIsAnErrorThatSaysSo) {
  setenv("FAKE_NCCL_VERSION", "21705", 1);
  EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", StubPath()}})),
              AllOf(HasSubstr("NCCL 2.17.5"), HasSubstr("too old"), HasSubstr("2.18.0")));
  EXPECT_FALSE(IsLoaded());
  setenv("FAKE_NCCL_VERSION", "2804", 1);
  EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", StubPath()}})), HasSubstr("NCCL 2.8.4"));
}

TEST_F(NcclLibraryTest, MissingFunctionsAreNamed) {
  EXPECT_THAT(Message(Search({{"SYNCLINE_NCCL_LIBRARY", OfTest("lacking_nccl.so")}})),
              AllOf(HasSubstr("NCCL 2.20.5"), HasSubstr("lacks functions: ncclGetErrorString"),
                    HasSubstr("ncclAllReduce"), Not(HasSubstr("ncclMemAlloc"))));
  EXPECT_EQ(dlopen(OfTest("lacking_nccl.so").c_str(), RTLD_LAZY | RTLD_NOLOAD), nullptr);
}

TEST_F(NcclLibraryTest, AVersionHasTheFunctionsThatItHad) {
  const auto load = [](const char* version) {
    setenv("FAKE_NCCL_VERSION", version, 1);
    absl::StatusOr<NcclApi> api = LoadNccl(Search({{"SYNCLINE_NCCL_LIBRARY", StubPath()}}));
    Unload(api);
    return *api;
  };
  EXPECT_EQ(load("21801").mem_alloc, nullptr);
  EXPECT_EQ(load("21805").comm_deregister, nullptr);
  EXPECT_NE(load("21903").mem_alloc, nullptr);
  EXPECT_NE(load("21903").comm_deregister, nullptr);
}

// Last, since it stays loaded.
TEST_F(NcclLibraryTest, TheProcessLoadsOneAndTriesAgainAfterAFailure) {
  const std::string path = std::getenv("SYNCLINE_NCCL_LIBRARY");  // Of fake_nccl_env.
  setenv("SYNCLINE_NCCL_LIBRARY", "/no/such/libnccl.so", 1);
  EXPECT_EQ(KindOf(LoadNccl().status()), ErrorKind::kUnsupported);
  setenv("SYNCLINE_NCCL_LIBRARY", path.c_str(), 1);
  SetNcclSearchPath({"/of/caller"});
  const absl::StatusOr<const NcclApi*> api = LoadNccl();
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->path, path);
  setenv("SYNCLINE_NCCL_LIBRARY", "/no/such/libnccl.so", 1);
  EXPECT_EQ(LoadNccl().value(), *api);
  setenv("SYNCLINE_NCCL_LIBRARY", path.c_str(), 1);
}

}  // namespace
}  // namespace syncline::nccl
