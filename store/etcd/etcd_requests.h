// Parts of etcd's requests.
#ifndef SYNCLINE_STORE_ETCD_ETCD_REQUESTS_H_
#define SYNCLINE_STORE_ETCD_ETCD_REQUESTS_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "etcd/etcdserver/etcdserverpb/rpc.pb.h"

namespace syncline::etcd_store {

// Servers take so many operations in a transaction (--max-txn-ops), those within operations too.
inline constexpr int kMaxTxnOps = 128;

// The end of the range of all keys that begin with `prefix`, which is not empty.
std::string EtcdPrefixEnd(absl::string_view prefix);

void AddPut(etcdserverpb::RequestOp* op, const std::string& key, std::string value, int64_t lease);
void AddRange(etcdserverpb::RequestOp* op, const std::string& key);

// That `key` was set or removed last at `revision`; 0: that it is absent.
void CompareRevision(etcdserverpb::Compare* compare, const std::string& key, int64_t revision);
// That `key` has been set so many times since it was absent; 0: that it is absent.
void CompareVersion(etcdserverpb::Compare* compare, const std::string& key, int64_t version,
                    etcdserverpb::Compare::CompareResult result = etcdserverpb::Compare::EQUAL);
void CompareValue(etcdserverpb::Compare* compare, const std::string& key, std::string value);

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_REQUESTS_H_
