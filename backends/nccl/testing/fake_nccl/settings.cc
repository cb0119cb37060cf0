#include "backends/nccl/testing/fake_nccl/settings.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backends/nccl/testing/fake_nccl/fake_nccl.h"

namespace fake_nccl {
namespace {

using syncline::nccl::NcclResult;

struct Calls {
  std::mutex mutex;
  std::map<std::string, int> made;
  std::vector<std::pair<std::string, NcclResult>> to_fail;
};

Calls& TheCalls() {
  static Calls* const calls = new Calls;
  return *calls;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

int ToInt(const std::string& text) { return std::atoi(text.c_str()); }

}  // namespace

int Version() {
  const std::string text = Environment("FAKE_NCCL_VERSION");
  return text.empty() ? syncline::nccl::NcclVersion(2, 30, 7) : ToInt(text);
}

int InitDelayMs() { return ToInt(Environment("FAKE_NCCL_INIT_DELAY_MS")); }

bool AbortLoses() { return Environment("FAKE_NCCL_ABORT") == "loses"; }

int StalledFinalize() {
  const std::string text = Environment("FAKE_NCCL_STALL_FINALIZE");
  return text.empty() ? -1 : ToInt(text);
}

std::optional<NcclResult> CountCall(const char* function) {
  Calls& calls = TheCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const int made = ++calls.made[function];
  for (auto request = calls.to_fail.begin(); request != calls.to_fail.end(); ++request) {
    if (request->first != function) continue;
    const NcclResult result = request->second;
    calls.to_fail.erase(request);
    return result;
  }
  for (const std::string& request : Split(Environment("FAKE_NCCL_FAIL"), ',')) {
    const std::vector<std::string> parts = Split(request, ':');
    if (parts.size() == 3 && parts[0] == function && ToInt(parts[1]) == made) {
      return static_cast<NcclResult>(ToInt(parts[2]));
    }
  }
  return std::nullopt;
}

bool IsStalledByEnvironment(int rank, int64_t number) {
  const std::vector<std::string> parts = Split(Environment("FAKE_NCCL_STALL_RANK"), ':');
  if (parts.empty() || ToInt(parts[0]) != rank) return false;
  return parts.size() < 2 || number >= ToInt(parts[1]);
}

std::optional<NcclResult> AsyncErrorOf(int rank, int64_t number) {
  const std::vector<std::string> parts = Split(Environment("FAKE_NCCL_ASYNC_ERROR"), ':');
  if (parts.size() != 3 || ToInt(parts[0]) != rank || number <= ToInt(parts[1])) {
    return std::nullopt;
  }
  return static_cast<NcclResult>(ToInt(parts[2]));
}

}  // namespace fake_nccl

void fake_nccl_fail_next(const char* function, syncline::nccl::NcclResult result) {
  auto& calls = fake_nccl::TheCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  if (function == nullptr) {
    calls.to_fail.clear();
  } else {
    calls.to_fail.emplace_back(function, result);
  }
}

int fake_nccl_calls(const char* function) {
  auto& calls = fake_nccl::TheCalls();
  const std::lock_guard<std::mutex> lock(calls.mutex);
  const auto found = calls.made.find(function);
  return found == calls.made.end() ? 0 : found->second;
}
