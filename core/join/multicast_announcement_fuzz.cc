// What anyone sends to the group of multicast at which processes find each other.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/join/multicast_announcement.h"
#include "core/testing/fuzz/fuzz.h"
#include "core/tls/sealed_text.h"

namespace syncline::fuzz {
namespace {

using join::MulticastAnnouncement;

constexpr char kSecret[] = "the job's secret";

MulticastAnnouncement Example() {
  MulticastAnnouncement example;
  example.job = "job 7";
  example.size = 4;
  example.rank = 2;
  example.id = std::string(join::kProcessIdBytes, 'i');
  example.view = std::string(join::kProcessIdBytes, 'v');
  example.peer.pid = 81;
  example.peer.started = 123456;
  example.peer.pid_namespace = "4026531836";
  example.peer.identity = "0123-4567";
  example.peer.host = "node 3";
  example.store = "10.0.0.3:29500";
  return example;
}

void OpenWithoutSecret(absl::string_view datagram) {
  const auto opened = MulticastAnnouncement::Open(datagram, "");
  if (!opened.ok()) return;
  Require(opened->size >= 1 && opened->rank >= -1, "numbers are checked");
  Require(opened->id.size() == join::kProcessIdBytes, "the sender's id has its size");
  const auto again = MulticastAnnouncement::Open(opened->Seal(""), "");
  Require(again.ok() && again->job == opened->job && again->store == opened->store &&
              again->rank == opened->rank && again->peer.host == opened->peer.host,
          "what is sealed again is the same");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(5)) {
    case 0:
      return OpenWithoutSecret(reader.rest());
    case 1:
      return Require(!MulticastAnnouncement::Open(reader.rest(), kSecret).ok(),
                     "a stranger proves nothing");
    case 2:
      return Require(!MulticastAnnouncement::Open(reader.rest(), kSecret, true).ok(),
                     "a stranger encrypts nothing");
    case 3: {  // What knows the secret and is no announcement.
      const std::string sealed =
          absl::StrCat("syncline meeting 1, encrypted;", tls::SealText(kSecret, reader.rest()));
      return Require(!MulticastAnnouncement::Open(sealed, kSecret, true).ok(),
                     "the proof within is checked too");
    }
    default: {
      const bool is_encrypted = reader.Below(2) == 1;
      std::string datagram = Example().Seal(kSecret, is_encrypted);
      const bool is_other = Tamper(reader, datagram);
      return Require(MulticastAnnouncement::Open(datagram, kSecret, is_encrypted).ok() != is_other,
                     "the proof covers all of it");
    }
  }
}

std::vector<std::string> Seeds() {
  const std::string plain = Example().Seal("");
  return {absl::StrCat(std::string(1, '\0'), plain),
          absl::StrCat("\1", Example().Seal("another secret")),
          absl::StrCat("\2", Example().Seal("another secret", true)), absl::StrCat("\3", plain),
          // Untouched, and with a change.
          std::string("\4\0\0", 3), std::string("\4\1\0", 3), std::string("\4\0\1\x40\0\1", 6),
          std::string("\4\1\1\x40\0\1", 6)};
}

}  // namespace syncline::fuzz
