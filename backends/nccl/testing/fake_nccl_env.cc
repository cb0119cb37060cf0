// Sets SYNCLINE_NCCL_LIBRARY before main, unless it is set: to libfake_nccl.so in the runfiles, for
// this process and for those that it starts.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr char kVariable[] = "SYNCLINE_NCCL_LIBRARY";
constexpr char kLibrary[] = "/syncline/backends/nccl/testing/fake_nccl/libfake_nccl.so";

// The folder of the runfiles: Bazel names it to tests, and puts it beside programs.
std::string Runfiles() {
  if (const char* const folder = std::getenv("TEST_SRCDIR"); folder != nullptr) return folder;
  if (const char* const folder = std::getenv("RUNFILES_DIR"); folder != nullptr) return folder;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0) + ".runfiles";
}

const bool kIsSet = [] {
  const char* const value = std::getenv(kVariable);
  if (value != nullptr && *value != '\0') return true;
  const std::string path = Runfiles() + kLibrary;
  // Without it a test would look for the machine's own NCCL, and pass or fail by that.
  if (access(path.c_str(), R_OK) != 0) {
    std::fprintf(stderr, "%s is missing: libfake_nccl.so is data of fake_nccl_env\n", path.c_str());
    std::abort();
  }
  setenv(kVariable, path.c_str(), 1);
  return true;
}();

}  // namespace
