// The launcher's options, parsed: the result of all sources. Plain values.
#ifndef SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_
#define SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_

#include <signal.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/env.h"
#include "core/tls/settings.h"

namespace syncline::launch {

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

// How many nodes a job may have.
struct NodeRange {
  int min = 1;
  int max = 1;
};

// --rdzv-*: how nodes find each other. Times are those of --rdzv-conf.
struct RendezvousOptions {
  enum class Backend {
    kStatic,  // Node ranks are given; the node with rank 0 hosts the store.
    kC10d,    // A node that can bind the endpoint hosts the store.
    kEtcd,
    kFile,
  };
  Backend backend = Backend::kStatic;
  std::string host;  // Of the endpoint; empty: this host alone.
  int port = 0;      // 0: the system chooses; only possible on one node.
  std::string path;  // kFile.
  std::string id;    // Empty: a random one, which only a job of one node can have.

  enum class Hosting { kTry, kAlways, kNever } hosting = Hosting::kTry;  // kC10d, is_host.
  absl::Duration join_timeout = absl::Seconds(600);      // Until fewer than MIN nodes give up.
  absl::Duration last_call_timeout = absl::Seconds(30);  // Wait for more once MIN have come.
  absl::Duration close_timeout = absl::Seconds(30);      // For leaving the rendezvous at the end.
  absl::Duration read_timeout = absl::Seconds(60);       // For connecting to, and for calls of it.
  absl::Duration keep_alive_interval = absl::Milliseconds(500);
  int keep_alive_max_attempt = 10;  // A node silent for so many intervals is lost.
  // While a round forms, a node that has been silent for so long is not waited for.
  absl::Duration heartbeat_timeout = absl::Milliseconds(1500);
  absl::Duration scale_up_delay = absl::Seconds(1);   // From a new node to the end of the round.
  absl::Duration restart_backoff = absl::Seconds(1);  // Before the second restart in a row.

  struct Etcd {                      // kEtcd only.
    std::string ca_cert, cert, key;  // PEM files; any of them makes the connection TLS.
    std::string user, password;
    std::string prefix = "/syncline";
  } etcd;
};

struct LaunchOptions {
  enum class Program {
    kScript,      // python -u program arguments
    kModule,      // python -u -m program arguments
    kExecutable,  // program arguments
    kRunPath,     // python -u, with the program's main given to runpy.run_path
  };
  Program kind = Program::kScript;
  std::string program;
  std::vector<std::string> arguments;

  NodeRange nodes;
  int node_rank = -1;  // Only if it was given (--node-rank, or by the cluster).
  int workers = 1;     // On this node: --nproc-per-node, resolved.
  std::string role = "default";
  RendezvousOptions rendezvous;
  std::string local_addr;   // How others reach this node; empty: found out.
  std::string master_addr;  // Empty: that of the node with rank 0.
  int master_port = 0;      // 0: a free one for each round.

  // --tls and what belongs to it, for all connections of the job.
  tls::Settings tls;
  bool makes_own_certificates = false;  // The launcher fills in the files of `tls`.
  std::string certificates_folder;      // --make-certificates: write them there, start nothing.

  int max_restarts = 0;
  absl::Duration shutdown_timeout = absl::Seconds(30);
  absl::Duration health_timeout = absl::InfiniteDuration();  // Since a worker's last heartbeat.
  // From SIGTERM to SIGKILL of the other workers after a failure, and when a round ends; at most
  // shutdown_timeout.
  absl::Duration failure_grace = absl::Seconds(1);
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};  // --signals-to-handle.
  std::vector<int> forwarded_signals = {SIGUSR1, SIGUSR2};             // --signals-to-forward.

  std::string log_dir;          // Empty: none was given.
  StreamMap redirects;          // To files only.
  StreamMap tee;                // To files and to the console. Wins over redirects.
  std::set<int> console_ranks;  // Local ranks shown on the console; empty: all.
  // Lines that contain one of them go to LOG_DIR's filtered_stdout.log or filtered_stderr.log too.
  std::vector<std::string> stdout_filters, stderr_filters;
  std::string prefix_template;  // "[${role_name}${rank}]: "; empty: the usual prefix.
  enum class Prefix { kShown, kNone } prefix = Prefix::kShown;
  int interactive_rank = -1;     // Its input and output are the launcher's own; -1: nobody's.
  int64_t log_rotate_bytes = 0;  // 0: no rotation.
  int log_rotate_keep = 5;       // Older files that stay.

  enum class Numa { kNone, kNode, kSocket, kExclusive, kCoreComplex } numa = Numa::kNone;
  enum class LocalRank { kReal, kVirtual } local_rank = LocalRank::kReal;

  enum class StatusLine { kAuto, kAlways, kNever } status_line = StatusLine::kAuto;
  std::string event_log;  // A file for JSON lines; empty: none.
  int metrics_port = -1;  // Of the Prometheus endpoint, 0 lets the system choose; -1: none.

  std::string information;      // --help, --version, --dry-run, ...: print this, start nothing.
  std::string status_endpoint;  // `syncline-run status ENDPOINT`: ask a running job, start nothing.
  enum class StatusFormat { kTable, kJson } status_format = StatusFormat::kTable;  // Of the answer.
  std::vector<std::string> notes;  // Lines to print once, on stderr.
};

// What "auto", "cpu" and "gpu" count.
struct HostResources {
  int cpus = 1;
  int gpus = 0;
};
// CPUs this process may use; GPUs with a device file, fewer if CUDA_VISIBLE_DEVICES says so.
HostResources DetectHostResources();

// Reads `arguments` (without the program's name). All that follows the script belongs to the
// script. Options may be spelled with dashes or underscores, and shortened. Where one is not given,
// SYNCLINE_<OPTION> in the environment counts, then PET_<OPTION>, then the file of --config, then
// the cluster that started this process. ArgumentError contains what to write instead. Reads the
// file of --config, and for --dry-run what is needed to find the program, but no other file.
// Thread-safe.
absl::StatusOr<LaunchOptions> ParseOptions(const std::vector<std::string>& arguments,
                                           const base::EnvironmentLookup& environment,
                                           const HostResources& host);

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_OPTIONS_OPTIONS_H_
