#include "syncline/prefix_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "syncline/status.h"

namespace syncline {

PrefixStore::PrefixStore(absl::string_view prefix, std::shared_ptr<Store> store)
    : prefix_(absl::StrCat(prefix, "/")), store_(std::move(store)) {}

absl::Status PrefixStore::Set(absl::string_view key, absl::string_view value) {
  return store_->Set(Full(key), value);
}

absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key, absl::Duration timeout) {
  return store_->Get(Full(key), timeout);
}

absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key, int64_t amount) {
  return store_->Add(Full(key), amount);
}

absl::StatusOr<Store::CompareSetResult> PrefixStore::CompareSet(absl::string_view key,
                                                                absl::string_view expected,
                                                                absl::string_view desired) {
  return store_->CompareSet(Full(key), expected, desired);
}

absl::Status PrefixStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  return store_->Wait(Full(keys), timeout);
}

absl::StatusOr<bool> PrefixStore::Check(absl::Span<const std::string> keys) {
  return store_->Check(Full(keys));
}

absl::StatusOr<bool> PrefixStore::Delete(absl::string_view key) {
  return store_->Delete(Full(key));
}

absl::StatusOr<std::vector<std::string>> PrefixStore::Keys(absl::string_view prefix) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> keys,
                            store_->Keys(absl::StrCat(prefix_, prefix)));
  for (std::string& key : keys) key.erase(0, prefix_.size());
  return keys;
}

absl::Status PrefixStore::Append(absl::string_view key, absl::string_view value) {
  return store_->Append(Full(key), value);
}

absl::StatusOr<std::vector<std::string>> PrefixStore::MultiGet(absl::Span<const std::string> keys,
                                                               absl::Duration timeout) {
  return store_->MultiGet(Full(keys), timeout);
}

absl::Status PrefixStore::MultiSet(absl::Span<const std::string> keys,
                                   absl::Span<const std::string> values) {
  return store_->MultiSet(Full(keys), values);
}

absl::Status PrefixStore::SetOnDisconnect(absl::string_view key, absl::string_view value) {
  return store_->SetOnDisconnect(Full(key), value);
}

absl::Duration PrefixStore::timeout() const {
  const absl::Duration own = own_timeout_.Get();
  return own == absl::ZeroDuration() ? store_->timeout() : own;
}

// The underlying store keeps its own: others may use it.
void PrefixStore::set_timeout(absl::Duration timeout) { own_timeout_.Set(timeout); }

absl::StatusOr<std::shared_ptr<Store>> PrefixStore::Clone() {
  SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const underlying, ExtendedStore::Of(*store_));
  SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<Store> store, underlying->Clone());
  auto clone = std::make_shared<PrefixStore>(
      absl::string_view(prefix_).substr(0, prefix_.size() - 1), std::move(store));
  clone->own_timeout_.Set(own_timeout_.Get());
  return clone;
}

absl::Status PrefixStore::QueuePush(absl::string_view key, absl::string_view value) {
  SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const underlying, ExtendedStore::Of(*store_));
  return underlying->QueuePush(Full(key), value);
}

absl::StatusOr<std::string> PrefixStore::QueuePop(absl::string_view key, absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const underlying, ExtendedStore::Of(*store_));
  return underlying->QueuePop(Full(key), timeout);
}

absl::StatusOr<std::optional<std::string>> PrefixStore::QueueTryPop(absl::string_view key) {
  SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const underlying, ExtendedStore::Of(*store_));
  return underlying->QueueTryPop(Full(key));
}

absl::StatusOr<int64_t> PrefixStore::QueueLength(absl::string_view key) {
  SYNCLINE_ASSIGN_OR_RETURN(ExtendedStore* const underlying, ExtendedStore::Of(*store_));
  return underlying->QueueLength(Full(key));
}

std::string PrefixStore::ToString() const {
  return absl::StrCat("prefix '", prefix_, "' of ", store_->ToString());
}

std::string WithoutPrefixes(const Store& store) {
  const auto* const prefixed = dynamic_cast<const PrefixStore*>(&store);
  return prefixed == nullptr ? store.ToString() : WithoutPrefixes(*prefixed->underlying_store());
}

// The empty key stays empty, so that the underlying store refuses it.
std::string PrefixStore::Full(absl::string_view key) const {
  return key.empty() ? std::string() : absl::StrCat(prefix_, key);
}

std::vector<std::string> PrefixStore::Full(absl::Span<const std::string> keys) const {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys) full.push_back(Full(key));
  return full;
}

}  // namespace syncline
