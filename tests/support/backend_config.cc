#include "tests/support/backend_config.h"

#include <utility>

#include "syncline/deadline.h"

namespace syncline {

BackendConfig OnLoopback(std::shared_ptr<Store> store, int rank, int size, absl::Duration timeout) {
  BackendConfig config;
  config.store = std::move(store);
  config.rank = rank;
  config.size = size;
  config.local_address = "127.0.0.1";
  config.deadline = Deadline(timeout);
  return config;
}

}  // namespace syncline
