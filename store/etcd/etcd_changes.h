// Changes of an etcd store that take effect once, however often they had to be sent.
#ifndef SYNCLINE_STORE_ETCD_ETCD_CHANGES_H_
#define SYNCLINE_STORE_ETCD_ETCD_CHANGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "etcd/etcdserver/etcdserverpb/rpc.pb.h"
#include "store/etcd/etcd_client.h"
#include "syncline/deadline.h"

namespace syncline::etcd_store {

// Each transaction also sets a record, a key of this client's: etcd counts how often, so the
// transaction that carries number n is ignored unless n - 1 came before, and if the first of two
// equal requests was lost on its way back, the second learns from the record what became of it.
// Calls at the same time use different records. Thread-safe.
class EtcdChanges {
 public:
  struct Outcome {
    bool applied = false;                     // The conditions held.
    std::optional<mvccpb::KeyValue> present;  // Of the key, if they did not hold and it is set.
  };

  // Records lie below `folder`, which no other client has; they are bound to `lease`, if not 0.
  EtcdChanges(EtcdClient& client, std::string folder, int64_t lease);
  // Removes the records, unless a request may still be under way.
  ~EtcdChanges();

  EtcdChanges(const EtcdChanges&) = delete;
  EtcdChanges& operator=(const EtcdChanges&) = delete;

  // Makes the changes in `change.success` if all of `change.compare` hold. After an error it may
  // take effect or not, but not later than the server's own time limit for a request.
  absl::StatusOr<Outcome> Apply(etcdserverpb::TxnRequest change, const std::string& key,
                                const Deadline& deadline);

 private:
  struct Record {
    uint64_t id = 0;
    int64_t calls = 0;  // That it has counted.
  };

  Record Take();
  void GiveBack(const Record& record);

  EtcdClient& client_;
  const std::string folder_;
  const int64_t lease_;
  absl::Mutex mutex_;
  uint64_t num_records_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Record> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_CHANGES_H_
