#include "backends/common/rank_handshake.h"

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/hmac.h"
#include "syncline/check.h"
#include "syncline/status.h"

namespace syncline::backends {
namespace {

constexpr uint32_t kMagic = 0x53594832;  // "SYH2".

// Who proves: otherwise a listener could be had to prove what a caller must.
constexpr char kListener[] = "listener", kCaller[] = "caller";

template <size_t kSize>
void CopyTo(char (&to)[kSize], absl::string_view from) {
  SYNCLINE_DCHECK(from.size() == kSize);
  std::memcpy(to, from.data(), kSize);
}

template <size_t kSize>
absl::string_view Bytes(const char (&bytes)[kSize]) {
  return absl::string_view(bytes, kSize);
}

std::string ProofOf(absl::string_view who, absl::string_view secret, const HelloMessage& hello,
                    const char (&listener_nonce)[16]) {
  return base::HmacSha256(
      secret, absl::StrCat(who, " ", Bytes(hello.nonce), Bytes(listener_nonce), hello.rank));
}

std::string TagOf(absl::string_view secret, const HelloMessage& hello) {
  return base::HmacSha256(secret, absl::StrCat("hello ", Bytes(hello.nonce), hello.rank));
}

// SameBytes takes equally long whatever differs, so a stranger learns nothing from the time.
bool Proves(const char (&proof)[32], absl::string_view who, absl::string_view secret,
            const HelloMessage& hello, const char (&listener_nonce)[16]) {
  return base::SameBytes(Bytes(proof), ProofOf(who, secret, hello, listener_nonce));
}

// What is missing of `message`.
template <typename Message>
absl::Span<char> Missing(Message& message, size_t received) {
  return absl::MakeSpan(reinterpret_cast<char*>(&message) + received, sizeof(message) - received);
}

}  // namespace

std::string NewHelloSecret() {
  return absl::BytesToHexString(base::RandomBytes(kHelloSecretSize / 2));
}

std::string TlsPurpose(absl::string_view secret, int rank) {
  return absl::StrCat(secret, " ", rank);
}

CallerHandshake::CallerHandshake(absl::string_view secret, int rank)
    : secret_(secret), hello_{kMagic, rank, {}, {}} {
  SYNCLINE_DCHECK(secret.size() == kHelloSecretSize);
  CopyTo(hello_.nonce, base::RandomBytes(sizeof(hello_.nonce)));
  CopyTo(hello_.tag, TagOf(secret_, hello_));
}

absl::StatusOr<ProofMessage> CallerHandshake::Answer(const ChallengeMessage& challenge) const {
  if (!Proves(challenge.proof, kListener, secret_, hello_, challenge.nonce)) {
    return NetworkError("the other side does not know the secret of the job");
  }
  ProofMessage proof;
  CopyTo(proof.proof, ProofOf(kCaller, secret_, hello_, challenge.nonce));
  return proof;
}

absl::Span<char> ListenerHandshake::room() {
  return has_hello_ ? Missing(proof_, received_) : Missing(hello_, received_);
}

ListenerHandshake::Step ListenerHandshake::Receive(size_t count, absl::string_view secret) {
  SYNCLINE_DCHECK(count <= room().size());
  received_ += count;
  if (!room().empty()) return Step::kIncomplete;
  if (has_hello_) {
    return Proves(proof_.proof, kCaller, secret, hello_, challenge_.nonce) ? Step::kProved
                                                                           : Step::kRefused;
  }
  if (hello_.magic != kMagic) return Step::kRefused;
  has_hello_ = true;
  received_ = 0;
  has_greeted_ = base::SameBytes(Bytes(hello_.tag), TagOf(secret, hello_));
  CopyTo(challenge_.nonce, base::RandomBytes(sizeof(challenge_.nonce)));
  CopyTo(challenge_.proof, ProofOf(kListener, secret, hello_, challenge_.nonce));
  return Step::kChallenge;
}

}  // namespace syncline::backends
