// The backends' suite on backend mpi, as a program that mpirun starts: each process is a rank.
//
//   mpirun -n 2 mpi_conformance FILE [options of GoogleTest]
//
// The ranks meet in the file store FILE.
#include <cstdio>
#include <memory>

#include "absl/time/time.h"
#include "backends/mpi/mpi_runtime.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/file_store.h"
#include "tests/backends/backend_conformance.h"
#include "tests/backends/suite_ranks.h"

namespace syncline {
namespace {

int world_size = 1;

INSTANTIATE_TEST_SUITE_P(All, BackendConformance,
                         testing::Combine(testing::Values(BackendCase{"mpi"}),
                                          testing::Values(world_size)),
                         &CaseName);
INSTANTIATE_TEST_SUITE_P(All, BackendData,
                         testing::Combine(testing::Values(BackendCase{"mpi"}),
                                          testing::Values(world_size),
                                          testing::ValuesIn(DataCaseNames())),
                         &DataCaseName);

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FILE [options of GoogleTest]\n", argv[0]);
    return 2;
  }
  const auto runtime = mpi::MpiRuntime::Get(Deadline(absl::Minutes(1)));
  if (!runtime.ok()) {
    std::fprintf(stderr, "%s\n", runtime.status().ToString().c_str());
    return 1;
  }
  world_size = (*runtime)->world_size();
  const auto store = FileStore::Open(argv[1]);
  if (!store.ok()) {
    std::fprintf(stderr, "%s\n", store.status().ToString().c_str());
    return 1;
  }
  SuiteRanks::UseProcesses(*store, (*runtime)->world_rank(), world_size);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) { return syncline::Main(argc, argv); }
