// What a backend of a test is made of.
#ifndef SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_
#define SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_

#include <memory>

#include "absl/time/time.h"
#include "syncline/backend.h"
#include "syncline/store.h"

namespace syncline {

// For rank `rank` of `size` that meet in `store`, at 127.0.0.1, within `timeout` from now on.
BackendConfig OnLoopback(std::shared_ptr<Store> store, int rank, int size,
                         absl::Duration timeout = absl::Seconds(60));

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_
