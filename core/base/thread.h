// Starts threads. All threads of the product start here: a lack of them is an error, not an
// exception.
#ifndef SYNCLINE_CORE_BASE_THREAD_H_
#define SYNCLINE_CORE_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace syncline::base {

// Starts a thread that runs `body`. BackendError "cannot start a thread for `purpose`: ..." if the
// system has none left, where std::thread would throw. All threads of the product start here.
absl::StatusOr<std::thread> StartThread(absl::string_view purpose, std::function<void()> body);

// Runs `call` on a thread of its own, and returns when it has. TimeoutError "no answer within
// ..." if that takes longer than `bound`: then the thread is left behind, so `call` must own all
// that it uses. Or the error of StartThread.
absl::Status RunBounded(absl::string_view purpose, absl::Duration bound,
                        std::function<void()> call);

}  // namespace syncline::base

#endif  // SYNCLINE_CORE_BASE_THREAD_H_
