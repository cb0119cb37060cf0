// Reading from etcd, and waiting for what is not there yet.
#ifndef SYNCLINE_STORE_ETCD_ETCD_READER_H_
#define SYNCLINE_STORE_ETCD_ETCD_READER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "store/etcd/etcd_client.h"
#include "syncline/deadline.h"

namespace syncline::etcd_store {

// Several keys, all as they were at one moment.
struct EtcdSnapshot {
  std::vector<std::optional<std::string>> values;  // In the order of the keys; nothing if absent.
  int64_t revision = 0;                            // Of the whole of etcd.

  std::vector<std::string> Missing(absl::Span<const std::string> keys) const;
};

enum class EtcdPart { kValues, kPresence };  // kPresence: all values are empty.

absl::StatusOr<EtcdSnapshot> ReadEtcd(EtcdClient& client, absl::Span<const std::string> keys,
                                      EtcdPart part, const Deadline& deadline);

// As ReadEtcd, once all keys are set, or at the deadline.
absl::StatusOr<EtcdSnapshot> AwaitEtcd(EtcdClient& client, absl::Span<const std::string> keys,
                                       EtcdPart part, const Deadline& deadline);

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_READER_H_
