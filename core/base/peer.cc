#include "syncline/peer.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncline/status.h"

namespace syncline {

std::string Peer::ToString() const { return absl::StrCat("host ", host, ", pid ", pid); }

std::string Peer::Serialize() const {
  return absl::StrCat(pid, " ", started, " ", pid_namespace, " ", identity, " ", host);
}

absl::StatusOr<Peer> Peer::Parse(absl::string_view text) {
  std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 4));
  Peer peer;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &peer.pid) ||
      !absl::SimpleAtoi(fields[1], &peer.started)) {
    return StoreError(absl::StrCat("'", text, "' does not describe a process: do two jobs, or two ",
                                   "versions of Syncline, share a store?"));
  }
  peer.pid_namespace = fields[2];
  peer.identity = fields[3];
  peer.host = fields[4];
  return peer;
}

}  // namespace syncline
