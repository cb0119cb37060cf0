#include "store/etcd/etcd_channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/tls/settings.h"
#include "syncline/status.h"

namespace syncline::etcd_store {
namespace {

// Servers refuse pings more often than every five seconds.
constexpr int kPingAfterMs = 10000;
constexpr int kPongWithinMs = 5000;
constexpr int kFirstRetryMs = 20;
constexpr int kLastRetryMs = 50;
constexpr int kConnectWithinMs = 5000;

// The contents of PEM file `path`, which `what` describes; nothing if there is no path.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view what) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return ArgumentError(
        absl::StrCat("cannot read ", what, " '", path, "': ", std::strerror(errno)));
  }
  std::string pem((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (pem.find("-----BEGIN ") == std::string::npos) {
    return ArgumentError(absl::StrCat(what, " '", path, "' is not a PEM file"));
  }
  return pem;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseEtcdEndpoints(absl::string_view endpoints) {
  std::vector<std::string> addresses;
  for (absl::string_view part : absl::StrSplit(endpoints, ',')) {
    const absl::string_view address = absl::StripAsciiWhitespace(part);
    const size_t colon = address.rfind(':');
    int port = 0;
    if (colon == absl::string_view::npos || colon == 0 ||
        address.find("://") != absl::string_view::npos ||
        !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
      return ArgumentError(absl::StrCat("etcd's endpoints must be host:port, or several such with ",
                                        "commas between them, not '", endpoints, "'"));
    }
    addresses.emplace_back(address);
  }
  return addresses;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> EtcdCredentials(
    const StoreConfig::Etcd& options) {
  if (options.ca_cert.empty() && options.cert.empty() && options.key.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(const tls::Settings tls, tls::SettingsFromEnvironment());
    if (tls.mode != tls::Mode::kOff) {
      return ArgumentError(absl::StrCat("SYNCLINE_TLS is ", tls::ModeName(tls.mode),
                                        ", so the way to etcd must be encrypted as well: give it a "
                                        "ca_cert, the certificate of who signed the server's"));
    }
    return grpc::InsecureChannelCredentials();
  }
  if (options.cert.empty() != options.key.empty()) {
    return ArgumentError(options.cert.empty()
                             ? "a client's key for etcd needs its certificate too"
                             : "a client's certificate for etcd needs its key too");
  }
  grpc::SslCredentialsOptions ssl;
  SYNCLINE_ASSIGN_OR_RETURN(ssl.pem_root_certs,
                            ReadPem(options.ca_cert, "the authority's certificate for etcd"));
  SYNCLINE_ASSIGN_OR_RETURN(ssl.pem_cert_chain,
                            ReadPem(options.cert, "the client's certificate for etcd"));
  SYNCLINE_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.key, "the client's key for etcd"));
  return grpc::SslCredentials(ssl);
}

std::shared_ptr<grpc::Channel> NewEtcdChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(-1);  // The server limits what it holds, not what it lists.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstRetryMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLastRetryMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectWithinMs);  // Which is what it means.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingAfterMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPongWithinMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // No limit.
  return grpc::CreateCustomChannel("dns:///" + address, credentials, arguments);
}

}  // namespace syncline::etcd_store
