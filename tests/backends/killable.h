// Ranks in processes that make one call again and again until it fails: what tests kill, stop and
// set against each other.
#ifndef SYNCLINE_TESTS_BACKENDS_KILLABLE_H_
#define SYNCLINE_TESTS_BACKENDS_KILLABLE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/store.h"
#include "tests/support/processes.h"

namespace syncline {

inline constexpr int kKillableRanks = 3;
inline constexpr int kVictim = kKillableRanks - 1;

// How soon after a rank's end the calls of all others have failed. It takes milliseconds, but a
// busy machine may keep a thread from its core for seconds.
inline constexpr absl::Duration kNotice = absl::Seconds(5);

// Of send and recv, the victim has the other end on all other ranks.
struct Habit {
  std::string call;   // "all_reduce", "recv", "recv_from_any", ...
  int64_t count = 1;  // Elements of float32 of each part.
  absl::Duration timeout = absl::Seconds(60);

  // How the victim differs from the second time on: it makes this call, if not empty, with so many
  // elements, if not 0; or, if the call is "nothing", none.
  std::string victims_call = {};
  int64_t victims_count = 0;

  // Every result is compared byte by byte with what it must be, and differs from the one before.
  // A wrong one is the call's failure, whose text has kWrong.
  bool checks = false;
};

inline constexpr char kWrong[] = " is wrong";

std::ostream& operator<<(std::ostream& os, const Habit& habit);

// Every operation of a backend.
std::vector<std::string> KillableCalls();

// What each rank does. `on_first` is called once it has made its first call. OK, at once, where the
// habit is to do nothing.
absl::Status CallUntilFailure(Backend& backend, int rank, const Habit& habit,
                              const std::function<void()>& on_first);

// The monotonic clock, which is the same in all processes of a host.
int64_t NowNanos();

// Where a rank may be: see Hosts, which must outlive it.
struct HostSeat {
  std::string door;
  std::string address;
};

class KillableGroup {
 public:
  // `store`: a path, or the port of a TCPStore on this host. Ranks are on `hosts`, in turns, if
  // there are any.
  KillableGroup(const std::string& backend, const std::string& store, const Habit& habit,
                const std::vector<HostSeat>& hosts = {});

  // Until all ranks have made their first call. False after a minute.
  bool AwaitUnderWay(Store& store) const;

  pid_t pid(int rank) const { return workers_[rank]->pid(); }
  void Signal(int rank, int signal) const;
  void End(int rank) { workers_[rank] = nullptr; }  // Dead, and no longer in the process table.

  // "rank 2 (host b, pid 81)".
  std::string Describe(int rank) const;

  struct Outcome {
    std::string error;  // Of the call that failed.
    int64_t nanos = 0;  // When it returned, by NowNanos.
    int64_t left = -1;  // Files and threads that were still there once the backend was destroyed.
    std::vector<int> ranks;  // Of the error's ErrorOrigin.
  };
  // Waits for the rank's call to fail.
  Outcome Await(int rank, absl::Duration limit = absl::Seconds(60));

 private:
  std::vector<std::unique_ptr<Process>> workers_;
};

// The exit status of a worker; nothing if the arguments are not those of one. Call it from main().
// With `warms_up` the ranks first make a group, a call in it, and its end: what libraries open then
// and keep as long as the process lives does not count as left.
std::optional<int> WorkAsKillable(int argc, char** argv, bool warms_up = false);

}  // namespace syncline

#endif  // SYNCLINE_TESTS_BACKENDS_KILLABLE_H_
