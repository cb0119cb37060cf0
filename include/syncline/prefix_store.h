// PrefixStore: a part of another store, whose keys all begin with one prefix.
#ifndef SYNCLINE_PREFIX_STORE_H_
#define SYNCLINE_PREFIX_STORE_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "syncline/extended_store.h"
#include "syncline/store.h"

namespace syncline {

// Groups, restarts and jobs that share one store use different prefixes: key "k" of
// PrefixStore("a", s) is key "a/k" of s. It holds `store`; the threads that may call it and the
// errors are those of Store.
//
//   PrefixStore group("group/3", store);
//   SYNCLINE_RETURN_IF_ERROR(group.Set("address", address));  // Key "group/3/address".
class PrefixStore final : public ExtendedStore {
 public:
  PrefixStore(absl::string_view prefix, std::shared_ptr<Store> store);

  const std::shared_ptr<Store>& underlying_store() const { return store_; }

  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override;
  absl::StatusOr<CompareSetResult> CompareSet(absl::string_view key, absl::string_view expected,
                                              absl::string_view desired) override;
  absl::Status Wait(absl::Span<const std::string> keys, absl::Duration timeout) override;
  absl::StatusOr<bool> Check(absl::Span<const std::string> keys) override;
  absl::StatusOr<bool> Delete(absl::string_view key) override;
  absl::StatusOr<std::vector<std::string>> Keys(absl::string_view prefix) override;
  absl::Status Append(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::vector<std::string>> MultiGet(absl::Span<const std::string> keys,
                                                    absl::Duration timeout) override;
  absl::Status MultiSet(absl::Span<const std::string> keys,
                        absl::Span<const std::string> values) override;
  absl::Status SetOnDisconnect(absl::string_view key, absl::string_view value) override;
  bool is_hosted_here() const override { return store_->is_hosted_here(); }
  bool is_lost() const override { return store_->is_lost(); }
  absl::Duration timeout() const override;
  void set_timeout(absl::Duration timeout) override;
  absl::StatusOr<std::shared_ptr<Store>> Clone() override;
  absl::Status QueuePush(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> QueuePop(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::optional<std::string>> QueueTryPop(absl::string_view key) override;
  absl::StatusOr<int64_t> QueueLength(absl::string_view key) override;
  std::string ToString() const override;
  std::string address() const override { return store_->address(); }

 private:
  std::string Full(absl::string_view key) const;
  std::vector<std::string> Full(absl::Span<const std::string> keys) const;

  const std::string prefix_;                          // With its final '/'.
  AtomicDuration own_timeout_{absl::ZeroDuration()};  // Zero: the underlying store's.
  const std::shared_ptr<Store> store_;
};

// For messages: the store below all prefixes, of which users know nothing.
std::string WithoutPrefixes(const Store& store);

}  // namespace syncline

#endif  // SYNCLINE_PREFIX_STORE_H_
