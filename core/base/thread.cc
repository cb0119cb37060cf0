#include "core/base/thread.h"

#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "syncline/status.h"

namespace syncline::base {

absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return BackendError(absl::StrCat("cannot start a thread for ", purpose, ": ", error.what(),
                                     "; check the limits on processes and memory"));
  }
}

absl::Status RunBounded(absl::string_view purpose, absl::Duration bound,
                        std::function<void()> call) {
  const auto done = std::make_shared<absl::Notification>();
  SYNCLINE_ASSIGN_OR_RETURN(std::thread thread,
                            StartThread(purpose, [call = std::move(call), done] {
                              call();
                              done->Notify();
                            }));
  if (!done->WaitForNotificationWithTimeout(bound)) {
    thread.detach();
    return TimeoutError(absl::StrCat("no answer within ", absl::FormatDuration(bound)));
  }
  thread.join();
  return absl::OkStatus();
}

}  // namespace syncline::base
