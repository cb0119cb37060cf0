#include "benchmarks/collectives/harness.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>

#include "absl/base/macros.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "benchmarks/collectives/buffers.h"

ABSL_FLAG(std::string, folder, "", "of the group");
ABSL_FLAG(int, rank, 0, "of this process");
ABSL_FLAG(int, size, 1, "number of ranks");
ABSL_FLAG(std::string, waiting, "spin", "at the gate: spin or yield");
ABSL_FLAG(std::string, variant, "", "of the system");

namespace syncline::benchmarks {
namespace {

// Calls before the timed ones.
constexpr int kWarmUpCalls = 2;

std::string Pipe(const Options& options, absl::string_view name) {
  return absl::StrCat(options.folder, "/", options.rank, ".", name);
}

// One line to the runner.
void Print(const Options& options, const std::string& text) {
  std::ofstream replies(Pipe(options, "replies"));
  replies << absl::StrReplaceAll(text, {{"\n", " "}}) + "\n" << std::flush;
}

// Makes `iterations` calls in a row. Each duration is the mean: a rank need not wait for the others
// between calls, so a single one says little.
absl::Status TimedInARow(const System::Function& function, int iterations, int64_t* durations) {
  const int64_t start = NowNs();
  for (int i = 0; i < iterations; ++i) {
    const absl::Status status = function();
    if (!status.ok()) return status;
  }
  std::fill_n(durations, iterations, (NowNs() - start) / iterations);
  return absl::OkStatus();
}

absl::Status Timed(const System::Function& function, const Buffers& buffers, int iterations,
                   bool is_in_a_row, Gate& gate, int64_t* durations) {
  const absl::Status missing = absl::UnavailableError("another rank has failed or is late");
  for (int i = -1 - kWarmUpCalls; i < iterations; ++i) {
    if (!gate.Pass()) return missing;
    if (is_in_a_row && i >= 0) {
      const absl::Status status = TimedInARow(function, iterations, durations);
      if (!status.ok()) return status;
      break;
    }
    const int64_t start = NowNs();
    absl::Status status = function();
    const int64_t duration = NowNs() - start;
    if (status.ok() && i == -1 - kWarmUpCalls) {
      if (!gate.Pass()) return missing;  // A thread may write another one's output.
      status = buffers.Check();
    }
    if (!status.ok()) return status;
    if (i >= 0) durations[i] = duration;
  }
  // The buffers must outlive the peers' use of them.
  return gate.Pass() ? absl::OkStatus() : missing;
}

// "run all_reduce 4096 100": bytes, iterations. The reply. With "row" at the end there is no gate
// between the timed calls.
std::string Run(const Options& options, System& system, Gate& gate, std::istream& order) {
  std::string name, mode;
  int64_t bytes = 0;
  int iterations = 0;
  order >> name >> bytes >> iterations >> mode;
  const auto operation = OperationOf(name);
  if (!operation.ok()) return absl::StrCat("error ", operation.status().message());
  const Buffers buffers(*operation, bytes, options.rank, options.size, system);
  const System::Function function = system.Prepare(buffers.call());
  if (function == nullptr) return "unsupported";
  const absl::Status status =
      Timed(function, buffers, std::clamp(iterations, 1, Gate::kMostIterations), mode == "row",
            gate, gate.Durations(options.rank));
  if (status.ok()) return "ok";
  gate.GiveUp();
  return absl::StrCat("error ", status.message());
}

}  // namespace

std::shared_ptr<void> System::Allocate(int64_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ABSL_RAW_CHECK(memory != MAP_FAILED, "no memory for the benchmark's buffers");
  std::memset(memory, 0, bytes);
  return {memory, [bytes](void* p) { munmap(p, bytes); }};
}

Options ParseOptions(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  Options options;
  options.folder = absl::GetFlag(FLAGS_folder);
  options.rank = absl::GetFlag(FLAGS_rank);
  options.size = absl::GetFlag(FLAGS_size);
  options.waiting = absl::GetFlag(FLAGS_waiting) == "yield" ? Waiting::kYield : Waiting::kSpin;
  options.variant = absl::GetFlag(FLAGS_variant);
  const char* const address = std::getenv("COLLECTIVES_ADDRESS");
  if (address != nullptr) options.address = address;
  return options;
}

int Serve(const Options& options, System& system) {
  const std::unique_ptr<Gate> gate(
      Gate::Open(absl::StrCat(options.folder, "/gate").c_str(), options.size, options.waiting));
  if (gate == nullptr) {
    return ReportError(options,
                       absl::UnavailableError(absl::StrCat("gate: ", std::strerror(errno))));
  }
  std::ifstream orders(Pipe(options, "orders"));
  Print(options, absl::StrCat("ready ", system.Describe()));
  // The pipe ends with the runner, and so does the wait.
  for (std::string line; std::getline(orders, line) && line != "quit";) {
    std::istringstream order(line);
    std::string verb;
    order >> verb;
    Print(options, verb == "run" ? Run(options, system, *gate, order)
                                 : absl::StrCat("error unknown order '", line, "'"));
  }
  return 0;
}

int ReportError(const Options& options, const absl::Status& status) {
  std::fprintf(stderr, "rank %d: %s\n", options.rank, status.ToString().c_str());
  Print(options, absl::StrCat("error ", status.message()));
  return 1;
}

}  // namespace syncline::benchmarks
