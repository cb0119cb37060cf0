// What is logged during a test.
#ifndef SYNCLINE_CORE_TESTING_LOG_LINES_H_
#define SYNCLINE_CORE_TESTING_LOG_LINES_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "syncline/deadline.h"
#include "syncline/log.h"

namespace syncline {

// The lines of the log while one of these is alive, of which there is one at a time.
class LogLines {
 public:
  LogLines() {
    SetLogSink([lines = lines_](LogLevel, absl::string_view line) {
      absl::MutexLock lock(&lines->mutex);
      absl::StrAppend(&lines->text, line, "\n");
    });
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() { SetLogSink(nullptr); }

  bool Have(absl::string_view part) const {
    absl::MutexLock lock(&lines_->mutex);
    return absl::StrContains(lines_->text, part);
  }
  // Waits for it: some lines are written in the background.
  bool Await(absl::string_view part, const Deadline& deadline) const {
    while (!Have(part)) {
      if (deadline.Expired()) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }
  // All of them, each with a newline.
  std::string text() const {
    absl::MutexLock lock(&lines_->mutex);
    return lines_->text;
  }

 private:
  // A line may still be under way when this ends.
  struct Lines {
    absl::Mutex mutex;
    std::string text ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_LOG_LINES_H_
