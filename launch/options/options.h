// The command line of the launcher.
#ifndef SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_
#define SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline {

// Some of a worker's two output streams.
enum class Streams { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };

inline bool Includes(Streams streams, Streams one) {
  return (static_cast<int>(streams) & static_cast<int>(one)) != 0;
}

// For every local rank, some of its streams.
struct StreamMap {
  Streams others = Streams::kNone;  // Of the ranks that by_rank does not list.
  std::map<int, Streams> by_rank;

  Streams For(int local_rank) const {
    const auto found = by_rank.find(local_rank);
    return found == by_rank.end() ? others : found->second;
  }
  bool any() const { return others != Streams::kNone || !by_rank.empty(); }
};

struct LaunchOptions {
  enum class Program {
    kScript,      // python -u program arguments
    kModule,      // python -u -m program arguments
    kExecutable,  // program arguments
  };
  Program kind = Program::kScript;
  std::string program;
  std::vector<std::string> arguments;

  int workers = 1;  // --nproc-per-node, resolved.
  int max_restarts = 0;
  absl::Duration shutdown_timeout = absl::Seconds(30);
  std::string role = "default";
  std::string run_id;  // --rdzv-id; empty: a random one.
  int store_port = 0;  // Of --rdzv-endpoint; 0 lets the system choose.
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: a free one for each attempt.

  std::string log_dir;          // Empty: none was given.
  StreamMap redirects;          // To files only.
  StreamMap tee;                // To files and to the console. Wins over redirects.
  std::set<int> console_ranks;  // Local ranks shown on the console; empty: all.

  std::string information;  // --help, --version: print this, start nothing.
};

// What "auto", "cpu" and "gpu" count.
struct HostResources {
  int cpus = 1;
  int gpus = 0;
};
// CPUs this process may use; GPUs with a device file, fewer if CUDA_VISIBLE_DEVICES says so.
HostResources DetectHostResources();

using EnvironmentLookup = std::function<std::optional<std::string>(absl::string_view name)>;

// Reads `arguments` (without the program's name). All that follows the script belongs to the
// script. Options may be spelled with dashes or underscores; where one is not given,
// PET_<OPTION> in the environment counts. Any error says what to write instead. The file system
// is not looked at.
absl::StatusOr<LaunchOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const EnvironmentLookup& environment,
                                           const HostResources& host);

}  // namespace syncline

#endif  // SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_
