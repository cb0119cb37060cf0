// A store that passes every call on to another one.
#ifndef SYNCLINE_CORE_TESTING_FORWARDING_STORE_H_
#define SYNCLINE_CORE_TESTING_FORWARDING_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "syncline/store.h"

namespace syncline {

// Tests override the calls that they want to see or change.
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return store_->Set(key, value);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return store_->Get(key, timeout);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    return store_->Add(key, amount);
  }
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override {
    return store_->CompareSet(key, expected, desired);
  }
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override {
    return store_->Wait(keys, timeout);
  }
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override {
    return store_->Check(keys);
  }
  absl::StatusOr<bool> Delete(absl::string_view key) override { return store_->Delete(key); }
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override {
    return store_->Keys(prefix);
  }
  absl::Status Append(absl::string_view key, absl::string_view value) override {
    return store_->Append(key, value);
  }
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override {
    return store_->MultiGet(keys, timeout);
  }
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override {
    return store_->MultiSet(keys, values);
  }
  absl::Duration timeout() const override { return store_->timeout(); }
  std::string ToString() const override { return store_->ToString(); }

 protected:
  Store& store() { return *store_; }

 private:
  const std::shared_ptr<Store> store_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_FORWARDING_STORE_H_
