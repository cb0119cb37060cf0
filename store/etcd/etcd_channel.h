// How an etcd store connects: endpoints, certificates, and the arguments of channels.
#ifndef SYNCLINE_STORE_ETCD_ETCD_CHANNEL_H_
#define SYNCLINE_STORE_ETCD_ETCD_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "syncline/store.h"

namespace syncline::etcd_store {

// Reads "host1:2379,[::1]:2379" as a list; ArgumentError that says what is wrong.
absl::StatusOr<std::vector<std::string>> ParseEtcdEndpoints(absl::string_view endpoints);

// TLS if any of the PEM files is named: with ca_cert as the only authority, or the system's
// authorities; with cert and key as this client's own. ArgumentError if a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> EtcdCredentials(
    const StoreConfig::Etcd& options);

// A connection of its own, which is tried again at once and often, and found dead if its peer does
// not answer a ping. `address` is host:port.
std::shared_ptr<grpc::Channel> NewEtcdChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials);

}  // namespace syncline::etcd_store

#endif  // SYNCLINE_STORE_ETCD_ETCD_CHANNEL_H_
