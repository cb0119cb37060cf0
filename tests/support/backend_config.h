// What a backend of a test is made of.
#ifndef SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_
#define SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/testing/forwarding_store.h"
#include "syncline/backend.h"
#include "syncline/store.h"

namespace syncline {

// For rank `rank` of `size` that meet in `store`, at 127.0.0.1, within `timeout` from now on.
BackendConfig OnLoopback(std::shared_ptr<Store> store, int rank, int size,
                         absl::Duration timeout = absl::Seconds(60));

// The store of one rank, which says in it that it is on `host`, whatever it says of itself. So
// ranks of one process take each other for those of several hosts.
class StoreOnHost final : public ForwardingStore {
 public:
  StoreOnHost(std::shared_ptr<Store> store, std::string host)
      : ForwardingStore(std::move(store)), host_(std::move(host)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override;

 private:
  const std::string host_;
};

}  // namespace syncline

#endif  // SYNCLINE_TESTS_SUPPORT_BACKEND_CONFIG_H_
