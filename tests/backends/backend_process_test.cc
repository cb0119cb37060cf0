// The data cases of the backends' suite with ranks as processes. The program is its own worker.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "syncline/file_store.h"
#include "syncline/prefix_store.h"
#include "syncline/status.h"
#include "tests/backends/conformance_data.h"
#include "tests/support/processes.h"

namespace syncline {
namespace {

// The backends between processes. To add one, add its name.
const char* const kBackends[] = {"auto", "gloo", "shm", "tcp"};

absl::StatusOr<uint64_t> RunCase(const DataCase& data_case, const std::string& backend,
                                 const std::shared_ptr<Store>& store, int rank, int size) {
  auto own = std::make_shared<PrefixStore>(data_case.name, store);
  SYNCLINE_ASSIGN_OR_RETURN(auto member, Member::Join(backend, own, rank, size));
  SYNCLINE_RETURN_IF_ERROR(data_case.run(*member));
  return member->digest();
}

// A worker: prints how each case ended. arguments: --worker backend rank size store.
int Work(char** argv) {
  int rank, size;
  if (!absl::SimpleAtoi(argv[3], &rank) || !absl::SimpleAtoi(argv[4], &size)) return 1;
  const std::shared_ptr<Store> store = FileStore::Open(argv[5]).value();
  for (const DataCase& data_case : DataCases()) {
    const auto digest = RunCase(data_case, argv[2], store, rank, size);
    const std::string outcome =
        digest.ok() ? absl::StrCat("OK ", *digest) : digest.status().ToString();
    std::printf("%s: %s\n", data_case.name.c_str(), outcome.c_str());
    std::fflush(stdout);
  }
  return 0;
}

class BackendProcessTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

INSTANTIATE_TEST_SUITE_P(All, BackendProcessTest,
                         testing::Combine(testing::ValuesIn(kBackends),
                                          testing::Values(1, 2, 3, 7)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

TEST_P(BackendProcessTest, DataIsRightAndBitwiseEqualWhereItMustBe) {
  const auto& [backend, size] = GetParam();
  const ScratchFolder folder;
  const std::string store = absl::StrCat(folder.path(), "/store");
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < size; ++rank) {
    workers.push_back(std::make_unique<Process>(std::vector<std::string>{
        "--worker", backend, absl::StrCat(rank), absl::StrCat(size), store}));
  }
  std::vector<std::string> first;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<std::string> lines =
        absl::StrSplit(workers[rank]->Output(absl::Minutes(4)), '\n', absl::SkipEmpty());
    if (rank == 0) first = lines;
    ASSERT_EQ(lines.size(), DataCases().size()) << "rank " << rank << ": " << lines.back();
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_TRUE(absl::StartsWith(lines[i], absl::StrCat(DataCases()[i].name, ": OK ")))
          << "rank " << rank << ": " << lines[i];
      EXPECT_EQ(lines[i], first[i]) << "results of rank " << rank << " differ from rank 0's";
    }
  }
}

}  // namespace
}  // namespace syncline

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "--worker") return syncline::Work(argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
