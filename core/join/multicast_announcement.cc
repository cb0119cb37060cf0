#include "core/join/multicast_announcement.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/hmac.h"
#include "core/tls/sealed_text.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

// A datagram is kMagic, one field for each member, and the HMAC of all before it (empty without a
// secret). A field is its length, ':', its bytes.
constexpr absl::string_view kMagic = "syncline meeting 1;";
constexpr size_t kFields = 7;
// An encrypted datagram is this, and what tls::SealText makes of a datagram as above.
constexpr absl::string_view kEncryptedMagic = "syncline meeting 1, encrypted;";

void AppendField(absl::string_view value, std::string& out) {
  absl::StrAppend(&out, value.size(), ":", value);
}

bool TakeField(absl::string_view& in, std::string& value) {
  const size_t colon = in.find(':');
  uint64_t size = 0;
  if (colon > 4 || !absl::SimpleAtoi(in.substr(0, colon), &size)) return false;
  in.remove_prefix(colon + 1);
  if (size > in.size()) return false;
  value = std::string(in.substr(0, size));
  in.remove_prefix(size);
  return true;
}

absl::Status Malformed() { return NetworkError("it is not an announcement of this version"); }

absl::Status CheckProof(absl::string_view body, absl::string_view mac, absl::string_view secret) {
  if (secret.empty()) {
    if (mac.empty()) return absl::OkStatus();
    return NetworkError(
        "it proves a job secret, which this process does not have; set SYNCLINE_SECRET_FILE here");
  }
  if (base::SameBytes(mac, base::HmacSha256(secret, body))) return absl::OkStatus();
  return NetworkError(
      "it does not prove the job's secret; SYNCLINE_SECRET_FILE must name the same secret "
      "everywhere");
}

}  // namespace

std::string MulticastAnnouncement::Seal(absl::string_view secret, bool is_encrypted) const {
  std::string datagram(kMagic);
  AppendField(job, datagram);
  AppendField(absl::StrCat(size), datagram);
  AppendField(absl::StrCat(rank), datagram);
  AppendField(id, datagram);
  AppendField(view, datagram);
  AppendField(peer.Serialize(), datagram);
  AppendField(store, datagram);
  AppendField(secret.empty() ? std::string() : base::HmacSha256(secret, datagram), datagram);
  if (is_encrypted) return absl::StrCat(kEncryptedMagic, tls::SealText(secret, datagram));
  return datagram;
}

absl::StatusOr<MulticastAnnouncement> MulticastAnnouncement::Open(absl::string_view datagram,
                                                                  absl::string_view secret,
                                                                  bool is_encrypted) {
  if (datagram.size() > kMaxAnnouncementBytes) return Malformed();
  std::string decrypted;
  if (absl::ConsumePrefix(&datagram, kEncryptedMagic) != is_encrypted) {
    return NetworkError(absl::StrCat("it is ", is_encrypted ? "not " : "",
                                     "encrypted; SYNCLINE_TLS must be the same in every process of "
                                     "the job"));
  }
  if (is_encrypted) {
    std::optional<std::string> opened = tls::OpenSealedText(secret, datagram);
    if (!opened.has_value()) {
      return NetworkError(
          "it is encrypted with another secret; SYNCLINE_SECRET_FILE must name the same secret "
          "everywhere");
    }
    decrypted = *std::move(opened);
    datagram = decrypted;
  }
  absl::string_view rest = datagram;
  if (!absl::ConsumePrefix(&rest, kMagic)) return Malformed();
  std::vector<std::string> fields(kFields);
  for (std::string& field : fields) {
    if (!TakeField(rest, field)) return Malformed();
  }
  // The proof comes first: nothing of a datagram that fails it is used.
  const absl::string_view body = datagram.substr(0, datagram.size() - rest.size());
  std::string mac;
  if (!TakeField(rest, mac) || !rest.empty()) return Malformed();
  SYNCLINE_RETURN_IF_ERROR(CheckProof(body, mac, secret));

  MulticastAnnouncement a;
  a.job = fields[0];
  a.id = fields[3];
  a.view = fields[4];
  a.store = fields[6];
  absl::StatusOr<Peer> peer = Peer::Parse(fields[5]);
  if (!absl::SimpleAtoi(fields[1], &a.size) || !absl::SimpleAtoi(fields[2], &a.rank) ||
      a.size < 1 || a.rank < -1 || a.id.size() != kProcessIdBytes ||
      a.view.size() != kProcessIdBytes || a.job.size() > kMaxJobName || !peer.ok()) {
    return Malformed();
  }
  a.peer = *std::move(peer);
  return a;
}

}  // namespace syncline::join
