// The lease that the clients of an etcd store share.
#ifndef SYNCLINE_STORE_ETCD_ETCD_LEASE_H_
#define SYNCLINE_STORE_ETCD_ETCD_LEASE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "store/etcd/etcd_client.h"
#include "syncline/deadline.h"

namespace syncline::etcd_store {

// Every client renews it, from a thread, three times in each `ttl`; so it ends, with all keys that
// are bound to it, `ttl` after the last client was closed or died. Thread-safe.
class EtcdLease {
 public:
  // The lease whose number `key` holds, or else a new one, which the key then names. The first
  // client's `ttl` is in force.
  static absl::StatusOr<std::unique_ptr<EtcdLease>> Share(EtcdClient& client,
                                                          const std::string& key,
                                                          absl::Duration ttl,
                                                          const Deadline& deadline);
  // Stops to renew it. May take a second if the servers are away.
  ~EtcdLease();

  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;

  int64_t id() const { return id_; }
  bool has_ended() const { return has_ended_; }

 private:
  EtcdLease(EtcdClient& client, int64_t id, absl::Duration ttl)
      : client_(client), id_(id), ttl_(ttl) {}

  void Renew();

  EtcdClient& client_;
  const int64_t id_;
  const absl::Duration ttl_;
  std::atomic<bool> has_ended_{false};
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Runs Renew().
};

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_LEASE_H_
