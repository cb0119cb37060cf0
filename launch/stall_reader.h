// Reads which operations of workers have waited for long.
#ifndef SYNCLINE_LAUNCH_STALL_READER_H_
#define SYNCLINE_LAUNCH_STALL_READER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launch/clock.h"

namespace syncline::launch {

// Reads the workers' stall files, which core/base/stall_file.h describes, and reports what is new.
// A worker can write anything: a malformed file counts as empty, and at most kMaxFile bytes and
// kMaxWaits waits are read. A file is read only after a change. Not thread-safe.
class StallReader {
 public:
  static constexpr int64_t kMaxFile = 128 << 10;  // More than StallFile writes.
  static constexpr size_t kMaxWaits = 32;

  // A wait of a worker.
  struct Stall {
    std::string operation;
    std::string missing;  // "2, 5-9", ranks of the operation's group; empty: not known.
    std::string text;     // The line that the worker has logged, or would have.
    absl::Duration waited;
  };
  struct Event {
    enum class Kind { kWarning, kEnded };

    int local_rank = 0;
    Kind kind = Kind::kWarning;
    Stall stall;
  };

  explicit StallReader(const Clock& clock) : clock_(clock) {}  // Must outlive it.

  // The worker starts now. What an earlier worker wrote to `file` is ignored.
  void Watch(int local_rank, std::string file);
  // The worker has ended, and its waits with it. The next Poll returns its last events.
  void Forget(int local_rank);

  // The events since the last call: each new warning (the last one of a wait, if there are
  // several), and the end of each wait that had a warning. A wait ends when the worker writes so,
  // or when the process that wrote of it no longer exists.
  std::vector<Event> Poll();

  // The longest wait of the worker that still lasts; nullopt if there is none in its file.
  std::optional<Stall> Longest(int local_rank) const;

  // How many warnings Poll has returned.
  int64_t warnings() const { return warnings_; }

 private:
  struct Wait {
    Stall stall;
    absl::Time began;  // By clock_.
    int64_t warnings = 0;
    bool has_ended = false;
  };
  // One process that has written the file: a worker may be a script that runs several.
  struct Source {
    std::string pid_namespace;
    std::map<int64_t, Wait> waits;  // By id.
  };
  // Identifies one version of a file.
  struct Version {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = -1;  // -1: no file.
    absl::Time changed;

    bool operator==(const Version& other) const {
      return device == other.device && inode == other.inode && size == other.size &&
             changed == other.changed;
    }
  };
  struct File {
    std::string path;
    Version version;
    std::map<int64_t, Source> sources;  // By pid.
    int64_t writer = 0;                 // The last one's pid; 0: none.
  };

  void PollFile(int local_rank, File* file);
  void ParseFile(int local_rank, absl::string_view text, File* file);
  void Report(int local_rank, Event::Kind kind, const Wait& wait);
  void EndAllWaits(int local_rank, Source* source);
  static bool IsGone(int64_t pid, const Source& source);
  static Version VersionOf(const std::string& path);

  const Clock& clock_;
  std::map<int, File> files_;  // By local rank.
  std::vector<Event> events_;
  int64_t warnings_ = 0;
};

}  // namespace syncline::launch

#endif  // SYNCLINE_LAUNCH_STALL_READER_H_
