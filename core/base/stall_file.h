// Reports operations that wait for long (core/base/stall.h) to this process's launcher.
#ifndef SYNCLINE_CORE_BASE_STALL_FILE_H_
#define SYNCLINE_CORE_BASE_STALL_FILE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "syncline/fork.h"

namespace syncline::base {

// A wait that has lasted for StallWarningAfter() or longer.
struct Stall {
  int rank = 0;              // The one that waits, in its group.
  std::string operation;     // "all_reduce #3 (float32, 3 elements, sum)".
  std::vector<int> missing;  // Ranks of the group, ascending; empty if it is not known who.
  absl::Duration waited;
  std::string text;  // The line for the log.
};

// The file that SYNCLINE_STALL_FILE names. It holds one JSON object:
//
//   {"pid": 81, "pid_namespace": "pid:[4026531836]", "time": 1700000000.250,
//    "waits": [{"id": 1, "rank": 0, "operation": "barrier #4", "missing": "2, 5-9",
//               "text": "rank 0 (host a, ...", "waited": 20.013, "warnings": 2, "ended": false}]}
//
// `waits` has the waits that last, and the latest of those that have ended after a warning, so that
// a reader that looks once a second misses none. `waited` counts up to `time`, or to the end of the
// wait; `warnings` are the lines of it in the log.
//
// Each change replaces the file, so that no reader sees half of it; its size is bounded. Without
// the variable, and in a child of fork, which has none of these waits, nothing is written. A file
// that cannot be written is logged, once. Thread-safe.
class StallFile {
 public:
  // That of this process, which reads the variable at the first call. Never destroyed: a thread
  // that looks for missing ranks may still use it when the process ends.
  static StallFile& OfProcess();

  explicit StallFile(std::string path);  // Empty: nothing is written.

  // A number for a new wait, of which nothing is written yet.
  int64_t Open();
  // What the wait has come to. No effect once it is closed. `is_warning`: the text was logged.
  void Report(int64_t id, const Stall& stall, bool is_warning);
  // The operation goes on, or has failed.
  void Close(int64_t id);

 private:
  struct Wait {
    std::string facts;      // What does not change of its object, as JSON; empty: not reported yet.
    absl::Duration waited;  // Once it has ended.
    std::chrono::steady_clock::time_point began;
    int warnings = 0;
    bool has_ended = false;
  };

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Text() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const ForkGuard fork_;
  absl::Mutex mutex_;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int64_t, Wait> waits_ ABSL_GUARDED_BY(mutex_);
};

// One wait in this process's StallFile. Costs nothing until the wait is long. Not thread-safe,
// but StallFile::Report may be called with the id from any thread.
class StallNotice {
 public:
  StallNotice() = default;
  ~StallNotice() {
    if (id_ != 0) StallFile::OfProcess().Close(id_);
  }

  StallNotice(const StallNotice&) = delete;
  StallNotice& operator=(const StallNotice&) = delete;

  // Opens the wait at the first call; 0 if there is no file.
  int64_t id() {
    if (id_ == 0) id_ = StallFile::OfProcess().Open();
    return id_;
  }

 private:
  int64_t id_ = 0;
};

// Reports wait `id` to the launcher. If `speaks`, also logs the text as a warning: of the ranks
// that wait in one operation, one does.
void ReportStall(int64_t id, const Stall& stall, bool speaks);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_STALL_FILE_H_
