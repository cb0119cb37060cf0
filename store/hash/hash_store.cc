#include "syncline/hash_store.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "store/common/errors.h"
#include "store/common/table.h"
#include "syncline/deadline.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using store::AnnotateStore;
using store::CheckKey;
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

// Waits for what `start`, GetOrPark or QueuePopOrPark of `table`, begins.
absl::StatusOr<std::vector<std::string>> Await(
    Table* table, absl::string_view store, absl::Span<const std::string> keys,
    absl::Duration timeout,
    absl::FunctionRef<std::optional<std::vector<std::string>>(Table::Ready, Table::WaitId*)>
        start) {
  const Deadline deadline(timeout);
  auto outcome = std::make_shared<Outcome>();
  Table::WaitId id = 0;
  std::optional<std::vector<std::string>> values = start(
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
    if (std::optional<std::vector<std::string>> missing = table->Unpark(id)) {
      SYNCLINE_RETURN_IF_ERROR(Interruption());
      return NotSetError(store, *missing, timeout);
    }
  }
  absl::MutexLock lock(&outcome->mutex);
  // If the last key was set at the last moment, the thread that set it is about to say so.
  if (!Deadline(kLastMoment).Await(outcome->mutex, absl::Condition(&outcome->ready))) {
    return NotSetError(store, keys, timeout);
  }
  return std::move(outcome->values);
}

const StoreRegistry::Registration kHash(
    "hash", [](const StoreConfig& config) -> absl::StatusOr<std::shared_ptr<Store>> {
      return std::make_shared<HashStore>(config.timeout);
    });

}  // namespace

HashStore::HashStore(absl::Duration timeout) : HashStore(timeout, std::make_shared<Table>()) {}

HashStore::HashStore(absl::Duration timeout, std::shared_ptr<Table> table)
    : timeout_(timeout), table_(std::move(table)) {}

HashStore::~HashStore() = default;

absl::StatusOr<std::shared_ptr<Store>> HashStore::Clone() {
  return std::shared_ptr<Store>(new HashStore(timeout(), table_));
}

absl::Status HashStore::QueuePush(absl::string_view key, absl::string_view value) {
  return AnnotateStore(table_->QueuePush(key, value), ToString());
}

absl::StatusOr<std::string> HashStore::QueuePop(absl::string_view key, absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  const std::string keys[] = {std::string(key)};
  SYNCLINE_ASSIGN_OR_RETURN(
      std::vector<std::string> values,
      Await(table_.get(), ToString(), keys, timeout, [&](Table::Ready ready, Table::WaitId* id) {
        return table_->QueuePopOrPark(key, std::move(ready), id);
      }));
  return std::move(values[0]);
}

absl::StatusOr<std::optional<std::string>> HashStore::QueueTryPop(absl::string_view key) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  return table_->QueueTryPop(key);
}

absl::StatusOr<int64_t> HashStore::QueueLength(absl::string_view key) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKey(key), ToString()));
  return table_->QueueLength(key);
}

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
  SYNCLINE_RETURN_IF_ERROR(AnnotateStore(CheckKeys(keys), ToString()));
  return Await(table_.get(), ToString(), keys, timeout,
               [&](Table::Ready ready, Table::WaitId* id) {
                 return table_->GetOrPark({keys.begin(), keys.end()}, Table::Needs::kPresence,
                                          std::move(ready), id);
               })
      .status();
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
  return Await(table_.get(), ToString(), keys, timeout, [&](Table::Ready ready, Table::WaitId* id) {
    return table_->GetOrPark({keys.begin(), keys.end()}, Table::Needs::kValues, std::move(ready),
                             id);
  });
}

absl::Status HashStore::MultiSet(absl::Span<const std::string> keys,
                                 absl::Span<const std::string> values) {
  return AnnotateStore(table_->MultiSet(keys, values), ToString());
}

}  // namespace syncline
