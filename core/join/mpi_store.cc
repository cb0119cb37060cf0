#include "core/join/mpi_store.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/base/env.h"
#include "core/base/hash.h"
#include "core/base/host.h"
#include "core/join/host_address.h"
#include "core/join/mpi_processes.h"
#include "core/tls/settings.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using Role = StoreConfig::Role;

// Of a process's Peer, as a line of text, and of process 0's announcement. Messages of MPI have one
// size on all processes, so the rest is zeros.
constexpr size_t kPeerBytes = 512;
constexpr size_t kAnnouncementBytes = 2048;

std::string Pad(std::string text, size_t size) {
  text.resize(size);
  return text;
}

std::string Unpad(absl::string_view text) { return std::string(text.substr(0, text.find('\0'))); }

// What a process says of itself.
struct Member {
  Peer peer;
  // Of its secret: ranks with different ones would wait for each other until the deadline. It tells
  // no more than MPI does, over which a random secret goes as it is.
  std::string secret_hash;
};

// "HASH PEER".
std::string Serialize(const Member& member) {
  return absl::StrCat(member.secret_hash, " ", member.peer.Serialize());
}

absl::StatusOr<Member> ParseMember(absl::string_view text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  SYNCLINE_ASSIGN_OR_RETURN(Peer peer, Peer::Parse(parts.second));
  return Member{std::move(peer), parts.first};
}

absl::StatusOr<Member> DescribeSelf() {
  SYNCLINE_ASSIGN_OR_RETURN(Peer peer, base::IdentifyThisProcess());
  SYNCLINE_ASSIGN_OR_RETURN(const std::string secret, base::JobSecret());
  return Member{std::move(peer), secret.empty() ? "none" : absl::StrCat(base::Fnv1a64(secret))};
}

absl::Status CheckSameSecret(const std::vector<Member>& members) {
  for (size_t rank = 1; rank < members.size(); ++rank) {
    if (members[rank].secret_hash == members[0].secret_hash) continue;
    return WithRanks(
        ArgumentError(absl::StrCat("rank 0 (", members[0].peer.ToString(), ") and rank ", rank,
                                   " (", members[rank].peer.ToString(),
                                   ") have different secrets, or one of them has none: ",
                                   "SYNCLINE_SECRET_FILE must name the same secret on all ranks")),
        {0, static_cast<int>(rank)});
  }
  return absl::OkStatus();
}

// How the part of a process begins that cannot join, and goes on with the reason.
constexpr absl::string_view kDefect = "!";

absl::Status CheckRanks(const MpiProcesses& processes, const MpiMeeting& meeting) {
  const auto differs = [](absl::string_view name, int given, int said) {
    return ArgumentError(
        absl::StrCat(name, " is ", given, ", but MPI says ", said, ": leave it to MPI"));
  };
  if (meeting.rank >= 0 && meeting.rank != processes.rank()) {
    return differs("rank", meeting.rank, processes.rank());
  }
  if (meeting.size >= 0 && meeting.size != processes.size()) {
    return differs("world_size", meeting.size, processes.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Peer>> GatherPeers(MpiProcesses& processes, const MpiMeeting& meeting,
                                              const Deadline& deadline) {
  // A process that cannot join takes part all the same, so that all hear of it.
  absl::StatusOr<Member> self = DescribeSelf();
  if (absl::Status ranks = CheckRanks(processes, meeting); !ranks.ok()) self = ranks;
  const std::string part =
      self.ok() ? Serialize(*self)
                : absl::StrCat(kDefect, self.status().message()).substr(0, kPeerBytes - 1);
  SYNCLINE_ASSIGN_OR_RETURN(const std::string all,
                            processes.Allgather(Pad(part, kPeerBytes), deadline));
  SYNCLINE_RETURN_IF_ERROR(self.status());
  std::vector<Member> members;
  for (int rank = 0; rank < processes.size(); ++rank) {
    const std::string text = Unpad(absl::string_view(all).substr(rank * kPeerBytes, kPeerBytes));
    if (absl::StartsWith(text, kDefect)) {
      return WithRanks(ArgumentError(absl::StrCat("rank ", rank, " of the MPI job cannot join: ",
                                                  text.substr(kDefect.size()))),
                       {rank});
    }
    absl::StatusOr<Member> member = ParseMember(text);
    if (!member.ok()) {
      return WithRanks(
          BackendError(absl::StrCat("rank ", rank,
                                    " of the MPI job does not say what process it is: do all "
                                    "ranks run the same version of Syncline?")),
          {rank});
    }
    members.push_back(*std::move(member));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckSameSecret(members));
  std::vector<Peer> peers;
  for (Member& member : members) peers.push_back(std::move(member.peer));
  return peers;
}

// 128 bits that nobody guesses, as text.
std::string RandomSecret() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

// For process 0. Fills in what the others need; a secret that they have anyway is not sent.
absl::StatusOr<OpenedStore> Serve(const std::vector<Peer>& peers, StoreConfig& config) {
  SYNCLINE_ASSIGN_OR_RETURN(config.host, AddressOfThisHost(peers, 0, ""));
  SYNCLINE_ASSIGN_OR_RETURN(const std::string job_secret, base::JobSecret());
  if (job_secret.empty()) {
    SYNCLINE_RETURN_IF_ERROR(tls::CheckSecretMayBeWeak());
    config.secret = RandomSecret();
  }
  config.role = Role::kServer;
  SYNCLINE_ASSIGN_OR_RETURN(auto store, StoreRegistry::Make("tcp", config));
  // The system has chosen the port.
  const std::string address = store->address();
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &config.port)) {
    return StoreError(absl::StrCat("the store's address has no port: '", address, "'"));
  }
  return OpenedStore{std::move(store), config.host, Role::kServer};
}

// "ok", host, port and secret, or "error" and a message: a line for each.
std::string Announce(const absl::Status& served, const StoreConfig& config) {
  if (served.ok()) return absl::StrCat("ok\n", config.host, "\n", config.port, "\n", config.secret);
  return absl::StrCat("error\n", served.message().substr(0, kAnnouncementBytes - 100));
}

absl::Status ReadAnnouncement(absl::string_view announcement, StoreConfig& config) {
  const std::vector<std::string> lines = absl::StrSplit(announcement, absl::MaxSplits('\n', 3));
  if (lines.size() == 4 && lines[0] == "ok" && absl::SimpleAtoi(lines[2], &config.port)) {
    config.host = lines[1];
    config.secret = lines[3];
    return absl::OkStatus();
  }
  return WithRanks(NetworkError(absl::StrCat("rank 0 cannot host the store: ",
                                             announcement.substr(announcement.find('\n') + 1))),
                   {0});
}

}  // namespace

absl::StatusOr<OpenedStore> OpenMpiStore(const MpiMeeting& meeting, absl::Duration store_timeout,
                                         const Deadline& deadline) {
  if (!MpiProcessesRegistry::Has("mpi")) {
    return UnsupportedError("this program was built without backend mpi, and so cannot ask MPI");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const std::shared_ptr<MpiProcesses> processes,
                            MpiProcessesRegistry::Make("mpi", meeting.comm, deadline));
  OpenedStore opened;
  StoreConfig config;
  config.timeout = store_timeout;
  if (processes->size() == 1) {
    SYNCLINE_RETURN_IF_ERROR(CheckRanks(*processes, meeting));
    SYNCLINE_ASSIGN_OR_RETURN(opened.store, StoreRegistry::Make("hash", config));
    opened.role = Role::kServer;
  } else {
    SYNCLINE_ASSIGN_OR_RETURN(const std::vector<Peer> peers,
                              GatherPeers(*processes, meeting, deadline));
    absl::Status served;
    std::string announcement;
    if (processes->rank() == 0) {
      absl::StatusOr<OpenedStore> mine = Serve(peers, config);
      served = mine.status();
      if (mine.ok()) opened = *std::move(mine);
      announcement = Announce(served, config);
    }
    announcement.resize(kAnnouncementBytes);
    SYNCLINE_RETURN_IF_ERROR(processes->Bcast(announcement, deadline));
    SYNCLINE_RETURN_IF_ERROR(served);
    if (processes->rank() != 0) {
      SYNCLINE_RETURN_IF_ERROR(ReadAnnouncement(Unpad(announcement), config));
      config.connect_timeout = deadline.Remaining();
      SYNCLINE_ASSIGN_OR_RETURN(opened.store, StoreRegistry::Make("tcp", config));
      opened.host = config.host;
    }
  }
  opened.rank = processes->rank();
  opened.size = processes->size();
  return opened;
}

}  // namespace syncline::join
