// What a stranger sends to a tcp store's server or client, and what somebody between the two makes
// of their messages.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/testing/fuzz/fuzz.h"
#include "core/tls/settings.h"
#include "store/tcp/handshake.h"

namespace syncline::fuzz {
namespace {

using tcp_store::ClientHandshake;
using tcp_store::kChallengeBytes;
using tcp_store::kHelloBytes;
using tcp_store::kResponseBytes;
using tcp_store::ServerHandshake;
using Answer = ServerHandshake::Answer;

constexpr tls::Mode kModes[] = {tls::Mode::kOff, tls::Mode::kSecret, tls::Mode::kCertificates};
constexpr char kSecret[] = "the job's secret";

std::string Padded(absl::string_view bytes, size_t size) {
  std::string padded(bytes);
  padded.resize(size);
  return padded;
}

void ListenToStranger(Reader& reader) {
  const tls::Mode mode = kModes[reader.Below(3)];
  ServerHandshake server;
  ServerHandshake::CanBeHello(reader.rest());
  const std::string hello = Padded(reader.Bytes(kHelloBytes), kHelloBytes);
  const auto challenge = server.AnswerHello(kSecret, hello, mode);
  Require(challenge.message.size() == kChallengeBytes, "a challenge has its size");
  Require(challenge.answer == Answer::kRefused, "a stranger greets nobody");
  Require(!server.Accepts(Padded(reader.Bytes(kResponseBytes), kResponseBytes)),
          "a stranger proves nothing");
  // Without a secret everyone is let in whose mode is the same.
  const auto open = ServerHandshake().AnswerHello("", hello, mode);
  Require(open.answer == Answer::kOpen || open.answer == Answer::kOtherMode, "no secret is needed");
}

void ConnectToStranger(Reader& reader) {
  const tls::Mode mode = kModes[reader.Below(3)];
  const std::string secret = reader.Below(2) == 0 ? "" : kSecret;
  const auto response = ClientHandshake(secret, mode).Respond(reader.rest());
  Require(!response.ok() || (secret.empty() && response->empty()), "a stranger proves nothing");
}

void PassOn(Reader& reader) {
  const tls::Mode client_mode = kModes[reader.Below(3)], server_mode = kModes[reader.Below(3)];
  const std::string server_secret = reader.Below(4) == 0 ? "another" : kSecret;
  const ClientHandshake client(kSecret, client_mode);
  ServerHandshake server;
  std::string hello = client.Hello();
  const bool other_hello = Tamper(reader, hello);
  auto challenge = server.AnswerHello(server_secret, hello, server_mode);
  const bool is_greeted = !other_hello && server_secret == kSecret;
  const bool is_known = is_greeted && client_mode == server_mode;
  Require((challenge.answer != Answer::kRefused) == is_greeted, "the tag is that of the hello");
  Require((challenge.answer == Answer::kRespond) == is_known, "the modes are compared");
  const bool other_challenge = Tamper(reader, challenge.message);
  const auto response = client.Respond(challenge.message);
  Require(response.ok() == (is_known && !other_challenge), "the server's proof is checked");
  std::string proof = response.ok() ? *response : std::string(kResponseBytes, '\0');
  const bool other_proof = Tamper(reader, proof);
  Require(server.Accepts(proof) == (response.ok() && !other_proof), "the client's is checked");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  switch (reader.Below(3)) {
    case 0:
      return ListenToStranger(reader);
    case 1:
      return ConnectToStranger(reader);
    default:
      return PassOn(reader);
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const char mode : {'\0', '\1', '\2'}) {
    const ClientHandshake client(kSecret, kModes[static_cast<int>(mode)]);
    const ClientHandshake stranger("another secret", kModes[static_cast<int>(mode)]);
    const std::string hello = client.Hello();
    const std::string choice = {mode};
    seeds.push_back(
        absl::StrCat(std::string(1, '\0'), choice, stranger.Hello(), std::string(32, 'r')));
    for (const char* secret : {"", kSecret}) {
      ServerHandshake server;
      const auto challenge = server.AnswerHello(secret, hello, kModes[static_cast<int>(mode)]);
      for (const char knows : {'\0', '\1'}) {
        seeds.push_back(absl::StrCat("\1", choice, std::string(1, knows), challenge.message));
      }
    }
    // Untouched; a server with another secret.
    seeds.push_back(absl::StrCat("\2", choice, choice, "\1", std::string(8, '\0')));
    seeds.push_back(absl::StrCat("\2", choice, choice, std::string(9, '\0')));
  }
  // A challenge whose answer is none that a client knows.
  seeds.push_back(std::string("\2\0\0\1\0\1\x08\0\x01", 9));
  return seeds;
}

}  // namespace syncline::fuzz
