#include "tests/support/backend_config.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/deadline.h"
#include "syncline/peer.h"

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

absl::Status StoreOnHost::Set(absl::string_view key, absl::string_view value) {
  const absl::string_view line = value.substr(0, value.find('\n'));
  auto self = Peer::Parse(line);
  if (!self.ok()) return store().Set(key, value);
  self->identity = host_;
  return store().Set(key, absl::StrCat(self->Serialize(), value.substr(line.size())));
}

}  // namespace syncline
