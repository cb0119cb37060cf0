// What the programs have in common that stand for one system each: they wait for the runner's
// orders, and time calls that all ranks start together. See README.md.
#ifndef SYNCLINE_BENCHMARKS_COLLECTIVES_HARNESS_H_
#define SYNCLINE_BENCHMARKS_COLLECTIVES_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "benchmarks/collectives/gate.h"

namespace syncline::benchmarks {

enum class Operation {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kSendRecv,  // There and back between ranks 2k and 2k + 1, even ones first.
  kCopy,      // A copy in memory, by every rank. Of `memory` only, like the next.
  kAdd,       // c = a + b, by every rank.
};

// One rank's part in an operation on float32: a sum where it reduces, from or to rank 0 where there
// is a root. `input` and `output` are one buffer for all_reduce, broadcast and reduce, in place.
struct Call {
  Operation operation;
  int64_t count;  // Elements of the larger buffer: all ranks' parts, where there are parts.
  int64_t part;   // Elements of one rank's part of all_gather, gather, scatter, reduce_scatter and
                  // all_to_all; otherwise `count`.
  float* input;   // `part` elements for all_gather and gather, `count` for the others.
  float* output;  // `part` elements for scatter and reduce_scatter, `count` for the others.
};

// The command line of a program, and its environment.
struct Options {
  std::string folder;  // Of the group: the gate, the pipes of the runner, and whatever it wants.
  int rank = 0;
  int size = 1;
  Waiting waiting = Waiting::kSpin;
  std::string variant;                // Of the system: a backend, an algorithm.
  std::string address = "127.0.0.1";  // Of the rank's host: $COLLECTIVES_ADDRESS.
};

// One rank of a system.
class System {
 public:
  using Function = std::function<absl::Status()>;

  virtual ~System() = default;

  // What to say in the report: version, settings.
  virtual std::string Describe() const = 0;

  // Fresh pages of zeros, all of them touched, for the buffers of a call.
  virtual std::shared_ptr<void> Allocate(int64_t bytes);

  // A function that makes the call each time it is called; empty if the system has no such
  // operation. The buffers outlive it.
  virtual Function Prepare(const Call& call) = 0;
};

// --folder, --rank, --size, --waiting, --variant. Makes the process die with its parent.
Options ParseOptions(int argc, char** argv);

// Follows the runner's orders until it says quit or goes. The exit status.
int Serve(const Options& options, System& system);

// Tells the runner why there is no system to serve. The exit status.
int ReportError(const Options& options, const absl::Status& status);

}  // namespace syncline::benchmarks

#endif  // SYNCLINE_BENCHMARKS_COLLECTIVES_HARNESS_H_
