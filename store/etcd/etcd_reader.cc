#include "store/etcd/etcd_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "store/etcd/etcd_requests.h"
#include "syncline/interrupt.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

namespace pb = etcdserverpb;

// Even at the end of a wait the servers have so long to say what there is.
constexpr absl::Duration kReadGrace = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(20);
// Enough for all processes of a host; each is a message to the server.
constexpr size_t kMostWatches = 64;

// Adds `keys`, at most kMaxTxnOps, to the snapshot: as they are now, or at its revision.
absl::Status ReadMore(EtcdClient& client, absl::Span<const std::string> keys, EtcdPart part,
                      const Deadline& deadline, EtcdSnapshot* snapshot) {
  pb::TxnRequest request;
  for (const std::string& key : keys) {
    pb::RangeRequest* range = request.add_success()->mutable_request_range();
    range->set_key(key);
    range->set_keys_only(part == EtcdPart::kPresence);
    range->set_revision(snapshot->revision);
  }
  SYNCLINE_ASSIGN_OR_RETURN(pb::TxnResponse response, client.Txn(request, deadline));
  if (snapshot->revision == 0) snapshot->revision = response.header().revision();
  for (pb::ResponseOp& op : *response.mutable_responses()) {
    auto* found = op.mutable_response_range()->mutable_kvs();
    std::optional<std::string>& value = snapshot->values.emplace_back();
    if (!found->empty()) value = std::move(*found->Mutable(0)->mutable_value());
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> EtcdSnapshot::Missing(absl::Span<const std::string> keys) const {
  std::vector<std::string> missing;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!values[i].has_value()) missing.push_back(keys[i]);
  }
  return missing;
}

absl::StatusOr<EtcdSnapshot> ReadEtcd(EtcdClient& client, absl::Span<const std::string> keys,
                                      EtcdPart part, const Deadline& deadline) {
  EtcdSnapshot snapshot;
  for (size_t begin = 0; begin < keys.size(); begin += kMaxTxnOps) {
    SYNCLINE_RETURN_IF_ERROR(
        ReadMore(client, keys.subspan(begin, kMaxTxnOps), part, deadline, &snapshot));
  }
  return snapshot;
}

namespace {

// A wait inside gRPC does not look around.
Deadline Slice(const Deadline& deadline) {
  if (!InterruptScope::IsOpen()) return deadline;
  return Deadline(std::min(deadline.Remaining(), kInterruptInterval));
}

}  // namespace

absl::StatusOr<EtcdSnapshot> AwaitEtcd(EtcdClient& client, absl::Span<const std::string> keys,
                                       EtcdPart part, const Deadline& deadline) {
  while (true) {
    const Deadline reading(std::max(deadline.Remaining(), kReadGrace));
    absl::StatusOr<EtcdSnapshot> snapshot = ReadEtcd(client, keys, part, reading);
    if (!snapshot.ok()) {
      if (!deadline.Expired()) return snapshot.status();
      // The error tells the time of the last reading alone.
      return Annotate(snapshot.status(),
                      absl::StrCat("given up after ", absl::FormatDuration(deadline.timeout())));
    }
    std::vector<std::string> missing = snapshot->Missing(keys);
    if (missing.empty() || deadline.Expired()) return snapshot;
    missing.resize(std::min(missing.size(), kMostWatches));
    const bool has_come = client.AwaitPuts(missing, snapshot->revision, Slice(deadline));
    if (!has_come && !deadline.Expired()) {
      SYNCLINE_RETURN_IF_ERROR(SleepInterruptibly(std::min(kPause, deadline.Remaining())));
    }
  }
}

}  // namespace syncline::etcd_store
