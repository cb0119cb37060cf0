#include "core/base/thread.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace syncline::base
