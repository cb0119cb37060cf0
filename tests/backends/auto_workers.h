// Ranks of backend auto on several hosts, as processes: what tests and measurements run. The
// program is its own worker.
#ifndef SYNCLINE_TESTS_BACKENDS_AUTO_WORKERS_H_
#define SYNCLINE_TESTS_BACKENDS_AUTO_WORKERS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "syncline/backend.h"
#include "syncline/store.h"
#include "tests/support/hosts.h"
#include "tests/support/processes.h"

namespace syncline {

// One rank, in its process, on its host.
struct Worker {
  int rank;
  int size;
  std::string argument;
  std::shared_ptr<Store> store;
  std::string address;  // Of the host.

  // Makes this rank's end of a group of `backend`; every rank does. `name` tells groups apart.
  absl::StatusOr<std::shared_ptr<Backend>> Join(const std::string& backend,
                                                const std::string& name) const;
};

// Ranks on hosts, in processes that end with the object.
class Workers {
 public:
  // Rank r is on host hosts[r]. Each runs task `task` with `argument`.
  Workers(const std::vector<int>& hosts, const std::string& task, const std::string& argument);

  int size() const { return static_cast<int>(ranks_.size()); }
  Store& store() { return *store_; }
  void Signal(int rank, int signal) const;
  void CutOff(int host) const { hosts_.CutOff(host); }
  void LoseTo(int host) const { hosts_.LoseTo(host); }
  // "rank 2 (host b, pid 81)".
  std::string Describe(int rank) const;
  // What it has printed once it has ended.
  std::string Output(int rank) { return ranks_[rank]->Output(absl::Minutes(5)); }

 private:
  const ScratchFolder folder_;
  std::shared_ptr<Store> store_;
  Hosts hosts_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

// For main(): the exit status of a worker or a host's keeper, nothing of the program itself.
using Task = std::function<void(const Worker& worker)>;
std::optional<int> WorkOnHost(int argc, char** argv, const std::map<std::string, Task>& tasks);

// main() of tests: WorkOnHost, or all tests, in a network of their own.
int RunTestsOnHosts(int argc, char** argv, const std::map<std::string, Task>& tasks);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_AUTO_WORKERS_H_
