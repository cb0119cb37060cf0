#include "store/etcd/etcd_requests.h"

#include <utility>

namespace syncline::etcd_store {

using etcdserverpb::Compare;
using etcdserverpb::RequestOp;

std::string EtcdPrefixEnd(absl::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && end.back() == '\xff') end.pop_back();
  if (end.empty()) return std::string(1, '\0');  // All keys from the prefix on.
  ++end.back();
  return end;
}

void AddPut(RequestOp* op, const std::string& key, std::string value, int64_t lease) {
  op->mutable_request_put()->set_key(key);
  op->mutable_request_put()->set_value(std::move(value));
  op->mutable_request_put()->set_lease(lease);
}

void AddRange(RequestOp* op, const std::string& key) { op->mutable_request_range()->set_key(key); }

void CompareRevision(Compare* compare, const std::string& key, int64_t revision) {
  compare->set_key(key);
  compare->set_target(Compare::MOD);
  compare->set_result(Compare::EQUAL);
  compare->set_mod_revision(revision);
}

void CompareVersion(Compare* compare, const std::string& key, int64_t version,
                    Compare::CompareResult result) {
  compare->set_key(key);
  compare->set_target(Compare::VERSION);
  compare->set_result(result);
  compare->set_version(version);
}

void CompareValue(Compare* compare, const std::string& key, std::string value) {
  compare->set_key(key);
  compare->set_target(Compare::VALUE);
  compare->set_result(Compare::EQUAL);
  compare->set_value(std::move(value));
}

}  // namespace syncline::etcd_store
