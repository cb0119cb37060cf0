// A store for the threads of one process.
#ifndef SYNCLINE_HASH_STORE_H_
#define SYNCLINE_HASH_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "syncline/extended_store.h"
#include "syncline/store.h"

namespace syncline {

namespace store {
class Table;
}

// Its clients share the object. Each store made by the name "hash" is a new, empty one.
class HashStore final : public ExtendedStore {
 public:
  explicit HashStore(absl::Duration timeout = kDefaultStoreTimeout);
  ~HashStore() override;

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
  absl::Duration timeout() const override { return timeout_.Get(); }
  void set_timeout(absl::Duration timeout) override { timeout_.Set(timeout); }
  absl::StatusOr<std::shared_ptr<Store>> Clone() override;
  absl::Status QueuePush(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> QueuePop(absl::string_view key, absl::Duration timeout) override;
  absl::StatusOr<std::optional<std::string>> QueueTryPop(absl::string_view key) override;
  absl::StatusOr<int64_t> QueueLength(absl::string_view key) override;
  std::string ToString() const override { return "hash://"; }

 private:
  HashStore(absl::Duration timeout, std::shared_ptr<store::Table> table);

  AtomicDuration timeout_;
  const std::shared_ptr<store::Table> table_;  // Shared by clones.
};

}  // namespace syncline

#endif  // SYNCLINE_HASH_STORE_H_
