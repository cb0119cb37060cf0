#include "store/tcp/handshake.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/hmac.h"
#include "syncline/status.h"

namespace syncline::tcp_store {
namespace {

using Answer = ServerHandshake::Answer;

static_assert(kHelloBytes == kHandshakeMagic.size() + 1 + kNonceBytes + base::kHmacBytes);
static_assert(kChallengeBytes == kHandshakeMagic.size() + 2 + kNonceBytes + base::kHmacBytes);
static_assert(kResponseBytes == base::kHmacBytes);

// "o", "s" or "c".
absl::string_view Letter(tls::Mode mode) { return tls::ModeName(mode).substr(0, 1); }

absl::string_view NameOfLetter(absl::string_view letter) {
  for (const tls::Mode mode : {tls::Mode::kOff, tls::Mode::kSecret, tls::Mode::kCertificates}) {
    if (letter == Letter(mode)) return tls::ModeName(mode);
  }
  return "of another version";
}

std::string Tag(absl::string_view secret, absl::string_view mode, absl::string_view client_nonce) {
  return base::HmacSha256(secret, absl::StrCat("hello", mode, client_nonce));
}

std::string Proof(absl::string_view party, absl::string_view secret, tls::Mode mode,
                  absl::string_view server_nonce, absl::string_view client_nonce) {
  return base::HmacSha256(secret, absl::StrCat(party, Letter(mode), server_nonce, client_nonce));
}

absl::Status NotAStore() {
  return NetworkError("what listens there is not a tcp store; check host and port");
}

absl::Status SecretsDiffer(absl::string_view why) {
  return NetworkError(absl::StrCat("the job secret does not match the server's (", why,
                                   "); SYNCLINE_SECRET_FILE must name the job's secret file in ",
                                   "every process, the server's included"));
}

}  // namespace

ClientHandshake::ClientHandshake(std::string secret, tls::Mode mode)
    : secret_(std::move(secret)), mode_(mode), nonce_(base::RandomBytes(kNonceBytes)) {}

std::string ClientHandshake::Hello() const {
  return absl::StrCat(kHandshakeMagic, Letter(mode_), nonce_, Tag(secret_, Letter(mode_), nonce_));
}

absl::StatusOr<std::string> ClientHandshake::Respond(absl::string_view challenge) const {
  if (challenge.size() != kChallengeBytes || !absl::StartsWith(challenge, kHandshakeMagic)) {
    return NotAStore();
  }
  challenge.remove_prefix(kHandshakeMagic.size());
  const auto answer = static_cast<Answer>(challenge[0]);
  const absl::string_view server_mode = challenge.substr(1, 1);
  const absl::string_view server_nonce = challenge.substr(2, kNonceBytes);
  const absl::string_view proof = challenge.substr(2 + kNonceBytes);
  if (answer == Answer::kRefused) {
    return SecretsDiffer("its job secret is missing or does not match");
  }
  // Before the proof: whoever lies here gains nothing but that this process gives up.
  if (answer == Answer::kOtherMode || server_mode != Letter(mode_)) {
    return NetworkError(absl::StrCat("SYNCLINE_TLS is ", tls::ModeName(mode_),
                                     " in this process and ", NameOfLetter(server_mode),
                                     " where the store is served; it must be the same in every "
                                     "process of the job"));
  }
  if (secret_.empty()) {
    if (answer == Answer::kOpen) return std::string();
    return SecretsDiffer("it has a secret, this process has none");
  }
  if (answer == Answer::kOpen) return SecretsDiffer("it has no secret, this process has one");
  if (answer != Answer::kRespond) return NotAStore();
  if (!base::SameBytes(proof, Proof("server", secret_, mode_, server_nonce, nonce_))) {
    return SecretsDiffer("it did not prove that it knows the secret");
  }
  return Proof("client", secret_, mode_, server_nonce, nonce_);
}

bool ServerHandshake::CanBeHello(absl::string_view bytes) {
  const size_t size = std::min(bytes.size(), kHandshakeMagic.size());
  return bytes.substr(0, size) == kHandshakeMagic.substr(0, size);
}

ServerHandshake::Challenge ServerHandshake::AnswerHello(absl::string_view secret,
                                                        absl::string_view hello, tls::Mode mode) {
  const absl::string_view client_mode = hello.substr(kHandshakeMagic.size(), 1);
  const absl::string_view client_nonce = hello.substr(kHandshakeMagic.size() + 1, kNonceBytes);
  const absl::string_view tag = hello.substr(kHandshakeMagic.size() + 1 + kNonceBytes);
  Answer answer = Answer::kOpen;
  std::string nonce(kNonceBytes, '\0');
  std::string proof(kProofBytes, '\0');
  if (!secret.empty()) {
    answer = Answer::kRefused;
    if (CanBeHello(hello) && base::SameBytes(tag, Tag(secret, client_mode, client_nonce))) {
      answer = Answer::kRespond;
      nonce = base::RandomBytes(kNonceBytes);
      proof = Proof("server", secret, mode, nonce, client_nonce);
      expected_ = Proof("client", secret, mode, nonce, client_nonce);
    }
  }
  if (answer != Answer::kRefused && client_mode != Letter(mode)) {
    answer = Answer::kOtherMode;
    expected_.clear();
  }
  return {answer, absl::StrCat(kHandshakeMagic, std::string(1, static_cast<char>(answer)),
                               Letter(mode), nonce, proof)};
}

bool ServerHandshake::Accepts(absl::string_view response) const {
  return !expected_.empty() && base::SameBytes(response, expected_);
}

}  // namespace syncline::tcp_store
