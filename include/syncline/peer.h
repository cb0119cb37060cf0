// Peer: one process of a job, and a check of whether the others still run.
#ifndef SYNCLINE_PEER_H_
#define SYNCLINE_PEER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace syncline {

// One process of a job, as its peers know it.
struct Peer {
  std::string host;      // Its host's name, for people.
  std::string identity;  // Equal for two processes if, and only if, they share kernel and network.
  int pid = 0;
  std::string pid_namespace;  // That in which `pid` is; pids of another one mean nothing here.
  int64_t started = 0;  // Kernel ticks since boot: tells a process from a later one of its pid.

  // "host b, pid 81".
  std::string ToString() const;

  // To and from one line of text, to be exchanged through a store.
  std::string Serialize() const;
  static absl::StatusOr<Peer> Parse(absl::string_view text);
};

// A function that a wait for other ranks calls about once a second; its first error ends the wait.
// Empty where nothing is known of the other ranks.
using PeerCheck = std::function<absl::Status()>;

}  // namespace syncline

#endif  // SYNCLINE_PEER_H_
