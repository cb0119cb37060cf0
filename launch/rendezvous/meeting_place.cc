#include "launch/rendezvous/meeting_place.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/host.h"
#include "core/host_address.h"
#include "core/prefix_store.h"
#include "core/serving_turn.h"
#include "core/status.h"
#include "store/listen_address.h"
#include "store/tcp_store.h"

namespace syncline {
namespace {

using Backend = RendezvousOptions::Backend;
using Hosting = RendezvousOptions::Hosting;

constexpr absl::Duration kPause = absl::Milliseconds(100);
constexpr absl::Duration kTryFor = absl::Seconds(1);
constexpr absl::Duration kTryElsewhereFor = absl::Seconds(3);  // With TLS and a login.
constexpr absl::string_view kOpen = "open";
constexpr absl::string_view kNotices = "notice/";
constexpr absl::string_view kNodes = "node/";

std::shared_ptr<Store> OfJob(const RendezvousOptions& rendezvous, std::shared_ptr<Store> store) {
  return std::make_shared<PrefixStore>(absl::StrCat("rdzv/", rendezvous.id), std::move(store));
}

// Where to listen for connections to `host`. A name of this host that stands for a loopback address
// here (127.0.1.1, as many systems have it) stands for another one elsewhere.
absl::StatusOr<std::string> ListenAddress(const std::string& host) {
  SYNCLINE_ASSIGN_OR_RETURN(std::string address, FirstAddress(host));
  const bool is_meant = host == "localhost" || IsLoopbackAddress(host);
  if (IsLoopbackAddress(address) && !is_meant) return std::string("0.0.0.0");
  return address;
}

absl::StatusOr<std::shared_ptr<Store>> Connect(const MeetingPlaceOptions& options,
                                               const std::string& host, int port,
                                               absl::Duration patience) {
  TCPStore::Options client;
  client.host = host;
  client.port = port;
  client.timeout = options.call_timeout;
  client.connect_timeout = patience;
  client.secret = options.secret;
  return TCPStore::Create(client);
}

absl::StatusOr<std::unique_ptr<TCPServer>> Serve(const MeetingPlaceOptions& options) {
  TCPServer::Options server;
  SYNCLINE_ASSIGN_OR_RETURN(server.host, ListenAddress(options.rendezvous.host));
  server.port = options.rendezvous.port;
  server.secret = options.secret;
  return TCPServer::Start(server);
}

// Of c10d and static: to host and to connect in turns, until one of them works.
absl::StatusOr<MeetingPlace> HostOrConnect(const MeetingPlaceOptions& options,
                                           const Deadline& deadline,
                                           const std::function<bool()>& cancelled) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  MeetingPlace place;
  place.address = EndpointAddress(rendezvous);
  for (;;) {
    absl::Status hosting;
    if (rendezvous.hosting != Hosting::kNever) {
      const ServingTurn turn(rendezvous.host, rendezvous.port);
      absl::StatusOr<std::unique_ptr<TCPServer>> server = NetworkError("another node tries to");
      if (turn.is_mine()) server = Serve(options);
      hosting = server.status();
      if (server.ok()) place.server = *std::move(server);
      if (!hosting.ok() && rendezvous.hosting == Hosting::kAlways) {
        if (deadline.Expired() || cancelled()) {
          return Annotate(hosting, "this node is to host the rendezvous");
        }
        absl::SleepFor(kPause);  // Its predecessor may still be ending.
        continue;
      }
    }
    const Deadline attempt(std::min(kTryFor, deadline.Remaining()));
    auto store = Connect(options, rendezvous.host, rendezvous.port, attempt.timeout());
    if (store.ok()) {
      place.store = OfJob(rendezvous, *std::move(store));
      return place;
    }
    // Who answers, and not with a welcome, will not change.
    if (!attempt.Expired() || deadline.Expired() || cancelled()) {
      return Annotate(
          store.status(),
          absl::StrCat("the rendezvous at ", place.address, " cannot be reached",
                       rendezvous.hosting == Hosting::kNever
                           ? ""
                           : absl::StrCat(", nor hosted by this node (", hosting.message(), ")")));
    }
    place.server.reset();
  }
}

StoreConfig ConfigOf(const MeetingPlaceOptions& options) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  StoreConfig config;
  config.path = rendezvous.path;
  config.timeout = options.call_timeout;
  config.etcd.endpoints = EndpointAddress(rendezvous);
  config.etcd.ca_cert = rendezvous.etcd.ca_cert;
  config.etcd.cert = rendezvous.etcd.cert;
  config.etcd.key = rendezvous.etcd.key;
  config.etcd.user = rendezvous.etcd.user;
  config.etcd.password = rendezvous.etcd.password;
  config.etcd.prefix = rendezvous.etcd.prefix;
  config.etcd.ttl = rendezvous.join_timeout;  // Of what a job that was killed leaves behind.
  return config;
}

}  // namespace

std::string EndpointAddress(const RendezvousOptions& rendezvous) {
  return JoinHostPort(rendezvous.host, rendezvous.port);
}

bool IsHostedByNodes(const RendezvousOptions& rendezvous) {
  return rendezvous.backend == Backend::kC10d || rendezvous.backend == Backend::kStatic;
}

absl::StatusOr<MeetingPlace> OpenMeetingPlace(const MeetingPlaceOptions& options,
                                              const Deadline& deadline,
                                              const std::function<bool()>& cancelled) {
  const RendezvousOptions& rendezvous = options.rendezvous;
  if (IsHostedByNodes(rendezvous)) return HostOrConnect(options, deadline, cancelled);
  const bool is_file = rendezvous.backend == Backend::kFile;
  StoreConfig config = ConfigOf(options);
  for (;;) {
    const Deadline attempt(std::min(kTryElsewhereFor, deadline.Remaining()));
    config.connect_timeout = attempt.timeout();
    auto store = StoreRegistry::Make(is_file ? "file" : "etcd", config);
    if (store.ok()) {
      MeetingPlace place;
      place.address = is_file ? rendezvous.path : EndpointAddress(rendezvous);
      place.store = OfJob(rendezvous, *std::move(store));
      return place;
    }
    if (!attempt.Expired() || deadline.Expired() || cancelled()) return store.status();
  }
}

absl::StatusOr<MeetingPlace> ConnectTo(const MeetingPlaceOptions& options,
                                       const std::string& address, absl::Duration patience) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) {
    return NetworkError(absl::StrCat("'", address, "' is no address of a store"));
  }
  MeetingPlace place;
  place.address = address;
  SYNCLINE_ASSIGN_OR_RETURN(auto store, Connect(options, HostOf(address), port, patience));
  place.store = OfJob(options.rendezvous, std::move(store));
  return place;
}

absl::Status OpenAtNode(Store& store, const Round& last) {
  SYNCLINE_ASSIGN_OR_RETURN(const bool is_open, store.Check({std::string(kOpen)}));
  if (is_open) return absl::OkStatus();  // It was lost for a moment only.
  // What is left of the last time would be taken for news.
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> old, store.Keys(""));
  for (const std::string& key : old) SYNCLINE_RETURN_IF_ERROR(store.Delete(key).status());
  Announcement round;
  round.round = last;
  Announcement over;
  over.kind = Announcement::Kind::kOver;
  over.over = last.number;
  over.reason = "the node that held the rendezvous is lost";
  return store.MultiSet({absl::StrCat(kNotices, 1), absl::StrCat(kNotices, 2), std::string(kOpen)},
                        {Serialize(round), Serialize(over), "yes"});
}

void CloseAtNode(Store& store) { store.Delete(std::string(kOpen)).status().IgnoreError(); }

absl::StatusOr<bool> IsPlaceOf(Store& store, const Round& round) {
  for (const NodeIdentity& member : round.members) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_there, store.Check({absl::StrCat(kNodes, member.id)}));
    if (is_there) return true;
  }
  return false;
}

absl::Status AwaitOpening(Store& store, absl::Duration patience) {
  return store.Wait({std::string(kOpen)}, patience);
}

absl::Status RedirectTo(Store& store, const std::string& address, int round) {
  SYNCLINE_ASSIGN_OR_RETURN(const auto nodes, store.Keys(kNodes));
  if (nodes.empty()) return absl::OkStatus();
  Announcement moved;
  moved.kind = Announcement::Kind::kMoved;
  moved.address = address;
  for (int number = 1;; ++number) {
    SYNCLINE_ASSIGN_OR_RETURN(
        const auto result, store.CompareSet(absl::StrCat(kNotices, number), "", Serialize(moved)));
    if (result.swapped) return absl::OkStatus();
    SYNCLINE_ASSIGN_OR_RETURN(const Announcement there, ParseAnnouncement(result.value));
    const bool known = there.kind == Announcement::Kind::kMoved && there.address == address;
    if (known || there.round.number > round) return absl::OkStatus();
  }
}

}  // namespace syncline
