#include "store/etcd/etcd_lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/thread.h"
#include "store/etcd/etcd_requests.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

namespace pb = etcdserverpb;

constexpr absl::Duration kLongestCall = absl::Seconds(1);
constexpr absl::Duration kPause = absl::Milliseconds(20);

// What the store's key for it says about the lease.
struct Entry {
  int64_t lease = 0;     // 0: none.
  int64_t revision = 0;  // Of the key.
};

absl::StatusOr<Entry> Find(EtcdClient& client, const std::string& key, const Deadline& deadline) {
  pb::RangeRequest request;
  request.set_key(key);
  SYNCLINE_ASSIGN_OR_RETURN(const pb::RangeResponse response, client.Range(request, deadline));
  Entry entry;
  if (response.kvs().empty()) return entry;
  entry.revision = response.kvs(0).mod_revision();
  if (!absl::SimpleAtoi(response.kvs(0).value(), &entry.lease) || entry.lease == 0) {
    return StoreError(absl::StrCat("'", key, "' does not hold the number of a lease"));
  }
  return entry;
}

// Writes that `lease` is the one to use, unless `key` has changed since `revision`.
absl::Status Propose(EtcdClient& client, const std::string& key, int64_t revision, int64_t lease,
                     const Deadline& deadline) {
  pb::TxnRequest request;
  CompareRevision(request.add_compare(), key, revision);
  AddPut(request.add_success(), key, absl::StrCat(lease), lease);
  return client.Txn(request, deadline).status();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdLease>> EtcdLease::Share(EtcdClient& client,
                                                            const std::string& key,
                                                            absl::Duration ttl,
                                                            const Deadline& deadline) {
  int64_t mine = 0;
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const Entry entry, Find(client, key, deadline));
    if (entry.lease != 0) {
      SYNCLINE_ASSIGN_OR_RETURN(const bool lives, client.KeepAlive(entry.lease, deadline));
      if (lives) {
        if (mine != 0 && mine != entry.lease) client.Revoke(mine, deadline).IgnoreError();
        std::unique_ptr<EtcdLease> shared(new EtcdLease(client, entry.lease, ttl));
        SYNCLINE_ASSIGN_OR_RETURN(shared->thread_,
                                  base::StartThread("the renewal of etcd's lease",
                                                    [raw = shared.get()] { raw->Renew(); }));
        return shared;
      }
    }
    if (deadline.Expired()) {
      return TimeoutError(absl::StrCat("no lease after ", absl::FormatDuration(deadline.timeout()),
                                       "; leases end sooner than they can be renewed"));
    }
    // A lease that has ended takes its key along, in a moment.
    if (entry.lease != 0) {
      absl::SleepFor(kPause);
      continue;
    }
    if (mine == 0) {
      SYNCLINE_ASSIGN_OR_RETURN(mine, client.Grant(ttl, deadline));
    }
    SYNCLINE_RETURN_IF_ERROR(Propose(client, key, entry.revision, mine, deadline));
  }
}

EtcdLease::~EtcdLease() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void EtcdLease::Renew() {
  const absl::Duration interval = ttl_ / 3;
  while (!has_ended_) {
    {
      absl::MutexLock lock(&mutex_);
      if (Deadline(interval).Await(mutex_, absl::Condition(&closing_))) return;
    }
    const absl::StatusOr<bool> lives =
        client_.KeepAlive(id_, Deadline(std::min(interval, kLongestCall)));
    // No answer says nothing: other clients may renew it.
    if (lives.ok() && !*lives) has_ended_ = true;
  }
}

}  // namespace syncline::etcd_store
