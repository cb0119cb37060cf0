#include "store/common/table.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "store/common/errors.h"
#include "syncline/status.h"

namespace syncline::store {

// The waits that a change has ended. Declared before the lock, so that its destructor, which makes
// the calls, runs after the lock's.
class Table::Woken {
 public:
  Woken() = default;
  Woken(const Woken&) = delete;
  Woken& operator=(const Woken&) = delete;
  ~Woken() {
    for (auto& call : calls_) call.first(std::move(call.second));
  }

  void Add(Ready ready, std::vector<std::string> values) {
    calls_.emplace_back(std::move(ready), std::move(values));
  }

 private:
  std::vector<std::pair<Ready, std::vector<std::string>>> calls_;
};

absl::Status Table::Set(absl::string_view key, absl::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  Apply({Change::Kind::kSet, std::string(key), std::string(value)}, &woken);
  return absl::OkStatus();
}

absl::Status Table::MultiSet(absl::Span<const std::string> keys,
                             absl::Span<const std::string> values) {
  SYNCLINE_RETURN_IF_ERROR(CheckPairs(keys, values));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    contents_.Apply({Change::Kind::kSet, keys[i], values[i]});
  }
  for (const std::string& key : keys) Wake(key, &woken);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Table::Add(absl::string_view key, int64_t amount) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  SYNCLINE_ASSIGN_OR_RETURN(const int64_t sum, contents_.Sum(key, amount));
  Apply({Change::Kind::kSet, std::string(key), absl::StrCat(sum)}, &woken);
  return sum;
}

absl::StatusOr<Store::CompareSetResult> Table::CompareSet(absl::string_view key,
                                                          absl::string_view expected,
                                                          absl::string_view desired) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  Store::CompareSetResult result;
  result.swapped = contents_.Holds(key, expected);
  if (result.swapped) {
    Apply({Change::Kind::kSet, std::string(key), std::string(desired)}, &woken);
  }
  if (const std::string* value = contents_.Find(key)) result.value = *value;
  return result;
}

absl::Status Table::Append(absl::string_view key, absl::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  Apply({Change::Kind::kAppend, std::string(key), std::string(value)}, &woken);
  return absl::OkStatus();
}

absl::StatusOr<bool> Table::Delete(absl::string_view key) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  absl::MutexLock lock(&mutex_);
  if (contents_.Find(key) == nullptr) return false;
  contents_.Apply({Change::Kind::kDelete, std::string(key), ""});
  return true;
}

absl::StatusOr<bool> Table::Check(absl::Span<const std::string> keys) const {
  SYNCLINE_RETURN_IF_ERROR(CheckKeys(keys));
  absl::MutexLock lock(&mutex_);
  return std::all_of(keys.begin(), keys.end(),
                     [this](const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return contents_.Find(key) != nullptr;
                     });
}

std::vector<std::string> Table::Keys(absl::string_view prefix) const {
  absl::MutexLock lock(&mutex_);
  return contents_.Keys(prefix);
}

std::optional<std::vector<std::string>> Table::GetOrPark(std::vector<std::string> keys, Ready ready,
                                                         WaitId* id) {
  absl::MutexLock lock(&mutex_);
  const size_t next = NextMissing(keys, 0);
  if (next == keys.size()) return contents_.Values(keys);
  *id = ++last_id_;
  waits_for_[keys[next]].push_back(*id);
  waits_.emplace(*id, Wait{std::move(keys), std::move(ready), next});
  return std::nullopt;
}

std::optional<std::vector<std::string>> Table::Unpark(WaitId id) {
  Ready ready;  // Destroyed after the lock is released: it may own anything.
  absl::MutexLock lock(&mutex_);
  auto it = waits_.find(id);
  if (it == waits_.end()) return std::nullopt;
  auto queue = waits_for_.find(it->second.keys[it->second.next]);
  queue->second.erase(std::find(queue->second.begin(), queue->second.end(), id));
  if (queue->second.empty()) waits_for_.erase(queue);
  std::vector<std::string> missing = contents_.Missing(it->second.keys);
  ready = std::move(it->second.ready);
  waits_.erase(it);
  return missing;
}

int64_t Table::NumWaits() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(waits_.size());
}

void Table::Apply(Change change, Woken* woken) {
  const std::string key = change.key;
  contents_.Apply(std::move(change));
  Wake(key, woken);
}

// The index of an absent key of `keys`, looked for from `from` on and then from the beginning, as
// keys may be deleted; keys.size() if there is none.
size_t Table::NextMissing(absl::Span<const std::string> keys, size_t from) const {
  for (size_t i = from; i < keys.size(); ++i) {
    if (contents_.Find(keys[i]) == nullptr) return i;
  }
  for (size_t i = 0; i < from; ++i) {
    if (contents_.Find(keys[i]) == nullptr) return i;
  }
  return keys.size();
}

// A wait stands in the queue of only one of its missing keys; when that is set it ends, or moves
// on to the next that is missing. So a delete has nothing to do, and the sets of all n keys of a
// wait cost it 2n looks.
void Table::Wake(absl::string_view key, Woken* woken) {
  auto queue = waits_for_.find(key);
  if (queue == waits_for_.end()) return;
  const std::vector<WaitId> ids = std::move(queue->second);
  waits_for_.erase(queue);
  for (WaitId id : ids) {
    auto it = waits_.find(id);
    Wait& wait = it->second;
    wait.next = NextMissing(wait.keys, wait.next);
    if (wait.next == wait.keys.size()) {
      woken->Add(std::move(wait.ready), contents_.Values(wait.keys));
      waits_.erase(it);
    } else {
      waits_for_[wait.keys[wait.next]].push_back(id);
    }
  }
}

}  // namespace syncline::store
