// A fuzz target with libFuzzer: --config=fuzz. Its options are those of libFuzzer, such as
// -runs=1000000.
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/fuzz/fuzz.h"

// Of libFuzzer.
extern "C" int LLVMFuzzerRunDriver(int* argc, char*** argv,
                                   int (*run_one)(const uint8_t* data, size_t size));

namespace syncline::fuzz {
namespace {

int Run(const uint8_t* data, size_t size) {
  RunOne(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}

// A new folder with the seeds, where libFuzzer puts what it finds worth keeping. Empty on failure.
std::string NewCorpus() {
  const char* const parent = std::getenv("TEST_TMPDIR");
  std::string folder = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/corpus.XXXXXX");
  if (mkdtemp(&folder[0]) == nullptr) return "";
  int number = 0;
  for (const std::string& seed : Seeds()) {
    std::ofstream(absl::StrCat(folder, "/seed-", ++number), std::ios::binary) << seed;
  }
  return folder;
}

int Main(int argc, char** argv) {
  std::string folder = NewCorpus();
  if (folder.empty()) {
    std::perror("no folder for the corpus");
    return 1;
  }
  std::vector<char*> arguments(argv, argv + argc);
  // A file or a folder that is named takes the place of the seeds.
  bool has_inputs = false;
  for (int i = 1; i < argc; ++i) has_inputs |= argv[i][0] != '-';
  if (!has_inputs) arguments.push_back(&folder[0]);
  // What has found a fault is kept where Bazel keeps what tests leave.
  const char* const outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  std::string prefix = absl::StrCat("-artifact_prefix=", outputs == nullptr ? "." : outputs, "/");
  arguments.insert(arguments.begin() + 1, &prefix[0]);
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  char** list = arguments.data();
  return LLVMFuzzerRunDriver(&count, &list, &Run);
}

}  // namespace
}  // namespace syncline::fuzz

int main(int argc, char** argv) { return syncline::fuzz::Main(argc, argv); }
