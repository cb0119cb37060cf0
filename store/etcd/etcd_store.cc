#include "syncline/etcd_store.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/hmac.h"
#include "store/common/contents.h"
#include "store/common/errors.h"
#include "store/common/listen_address.h"
#include "store/etcd/etcd_changes.h"
#include "store/etcd/etcd_client.h"
#include "store/etcd/etcd_lease.h"
#include "store/etcd/etcd_reader.h"
#include "store/etcd/etcd_requests.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline {
namespace {

using etcd_store::AddPut;
using etcd_store::AwaitEtcd;
using etcd_store::CompareRevision;
using etcd_store::CompareValue;
using etcd_store::CompareVersion;
using etcd_store::ContentsExpiredError;
using etcd_store::EtcdChanges;
using etcd_store::EtcdClient;
using etcd_store::EtcdLease;
using etcd_store::EtcdPart;
using etcd_store::EtcdPrefixEnd;
using etcd_store::ReadEtcd;
using store::AnnotateStore;
using store::Change;
using store::CheckKey;
using store::CheckKeys;
using store::CheckPairs;
using store::Contents;
using store::DescribeKeys;
using store::JoinHostPort;
using store::NotSetError;

namespace pb = etcdserverpb;

constexpr int kDefaultPort = 2379;
constexpr size_t kClientIdBytes = 8;

// A MultiSet of more keys than kFewKeys is a transaction of transactions: etcd subtracts from its
// limit what the outer ones hold.
constexpr size_t kFewKeys = 100;
constexpr size_t kKeysInPart = 63;
constexpr size_t kMostParts = 62;

const StoreRegistry::Registration kEtcd(
    "etcd", [](const StoreConfig& config) -> absl::StatusOr<std::shared_ptr<Store>> {
      EtcdStore::Options options;
      options.etcd = config.etcd;
      options.timeout = config.timeout;
      options.connect_timeout = config.connect_timeout;
      if (options.etcd.endpoints.empty()) {
        options.etcd.endpoints = JoinHostPort(config.host.empty() ? "127.0.0.1" : config.host,
                                              config.port == 0 ? kDefaultPort : config.port);
      }
      return EtcdStore::Create(options);
    });

std::string Name(const StoreConfig::Etcd& etcd) {
  return absl::StrCat("etcd://", etcd.endpoints, absl::StartsWith(etcd.prefix, "/") ? "" : "/",
                      etcd.prefix);
}

}  // namespace

struct EtcdStore::Connection {
  std::unique_ptr<EtcdClient> client;
  std::unique_ptr<EtcdLease> lease;  // Null if contents stay.
  std::string keys;                  // What all keys begin with.
  std::unique_ptr<EtcdChanges> changes;

  std::string Full(absl::string_view key) const { return absl::StrCat(keys, key); }
  std::vector<std::string> Full(absl::Span<const std::string> keys) const {
    std::vector<std::string> full;
    for (const std::string& key : keys) full.push_back(Full(key));
    return full;
  }
  int64_t lease_id() const { return lease == nullptr ? 0 : lease->id(); }

  // Learns whether the cluster can be reached, and trusts us.
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const StoreConfig::Etcd& etcd,
                                                          const Deadline& deadline) {
    if (etcd.ttl < absl::ZeroDuration() || etcd.ttl == absl::InfiniteDuration()) {
      return ArgumentError(absl::StrCat("ttl is ", absl::FormatDuration(etcd.ttl),
                                        "; it must be a time, or 0 for contents that stay"));
    }
    auto connection = std::make_unique<Connection>();
    SYNCLINE_ASSIGN_OR_RETURN(connection->client, EtcdClient::Create(etcd));
    connection->keys = absl::StrCat(etcd.prefix, "/keys/");
    SYNCLINE_RETURN_IF_ERROR(
        ReadEtcd(*connection->client, {connection->keys}, EtcdPart::kPresence, deadline).status());
    if (etcd.ttl > absl::ZeroDuration()) {
      SYNCLINE_ASSIGN_OR_RETURN(
          connection->lease,
          EtcdLease::Share(*connection->client, absl::StrCat(etcd.prefix, "/lease"), etcd.ttl,
                           deadline));
    }
    const std::string id = absl::BytesToHexString(base::RandomBytes(kClientIdBytes));
    connection->changes = std::make_unique<EtcdChanges>(
        *connection->client, absl::StrCat(etcd.prefix, "/calls/", id, "/"), connection->lease_id());
    return connection;
  }
};

absl::StatusOr<std::shared_ptr<EtcdStore>> EtcdStore::Create(const Options& options) {
  Options normal = options;
  while (absl::EndsWith(normal.etcd.prefix, "/")) normal.etcd.prefix.pop_back();
  auto connection =
      Connection::Open(normal.etcd, Deadline(normal.connect_timeout.value_or(normal.timeout)));
  if (!connection.ok()) return AnnotateStore(connection.status(), Name(normal.etcd));
  return std::shared_ptr<EtcdStore>(new EtcdStore(normal, *std::move(connection)));
}

EtcdStore::EtcdStore(const Options& options, std::unique_ptr<Connection> connection)
    : name_(Name(options.etcd)),
      endpoints_(options.etcd.endpoints),
      timeout_(options.timeout),
      pid_(getpid()),
      connection_(std::move(connection)) {}

EtcdStore::~EtcdStore() {
  // gRPC and the thread that renews the lease are not there after a fork; leave them to the parent.
  if (getpid() != pid_) static_cast<void>(connection_.release());
}

std::string EtcdStore::address() const { return endpoints_.substr(0, endpoints_.find(',')); }

// The error of a call that is about `keys`.
absl::Status EtcdStore::AnnotateCall(const absl::Status& status,
                                     absl::Span<const std::string> keys) const {
  if (status.ok()) return status;
  return AnnotateStore(keys.empty() ? status : Annotate(status, DescribeKeys(keys)), name_);
}

absl::Status EtcdStore::CheckUsable() const {
  if (getpid() != pid_) {
    return StoreError(absl::StrCat("it was opened by process ", pid_,
                                   " and cannot be used in process ", getpid(),
                                   ", which was forked from it; open it again there"));
  }
  const bool has_expired = connection_->lease != nullptr && connection_->lease->has_ended();
  return has_expired ? ContentsExpiredError() : absl::OkStatus();
}

absl::Status EtcdStore::Set(absl::string_view key, absl::string_view value) {
  return MultiSet({std::string(key)}, {std::string(value)});
}

absl::StatusOr<std::string> EtcdStore::Get(absl::string_view key, absl::Duration timeout) {
  SYNCLINE_ASSIGN_OR_RETURN(std::vector<std::string> values, MultiGet({std::string(key)}, timeout));
  return std::move(values[0]);
}

absl::StatusOr<int64_t> EtcdStore::Add(absl::string_view key, int64_t amount) {
  int64_t sum = 0;
  const auto update = [&](const std::string* present) -> absl::StatusOr<std::string> {
    Contents contents;
    if (present != nullptr) contents.Apply({Change::Kind::kSet, std::string(key), *present});
    SYNCLINE_ASSIGN_OR_RETURN(sum, contents.Sum(key, amount));
    return absl::StrCat(sum);
  };
  SYNCLINE_RETURN_IF_ERROR(Replace(std::string(key), update).status());
  return sum;
}

absl::Status EtcdStore::Append(absl::string_view key, absl::string_view value) {
  const auto update = [&](const std::string* present) -> absl::StatusOr<std::string> {
    return absl::StrCat(present == nullptr ? "" : *present, value);
  };
  return Replace(std::string(key), update).status();
}

absl::StatusOr<Store::CompareSetResult> EtcdStore::CompareSet(absl::string_view key,
                                                              absl::string_view expected,
                                                              absl::string_view desired) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKey(key), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  const std::string full = connection_->Full(key);
  const Deadline deadline(timeout_);
  while (true) {
    pb::TxnRequest change;
    if (expected.empty()) {
      CompareVersion(change.add_compare(), full, 0);
    } else {
      CompareValue(change.add_compare(), full, std::string(expected));
    }
    AddPut(change.add_success(), full, std::string(desired), connection_->lease_id());
    const auto outcome = connection_->changes->Apply(std::move(change), full, deadline);
    if (!outcome.ok()) return AnnotateCall(outcome.status(), keys);
    if (outcome->applied) return CompareSetResult{true, std::string(desired)};
    const std::string present = outcome->present.has_value() ? outcome->present->value() : "";
    // What was seen after an answer was lost may be newer than the comparison.
    const bool holds = expected.empty() ? !outcome->present.has_value() : present == expected;
    if (!holds) return CompareSetResult{false, present};
  }
}

absl::Status EtcdStore::Wait(absl::Span<const std::string> keys, absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKeys(keys), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  const auto found = AwaitEtcd(*connection_->client, connection_->Full(keys), EtcdPart::kPresence,
                               Deadline(timeout));
  if (!found.ok()) return AnnotateCall(found.status(), keys);
  const std::vector<std::string> missing = found->Missing(keys);
  return missing.empty() ? absl::OkStatus() : NotSetError(name_, missing, timeout);
}

absl::StatusOr<std::vector<std::string>> EtcdStore::MultiGet(absl::Span<const std::string> keys,
                                                             absl::Duration timeout) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKeys(keys), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  auto found = AwaitEtcd(*connection_->client, connection_->Full(keys), EtcdPart::kValues,
                         Deadline(timeout));
  if (!found.ok()) return AnnotateCall(found.status(), keys);
  const std::vector<std::string> missing = found->Missing(keys);
  if (!missing.empty()) return NotSetError(name_, missing, timeout);
  std::vector<std::string> values;
  for (std::optional<std::string>& value : found->values) values.push_back(*std::move(value));
  return values;
}

absl::StatusOr<bool> EtcdStore::Check(absl::Span<const std::string> keys) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKeys(keys), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  const auto found = ReadEtcd(*connection_->client, connection_->Full(keys), EtcdPart::kPresence,
                              Deadline(timeout_));
  if (!found.ok()) return AnnotateCall(found.status(), keys);
  return found->Missing(keys).empty();
}

absl::StatusOr<bool> EtcdStore::Delete(absl::string_view key) {
  const std::string keys[] = {std::string(key)};
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKey(key), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  const std::string full = connection_->Full(key);
  pb::TxnRequest change;
  CompareVersion(change.add_compare(), full, 0, pb::Compare::GREATER);
  change.add_success()->mutable_request_delete_range()->set_key(full);
  const auto outcome = connection_->changes->Apply(std::move(change), full, Deadline(timeout_));
  if (!outcome.ok()) return AnnotateCall(outcome.status(), keys);
  return outcome->applied;
}

absl::StatusOr<std::vector<std::string>> EtcdStore::Keys(absl::string_view prefix) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), {}));
  pb::RangeRequest request;
  request.set_key(connection_->Full(prefix));
  request.set_range_end(EtcdPrefixEnd(request.key()));
  request.set_keys_only(true);
  const auto response = connection_->client->Range(request, Deadline(timeout_));
  if (!response.ok()) return AnnotateCall(response.status(), {});
  std::vector<std::string> keys;  // etcd sorts them.
  for (const auto& kv : response->kvs()) {
    keys.emplace_back(absl::StripPrefix(kv.key(), connection_->keys));
  }
  return keys;
}

absl::Status EtcdStore::MultiSet(absl::Span<const std::string> keys,
                                 absl::Span<const std::string> values) {
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckPairs(keys, values), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  std::map<absl::string_view, absl::string_view> pairs;  // etcd refuses a key that comes twice.
  for (size_t i = 0; i < keys.size(); ++i) pairs[keys[i]] = values[i];
  if (pairs.empty()) return absl::OkStatus();
  if (pairs.size() > kMostParts * kKeysInPart) {
    return AnnotateCall(
        StoreError(absl::StrCat("etcd takes no more than ", kMostParts * kKeysInPart,
                                " keys in one step, not ", pairs.size())),
        keys);
  }
  pb::TxnRequest change;
  pb::TxnRequest* part = &change;
  for (const auto& [key, value] : pairs) {
    if (pairs.size() > kFewKeys && (part == &change || part->success_size() == kKeysInPart)) {
      part = change.add_success()->mutable_request_txn();
    }
    AddPut(part->add_success(), connection_->Full(key), std::string(value),
           connection_->lease_id());
  }
  const std::string any = connection_->Full(keys[0]);
  return AnnotateCall(
      connection_->changes->Apply(std::move(change), any, Deadline(timeout_)).status(), keys);
}

absl::StatusOr<std::string> EtcdStore::Replace(const std::string& key, Update update) {
  const std::string keys[] = {key};
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckKey(key), {}));
  SYNCLINE_RETURN_IF_ERROR(AnnotateCall(CheckUsable(), keys));
  const std::string full = connection_->Full(key);
  const Deadline deadline(timeout_);
  pb::RangeRequest request;
  request.set_key(full);
  const auto response = connection_->client->Range(request, deadline);
  if (!response.ok()) return AnnotateCall(response.status(), keys);
  std::optional<mvccpb::KeyValue> present;
  if (!response->kvs().empty()) present = response->kvs(0);
  while (true) {
    absl::StatusOr<std::string> value = update(present.has_value() ? &present->value() : nullptr);
    if (!value.ok()) return AnnotateStore(value.status(), name_);
    pb::TxnRequest change;
    CompareRevision(change.add_compare(), full, present.has_value() ? present->mod_revision() : 0);
    AddPut(change.add_success(), full, *value, connection_->lease_id());
    const auto outcome = connection_->changes->Apply(std::move(change), full, deadline);
    if (!outcome.ok()) return AnnotateCall(outcome.status(), keys);
    if (outcome->applied) return value;
    present = outcome->present;
    if (deadline.Expired()) {
      return AnnotateCall(TimeoutError(absl::StrCat("others have changed it all the time for ",
                                                    absl::FormatDuration(timeout_))),
                          keys);
    }
  }
}

}  // namespace syncline
