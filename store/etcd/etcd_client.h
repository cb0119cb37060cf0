// The connections of an etcd store to the servers of its cluster.
#ifndef SYNCLINE_STORE_ETCD_ETCD_CLIENT_H_
#define SYNCLINE_STORE_ETCD_ETCD_CLIENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "etcd/etcdserver/etcdserverpb/rpc.pb.h"
#include "syncline/deadline.h"
#include "syncline/store.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace syncline::etcd_store {

// Says that the lease to which a store's contents were bound has ended.
absl::Status ContentsExpiredError();

// etcd's v3 API. Thread-safe.
//
// A call that is not answered, because a server is away or the cluster has no leader, is sent
// again, to the next endpoint, until its deadline: what it asks for may happen more than once.
// Before the first call, and whenever the servers have forgotten it, the client authenticates
// itself.
//
// Errors are NetworkErrors if no server could be reached or it was not the right one, TimeoutErrors
// if it kept silent, StoreErrors if it refused, InterruptedErrors; they do not name the store.
class EtcdClient {
 public:
  // Reads the files that `options` name; connections are made by the first call. ArgumentError if
  // an endpoint or a file is not usable.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(const StoreConfig::Etcd& options);
  ~EtcdClient();

  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    const Deadline& deadline);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                const Deadline& deadline);

  // A lease that ends `ttl`, or the shortest time that the servers allow, after it was last
  // renewed.
  absl::StatusOr<int64_t> Grant(absl::Duration ttl, const Deadline& deadline);
  absl::Status Revoke(int64_t lease, const Deadline& deadline);
  // Renews the lease; returns whether it still exists.
  absl::StatusOr<bool> KeepAlive(int64_t lease, const Deadline& deadline);

  // Waits until each of `keys` has been put after `revision`; returns whether they have. False also
  // if the server or the connection fails in between, perhaps at once.
  bool AwaitPuts(absl::Span<const std::string> keys, int64_t revision, const Deadline& deadline);

  // Whether the answer to a Txn has ever been lost, so that it may still take effect.
  bool has_lost_answers() const { return has_lost_answers_; }

 private:
  struct Server;
  struct Outcome;
  using Attempt =
      absl::FunctionRef<grpc::Status(const Server& server, grpc::ClientContext* context)>;

  EtcdClient(std::vector<Server> servers, std::string user, std::string password);

  absl::Status Repeat(const Deadline& deadline, Attempt attempt);
  Outcome TryOnce(const Server& server, absl::Duration limit, Attempt attempt);
  grpc::Status Authenticate(const Server& server, absl::Duration limit);
  absl::Status Refused(const Outcome& outcome) const;
  absl::Status GivenUp(const grpc::Status& status, absl::Duration timeout) const;
  std::optional<std::string> token() const;
  void Forget(const std::string& token);

  const std::vector<Server> servers_;
  const std::string user_;  // Empty: nobody is authenticated.
  const std::string password_;
  std::atomic<size_t> current_{0};  // The server to ask first.
  std::atomic<bool> has_lost_answers_{false};
  mutable absl::Mutex mutex_;
  std::optional<std::string> token_ ABSL_GUARDED_BY(mutex_);  // Empty: the cluster asks for none.
};

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_CLIENT_H_
