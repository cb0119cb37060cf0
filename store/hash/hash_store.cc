#include "syncline/hash_store.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "store/common/errors.h"
#include "store/common/table.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using store::AnnotateStore;
using store::CheckKeys;
using store::NotSetError;
using store::Table;

constexpr absl::Duration kLastMoment = absl::Seconds(1);

// What a waiting thread shares with the one that ends its wait.
struct Outcome {
  absl::Mutex mutex;
  bool ready ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::string> values ABSL_GUARDED_BY(mutex);
};

const StoreRegistry::Registration kHash(
    "hash", [](const StoreConfig& config) -> absl::StatusOr<std::shared_ptr<Store>> {
      return std::make_shared<HashStore>(config.timeout);
    });

}  // namespace

HashStore::HashStore(absl::Duration timeout)
    : timeout_(timeout), table_(std::make_unique<Table>()) {}

HashStore::~HashStore() = default;

absl::Status HashStore::Set(absl::string_view key, absl::string_view value) {
  return AnnotateStore(table_->Set(key, value), ToString());
}

absl::StatusOr<std::string> HashStore::Get(absl::string_view key, absl::Duration timeout) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values, MultiGet(keys, timeout));
  return std::move(values[0]);
}

absl::StatusOr<int64_t> HashStore::Add(absl::string_view key, int64_t amount) {
  return AnnotateStore(table_->Add(key, amount), ToString());
}

absl::StatusOr<Store::CompareSetResult> HashStore::CompareSet(absl::string_view key,
                                                              absl::string_view expected,
                                                              absl::string_view desired) {
  return AnnotateStore(table_->CompareSet(key, expected, desired), ToString());
}

absl::Status HashStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return MultiGet(keys, timeout).status();
}

absl::StatusOr<bool> HashStore::Check(absl::Span<const std::string> keys) {
  return AnnotateStore(table_->Check(keys), ToString());
}

absl::StatusOr<bool> HashStore::Delete(absl::string_view key) {
  return AnnotateStore(table_->Delete(key), ToString());
}

absl::StatusOr<std::vector<std::string>> HashStore::Keys(absl::string_view prefix) {
  return table_->Keys(prefix);
}

absl::Status HashStore::Append(absl::string_view key, absl::string_view value) {
  return AnnotateStore(table_->Append(key, value), ToString());
}

absl::StatusOr<std::vector<std::string>> HashStore::MultiGet(absl::Span<const std::string> keys,
                                                             absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKeys(keys), ToString()));
  const Deadline deadline(timeout);
  auto outcome = std::make_shared<Outcome>();
  Table::WaitId id = 0;
  std::optional<std::vector<std::string>> values = table_->GetOrPark(
      {keys.begin(), keys.end()},
      [outcome](std::vector<std::string> values) {
        absl::MutexLock lock(&outcome->mutex);
        outcome->values = std::move(values);
        outcome->ready = true;
      },
      &id);
  if (values.has_value()) return *std::move(values);

  bool ready = false;
  {
    absl::MutexLock lock(&outcome->mutex);
    ready = deadline.AwaitInterruptibly(outcome->mutex, absl::Condition(&outcome->ready));
  }
  if (!ready) {
    if (std::optional<std::vector<std::string>> missing = table_->Unpark(id)) {
      SYNCLINE_RETURN_IF_ERROR(Interruption());
      return NotSetError(ToString(), *missing, timeout);
    }
  }
  absl::MutexLock lock(&outcome->mutex);
  // If the last key was set at the last moment, the thread that set it is about to say so.
  if (!Deadline(kLastMoment).Await(outcome->mutex, absl::Condition(&outcome->ready))) {
    return NotSetError(ToString(), keys, timeout);
  }
  return std::move(outcome->values);
}

absl::Status HashStore::MultiSet(absl::Span<const std::string> keys,
                                 absl::Span<const std::string> values) {
  return AnnotateStore(table_->MultiSet(keys, values), ToString());
}

}  // namespace syncline
