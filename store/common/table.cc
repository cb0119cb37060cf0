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
                       return IsThere(key, Needs::kPresence);
                     });
}

std::vector<std::string> Table::Keys(absl::string_view prefix) const {
  absl::MutexLock lock(&mutex_);
  return contents_.Keys(prefix);
}

std::optional<std::vector<std::string>> Table::GetOrPark(std::vector<std::string> keys, Needs needs,
                                                         Ready ready, WaitId* id) {
  absl::MutexLock lock(&mutex_);
  const size_t next = NextMissing(keys, needs, 0);
  Wait wait{std::move(keys), needs, std::move(ready), next};
  if (next == wait.keys.size()) return ValuesFor(wait);
  *id = ++last_id_;
  waits_for_[wait.keys[next]].push_back(*id);
  waits_.emplace(*id, std::move(wait));
  return std::nullopt;
}

absl::Status Table::QueuePush(absl::string_view key, absl::string_view value) {
  SYNCLINE_RETURN_IF_ERROR(CheckKey(key));
  Woken woken;
  absl::MutexLock lock(&mutex_);
  auto waiting = pops_for_.find(key);
  if (waiting != pops_for_.end()) {
    auto pop = pops_.find(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) pops_for_.erase(waiting);
    woken.Add(std::move(pop->second.ready), {std::string(value)});
    pops_.erase(pop);
    return absl::OkStatus();
  }
  queues_[std::string(key)].emplace_back(value);
  Wake(key, &woken);
  return absl::OkStatus();
}

std::optional<std::string> Table::QueueTryPop(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  return TakeOldest(key);
}

int64_t Table::QueueLength(absl::string_view key) const {
  absl::MutexLock lock(&mutex_);
  auto queue = queues_.find(key);
  return queue == queues_.end() ? 0 : static_cast<int64_t>(queue->second.size());
}

std::optional<std::vector<std::string>> Table::QueuePopOrPark(absl::string_view key, Ready ready,
                                                              WaitId* id) {
  absl::MutexLock lock(&mutex_);
  if (std::optional<std::string> value = TakeOldest(key)) {
    return std::vector<std::string>{*std::move(value)};
  }
  *id = ++last_id_;
  pops_for_[std::string(key)].push_back(*id);
  pops_.emplace(*id, Pop{std::string(key), std::move(ready)});
  return std::nullopt;
}

std::optional<std::vector<std::string>> Table::Unpark(WaitId id) {
  Ready ready;  // Destroyed after the lock is released: it may own anything.
  absl::MutexLock lock(&mutex_);
  if (auto pop = pops_.find(id); pop != pops_.end()) {
    std::string key = std::move(pop->second.key);
    auto waiting = pops_for_.find(key);
    waiting->second.erase(std::find(waiting->second.begin(), waiting->second.end(), id));
    if (waiting->second.empty()) pops_for_.erase(waiting);
    ready = std::move(pop->second.ready);
    pops_.erase(pop);
    return std::vector<std::string>{std::move(key)};
  }
  auto it = waits_.find(id);
  if (it == waits_.end()) return std::nullopt;
  auto queue = waits_for_.find(it->second.keys[it->second.next]);
  queue->second.erase(std::find(queue->second.begin(), queue->second.end(), id));
  if (queue->second.empty()) waits_for_.erase(queue);
  std::vector<std::string> missing;
  for (const std::string& key : it->second.keys) {
    if (!IsThere(key, it->second.needs)) missing.push_back(key);
  }
  ready = std::move(it->second.ready);
  waits_.erase(it);
  return missing;
}

int64_t Table::NumWaits() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(waits_.size() + pops_.size());
}

std::optional<std::string> Table::TakeOldest(absl::string_view key) {
  auto queue = queues_.find(key);
  if (queue == queues_.end()) return std::nullopt;
  std::string value = std::move(queue->second.front());
  queue->second.pop_front();
  if (queue->second.empty()) queues_.erase(queue);
  return value;
}

bool Table::IsThere(absl::string_view key, Needs needs) const {
  return contents_.Find(key) != nullptr || (needs == Needs::kPresence && queues_.contains(key));
}

std::vector<std::string> Table::ValuesFor(const Wait& wait) const {
  if (wait.needs == Needs::kPresence) return {};
  return contents_.Values(wait.keys);
}

void Table::Apply(Change change, Woken* woken) {
  const std::string key = change.key;
  contents_.Apply(std::move(change));
  Wake(key, woken);
}

// The index of an absent key of `keys`, looked for from `from` on and then from the beginning, as
// keys may be deleted; keys.size() if there is none.
size_t Table::NextMissing(absl::Span<const std::string> keys, Needs needs, size_t from) const {
  for (size_t i = from; i < keys.size(); ++i) {
    if (!IsThere(keys[i], needs)) return i;
  }
  for (size_t i = 0; i < from; ++i) {
    if (!IsThere(keys[i], needs)) return i;
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
    wait.next = NextMissing(wait.keys, wait.needs, wait.next);
    if (wait.next == wait.keys.size()) {
      woken->Add(std::move(wait.ready), ValuesFor(wait));
      waits_.erase(it);
    } else {
      waits_for_[wait.keys[wait.next]].push_back(id);
    }
  }
}

}  // namespace syncline::store
