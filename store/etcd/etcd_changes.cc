#include "store/etcd/etcd_changes.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "store/etcd/etcd_requests.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

namespace pb = etcdserverpb;

// A store closes without waiting for servers that are away.
constexpr absl::Duration kCloseGrace = absl::Milliseconds(500);

constexpr char kApplied[] = "applied";
constexpr char kRefused[] = "refused";

// What the range at `index` has found, if it has. A server that answers less has found nothing.
std::optional<mvccpb::KeyValue> Found(const pb::TxnResponse& response, int index) {
  if (index >= response.responses_size()) return std::nullopt;
  const pb::RangeResponse& range = response.responses(index).response_range();
  if (range.kvs().empty()) return std::nullopt;
  return range.kvs(0);
}

}  // namespace

EtcdChanges::EtcdChanges(EtcdClient& client, std::string folder, int64_t lease)
    : client_(client), folder_(std::move(folder)), lease_(lease) {}

EtcdChanges::~EtcdChanges() {
  if (num_records_ == 0 || client_.has_lost_answers()) return;
  pb::TxnRequest request;
  pb::DeleteRangeRequest* records = request.add_success()->mutable_request_delete_range();
  records->set_key(folder_);
  records->set_range_end(EtcdPrefixEnd(folder_));
  client_.Txn(request, Deadline(kCloseGrace)).status().IgnoreError();
}

absl::StatusOr<EtcdChanges::Outcome> EtcdChanges::Apply(pb::TxnRequest change,
                                                        const std::string& key,
                                                        const Deadline& deadline) {
  Record record = Take();
  const std::string name = absl::StrCat(folder_, record.id);
  AddPut(change.add_success(), name, kApplied, lease_);
  AddPut(change.add_failure(), name, kRefused, lease_);
  AddRange(change.add_failure(), key);
  pb::TxnRequest request;
  CompareVersion(request.add_compare(), name, record.calls);
  *request.add_success()->mutable_request_txn() = std::move(change);
  AddRange(request.add_failure(), name);
  AddRange(request.add_failure(), key);

  // A record that is not given back after an error is not used again: its count is not known.
  SYNCLINE_ASSIGN_OR_RETURN(const pb::TxnResponse response, client_.Txn(request, deadline));
  if (response.responses().empty()) {
    return StoreError("the server's answer lacks what became of the change: is it an etcd?");
  }
  ++record.calls;
  Outcome outcome;
  if (response.succeeded()) {
    const pb::TxnResponse& inner = response.responses(0).response_txn();
    outcome.applied = inner.succeeded();
    if (!outcome.applied) outcome.present = Found(inner, 1);
  } else {  // An earlier request with this number has arrived, but its answer has not.
    const std::optional<mvccpb::KeyValue> found = Found(response, 0);
    if (!found.has_value() && lease_ != 0) return ContentsExpiredError();
    if (!found.has_value() || found->version() != record.calls) {
      return StoreError(absl::StrCat("somebody else has changed '", name,
                                     "', where this client counts its calls"));
    }
    outcome.applied = found->value() == kApplied;
    if (!outcome.applied) outcome.present = Found(response, 1);
  }
  GiveBack(record);
  return outcome;
}

EtcdChanges::Record EtcdChanges::Take() {
  absl::MutexLock lock(&mutex_);
  if (idle_.empty()) return Record{num_records_++, 0};
  const Record record = idle_.back();
  idle_.pop_back();
  return record;
}

void EtcdChanges::GiveBack(const Record& record) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(record);
}

}  // namespace syncline::etcd_store
