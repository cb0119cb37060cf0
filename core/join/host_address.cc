#include "core/join/host_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "core/base/env.h"
#include "core/base/interfaces.h"
#include "syncline/error_origin.h"
#include "syncline/interrupt.h"
#include "syncline/log.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

constexpr absl::string_view kLoopback = "127.0.0.1";

// In the store, set by each rank: empty if the rank has an address, otherwise why it has none.
std::string ErrorKey(int rank) { return absl::StrCat("error/", rank); }

// The hosts towards which an interface is looked for, the best first. One peer is enough: each name
// that cannot be resolved may take seconds.
std::vector<std::string> TargetHosts(const std::vector<Peer>& peers, const Peer& self,
                                     absl::string_view store_host) {
  std::vector<std::string> targets;
  auto add = [&targets](absl::string_view host) {
    if (host.empty() || std::count(targets.begin(), targets.end(), host) != 0) return;
    targets.emplace_back(host);
  };
  add(store_host);
  add(self.host);
  const auto other = std::find_if(peers.begin(), peers.end(), [&self](const Peer& peer) {
    return peer.identity != self.identity && peer.host != self.host;
  });
  if (other != peers.end()) add(other->host);
  return targets;
}

bool AreOnOneHost(const std::vector<Peer>& peers) {
  return std::all_of(peers.begin(), peers.end(),
                     [&](const Peer& peer) { return peer.identity == peers[0].identity; });
}

// The variable that counts, and what it says.
std::optional<std::pair<absl::string_view, std::string>> InterfaceChoice() {
  for (const absl::string_view variable : kInterfaceVariables) {
    std::optional<std::string> choice = base::GetEnv(variable);
    if (choice.has_value()) return std::pair(variable, *std::move(choice));
  }
  return std::nullopt;
}

// Of several interfaces, those that are there may do; but a name that is mistyped costs one.
void WarnOfAbsent(absl::string_view variable, absl::string_view choice,
                  absl::Span<const base::InterfaceAddress> interfaces) {
  static std::atomic<bool> has_warned{false};
  const std::vector<std::string> absent = base::AbsentInterfaces(choice, interfaces);
  if (absent.empty() || has_warned.exchange(true)) return;
  Log(LogLevel::kWarning,
      absl::StrCat(variable, " is '", choice, "', and this host has no interface ",
                   absl::StrJoin(absent, ", "), " that is up: only the others are used"));
}

void DropLoopback(std::vector<std::string>& addresses) {
  addresses.erase(std::remove_if(addresses.begin(), addresses.end(),
                                 [](const std::string& it) { return IsLoopbackAddress(it); }),
                  addresses.end());
}

absl::StatusOr<std::string> Search(const std::vector<Peer>& peers, const Peer& self,
                                   absl::string_view store_host) {
  if (std::optional<std::string> given = base::GetEnv(kHostAddressVariable)) {
    auto address = base::FirstAddress(*given);
    if (!address.ok()) return Annotate(address.status(), kHostAddressVariable);
    if (!IsLoopbackAddress(*address)) return address;
    return NetworkError(absl::StrCat(kHostAddressVariable, " is '", *given, "', which other hosts ",
                                     "do not reach: set it to an address that they reach"));
  }
  SYNCLINE_ASSIGN_OR_RETURN(auto chosen, ChosenInterfaceAddresses());
  if (!chosen.empty()) {
    const std::string first = chosen.front();
    DropLoopback(chosen);
    if (!chosen.empty()) return chosen.front();
    const auto choice = InterfaceChoice();
    return NetworkError(absl::StrCat(choice->first, " is '", choice->second, "', which is ", first,
                                     ": other hosts do not reach that"));
  }
  std::vector<std::string> tried;
  for (const std::string& target : TargetHosts(peers, self, store_host)) {
    const auto address = base::AddressTowards(target);
    if (address.ok() && !IsLoopbackAddress(*address)) return address;
    tried.push_back(address.ok() ? absl::StrCat("towards '", target, "' it is ", *address)
                                 : std::string(address.status().message()));
  }
  return NetworkError(absl::StrCat(
      "the ranks are on several hosts, and no address was found under which the others reach this "
      "one (",
      absl::StrJoin(tried, "; "), "): set ", kHostAddressVariable,
      " there to one of its addresses that they reach"));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ChosenInterfaceAddresses() {
  const auto choice = InterfaceChoice();
  if (!choice.has_value()) return std::vector<std::string>();
  SYNCLINE_ASSIGN_OR_RETURN(const auto interfaces, base::InterfaceAddresses());
  auto addresses = base::ChooseAddresses(choice->second, interfaces);
  if (!addresses.ok()) {
    return Annotate(addresses.status(), absl::StrCat(choice->first, " is '", choice->second, "'"));
  }
  WarnOfAbsent(choice->first, choice->second, interfaces);
  return addresses;
}

std::vector<std::string> MoreAddresses(absl::string_view address) {
  auto chosen = ChosenInterfaceAddresses();
  if (!chosen.ok()) return {};
  DropLoopback(*chosen);
  if (chosen->empty() || chosen->front() != address) return {};
  chosen->erase(chosen->begin());
  return *std::move(chosen);
}

absl::StatusOr<std::string> HostAddress(Store& store, const std::vector<Peer>& peers, int rank,
                                        absl::string_view store_host, const Deadline& deadline) {
  const Peer& self = peers[rank];
  if (AreOnOneHost(peers)) return std::string(kLoopback);
  // A rank that has no address still takes part, so that all ranks fail with its reason and not
  // with a timeout of the group's connections.
  const auto address = Search(peers, self, store_host);
  SYNCLINE_RETURN_IF_ERROR(
      store.Set(ErrorKey(rank), address.ok() ? "" : address.status().message()));
  std::vector<std::string> keys;
  for (size_t r = 0; r < peers.size(); ++r) keys.push_back(ErrorKey(r));
  const auto errors = store.MultiGet(keys, deadline.Remaining());
  if (IsInterrupted(errors.status())) {  // The others wait for the same ranks, and then hear of it.
    const Uninterruptible telling;
    store.Set(ErrorKey(rank), errors.status().message()).IgnoreError();
  }
  SYNCLINE_RETURN_IF_ERROR(errors.status());
  for (size_t r = 0; r < peers.size(); ++r) {
    if ((*errors)[r].empty()) continue;
    const absl::Status error =
        NetworkError(absl::StrCat("rank ", r, " (", peers[r].ToString(), "): ", (*errors)[r]));
    return WithRanks(error, {static_cast<int>(r)});
  }
  return address;
}

absl::StatusOr<std::string> AddressOfThisHost(const std::vector<Peer>& peers, int rank,
                                              absl::string_view store_host) {
  if (AreOnOneHost(peers)) return std::string(kLoopback);
  absl::StatusOr<std::string> found = Search(peers, peers[rank], store_host);
  if (found.ok() || base::GetEnv(kHostAddressVariable).has_value()) return found;
  if (InterfaceChoice().has_value()) return found;
  absl::StatusOr<std::string> by_default = base::AddressOfDefaultInterface();
  return by_default.ok() ? by_default : found;
}

bool IsLoopbackAddress(absl::string_view address) {
  const std::string text(address.substr(0, address.find('%')));  // Without an IPv6 scope.
  in_addr v4 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    const uint32_t bits = ntohl(v4.s_addr);
    return bits >> 24 == 127 || bits == INADDR_ANY;
  }
  in6_addr v6 = {};
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 &&
         (IN6_IS_ADDR_LOOPBACK(&v6) || IN6_IS_ADDR_UNSPECIFIED(&v6));
}

std::string HostOf(absl::string_view host_and_port) {
  const size_t colon = host_and_port.rfind(':');
  if (colon == absl::string_view::npos) return "";
  absl::string_view host = host_and_port.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return std::string(host);
}

}  // namespace syncline::join
