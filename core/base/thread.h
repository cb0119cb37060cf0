// Starts threads. All threads of the product start here: a lack of them is an error, not an
// exception.
#ifndef SYNCLINE_CORE_BASE_THREAD_H_
#define SYNCLINE_CORE_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline::base {

// Starts a thread that runs `body`. BackendError "cannot start a thread for `purpose`: ..." if the
// system has none left, where std::thread would throw. All threads of the product start here.
absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_THREAD_H_
