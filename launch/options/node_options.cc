#include "launch/options/node_options.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launch/options/option_values.h"
#include "launch/options/rendezvous_conf.h"
#include "store/common/listen_address.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

using Backend = RendezvousOptions::Backend;

constexpr int kC10dPort = 29400;
constexpr int kEtcdPort = 2379;
constexpr int kMasterPort = 29500;
constexpr absl::string_view kDefaultId = "none";  // As torchrun's.

// Reads the settings once.
class NodeReader {
 public:
  NodeReader(const Settings& settings, LaunchOptions* options)
      : settings_(settings), options_(*options), rendezvous_(options->rendezvous) {}

  absl::Status Read();
  absl::Status ReadStatus(absl::string_view endpoint);

 private:
  bool several_nodes() const { return options_.nodes.max > 1; }

  absl::Status ReadNodes();
  absl::Status ChooseBackend();
  absl::Status ReadId();
  absl::Status ReadMaster();
  absl::Status ReadPlace(absl::string_view where, absl::string_view text);
  absl::Status ReadStaticPlace();
  absl::Status CheckStatic() const;

  const Settings& settings_;
  LaunchOptions& options_;
  RendezvousOptions& rendezvous_;
};

absl::Status NodeReader::ReadNodes() {
  SYNCLINE_ASSIGN_OR_RETURN(options_.nodes,
                            ParseNodes(settings_.Name("nnodes"), settings_.Text("nnodes", "1")));
  const Setting* rank = settings_.Find("node-rank");
  if (rank == nullptr) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(options_.node_rank, ParseNumber(rank->name, rank->text, 0, 1000000));
  if (options_.node_rank < options_.nodes.max) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat(rank->Describe(), ": ",
                   several_nodes() ? absl::StrCat("with ", options_.nodes.max,
                                                  " nodes, ranks are 0 to ", options_.nodes.max - 1)
                                   : "with one node its rank is 0. For more give --nnodes"));
}

absl::Status NodeReader::ChooseBackend() {
  const Setting* backend = settings_.Find("rdzv-backend");
  if (backend != nullptr) {
    const std::string& name = backend->text;
    rendezvous_.backend = name == "static" ? Backend::kStatic
                          : name == "c10d" ? Backend::kC10d
                          : name == "file" ? Backend::kFile
                                           : Backend::kEtcd;
    if (name == "etcd-v2") {
      options_.notes.push_back(absl::StrCat(backend->Describe(),
                                            ": speaks version 3 of etcd's interface; servers have "
                                            "dropped version 2"));
    }
    if (name == "c10d" && AsksForFile(settings_.Text("rdzv-conf", ""))) {
      rendezvous_.backend = Backend::kFile;
    }
    return absl::OkStatus();
  }
  // torchrun uses static here, with node rank 0 for all nodes, which cannot work.
  const bool ranks_given = settings_.Find("node-rank") != nullptr;
  const bool endpoint_given = settings_.Find("rdzv-endpoint") != nullptr;
  const bool elastic = options_.nodes.min < options_.nodes.max;
  if (settings_.IsOn("standalone") ||
      (several_nodes() && endpoint_given && (elastic || !ranks_given))) {
    rendezvous_.backend = Backend::kC10d;
  }
  return absl::OkStatus();
}

absl::Status NodeReader::ReadId() {
  rendezvous_.id = settings_.Text("rdzv-id", "");
  const std::string& id = rendezvous_.id;
  if (absl::StrContains(id, '/') || id == "." || id == "..") {
    return ArgumentError(absl::StrCat(settings_.Name("rdzv-id"), ": '", id, "' cannot be the name ",
                                      "of a folder for logs: choose one without '/'"));
  }
  if (!id.empty() || !several_nodes()) return absl::OkStatus();
  if (rendezvous_.backend == Backend::kEtcd || rendezvous_.backend == Backend::kFile) {
    return ArgumentError(
        absl::StrCat("--rdzv-id is missing: other jobs may use ", settings_.Name("rdzv-endpoint"),
                     " too. Give a name of the job's own, the same on all its nodes"));
  }
  rendezvous_.id = std::string(kDefaultId);  // The endpoint is the job's own.
  return absl::OkStatus();
}

absl::Status NodeReader::ReadMaster() {
  options_.local_addr = settings_.Text("local-addr", "");
  options_.master_addr = settings_.Text("master-addr", "");
  const Setting* port = settings_.Find("master-port");
  if (port == nullptr) return absl::OkStatus();
  SYNCLINE_ASSIGN_OR_RETURN(options_.master_port, ParseNumber(port->name, port->text, 0, 65535));
  return absl::OkStatus();
}

absl::Status NodeReader::ReadPlace(absl::string_view where, absl::string_view text) {
  if (rendezvous_.backend == Backend::kFile) {
    rendezvous_.path = std::string(text);
    return absl::OkStatus();
  }
  SYNCLINE_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(where, text));
  rendezvous_.host = std::move(endpoint.host);
  rendezvous_.port = endpoint.port;
  if (endpoint.port < 0) {
    rendezvous_.port = rendezvous_.backend == Backend::kEtcd     ? kEtcdPort
                       : !several_nodes()                        ? 0
                       : rendezvous_.backend == Backend::kStatic ? kMasterPort
                                                                 : kC10dPort;
  }
  const bool need_port = several_nodes() || rendezvous_.backend == Backend::kEtcd;
  if (rendezvous_.port == 0 && need_port) {
    return ArgumentError(absl::StrCat(where, "=", text, ": the other nodes cannot find a port ",
                                      "that the system chooses. Name one"));
  }
  return absl::OkStatus();
}

// The store of several nodes takes MASTER_PORT, the one port that users of torchrun have opened
// for this; their frameworks get a free one in each round.
absl::Status NodeReader::ReadStaticPlace() {
  if (options_.master_addr.empty()) {
    return ArgumentError(absl::StrCat(
        settings_.Name("nnodes"), "=", settings_.Text("nnodes", ""), ": nothing says where the ",
        "nodes meet. Give --rdzv-backend=c10d --rdzv-endpoint=HOST with the name of one of them, ",
        "or --node-rank=RANK --master-addr=HOST with the name of node 0"));
  }
  rendezvous_.host = options_.master_addr;
  rendezvous_.port = options_.master_port == 0 ? kMasterPort : options_.master_port;
  options_.master_port = 0;
  return absl::OkStatus();
}

absl::Status NodeReader::CheckStatic() const {
  if (options_.nodes.min < options_.nodes.max) {
    return ArgumentError(absl::StrCat(
        settings_.Name("nnodes"), "=", settings_.Text("nnodes", ""), " and the backend static ",
        "exclude each other: ranks are given, so the number of nodes is fixed. Use ",
        "--rdzv-backend=c10d"));
  }
  if (options_.node_rank >= 0) return absl::OkStatus();
  return ArgumentError(
      "--node-rank is missing: with the backend static each node must be given its own. With "
      "--rdzv-backend=c10d nodes find their ranks themselves");
}

absl::Status NodeReader::Read() {
  SYNCLINE_RETURN_IF_ERROR(ReadNodes());
  SYNCLINE_RETURN_IF_ERROR(ChooseBackend());
  SYNCLINE_RETURN_IF_ERROR(ReadMaster());
  const Setting* endpoint = settings_.Find("rdzv-endpoint");
  const bool is_static = rendezvous_.backend == Backend::kStatic;
  if (endpoint != nullptr) {
    SYNCLINE_RETURN_IF_ERROR(ReadPlace(endpoint->name, endpoint->text));
  } else if (is_static && several_nodes()) {
    SYNCLINE_RETURN_IF_ERROR(ReadStaticPlace());
  } else if (several_nodes() || rendezvous_.backend == Backend::kEtcd) {
    return ArgumentError(
        absl::StrCat("--rdzv-endpoint is missing: ", settings_.Name("rdzv-backend"), "=",
                     settings_.Text("rdzv-backend", "c10d"), " needs ",
                     rendezvous_.backend == Backend::kFile ? "the path of a file that all nodes see"
                     : rendezvous_.backend == Backend::kEtcd ? "HOST[:PORT] of the etcd server"
                                                             : "HOST[:PORT] of one of the nodes"));
  }
  if (is_static && several_nodes()) SYNCLINE_RETURN_IF_ERROR(CheckStatic());
  SYNCLINE_RETURN_IF_ERROR(ReadId());
  const Setting* conf = settings_.Find("rdzv-conf");
  if (conf == nullptr) return absl::OkStatus();
  return ReadRendezvousConf(conf->name, conf->text, &rendezvous_);
}

absl::Status NodeReader::ReadStatus(absl::string_view endpoint) {
  if (settings_.Find("rdzv-backend") == nullptr) {
    rendezvous_.backend = Backend::kC10d;
  } else {
    SYNCLINE_RETURN_IF_ERROR(ChooseBackend());
  }
  if (settings_.IsOn("json")) options_.status_format = LaunchOptions::StatusFormat::kJson;
  options_.nodes.max = 2;  // Makes the rules of a rendezvous of several nodes apply.
  options_.nodes.min = 1;
  SYNCLINE_RETURN_IF_ERROR(ReadPlace("status", endpoint));
  SYNCLINE_RETURN_IF_ERROR(ReadId());
  options_.status_endpoint = rendezvous_.backend == Backend::kFile
                                 ? rendezvous_.path
                                 : JoinHostPort(rendezvous_.host, rendezvous_.port);
  const Setting* conf = settings_.Find("rdzv-conf");
  if (conf == nullptr) return absl::OkStatus();
  return ReadRendezvousConf(conf->name, conf->text, &rendezvous_);
}

// Whether `setting` agrees with --standalone.
bool FitsStandalone(absl::string_view name, const std::string& text) {
  if (name == "nnodes") return text == "1" || text == "1:1";
  if (name == "node-rank") return text == "0";
  if (name == "rdzv-backend") return text == "c10d";
  if (name == "rdzv-endpoint") return text == "localhost:0" || text == "127.0.0.1:0";
  return false;
}

}  // namespace

absl::Status ResolveStandalone(Settings* settings, std::vector<std::string>* notes) {
  for (absl::string_view name : {"nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint"}) {
    const Setting* other = settings->Find(name);
    if (!settings->IsOn("standalone") || other == nullptr) continue;
    if (FitsStandalone(name, other->text)) {
      settings->Drop(name);
    } else {
      SYNCLINE_RETURN_IF_ERROR(settings->ResolveConflict(
          "standalone", name, "a standalone job has one node, which meets nobody", notes));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNodeOptions(const Settings& settings, LaunchOptions* options) {
  return NodeReader(settings, options).Read();
}

absl::Status ReadStatusOptions(const Settings& settings, absl::string_view endpoint,
                               LaunchOptions* options) {
  return NodeReader(settings, options).ReadStatus(endpoint);
}

}  // namespace syncline::launch
