// What a stranger sends to a rank that listens or connects, and what somebody between two ranks
// makes of their messages.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "backends/common/rank_handshake.h"
#include "core/testing/fuzz/fuzz.h"

namespace syncline::fuzz {
namespace {

using backends::CallerHandshake;
using backends::ChallengeMessage;
using backends::HelloMessage;
using backends::ListenerHandshake;
using backends::ProofMessage;
using Step = ListenerHandshake::Step;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

template <typename Message>
std::string BytesOf(const Message& message) {
  return std::string(reinterpret_cast<const char*>(&message), sizeof(message));
}

// Gives `bytes` in pieces, until they end or the listener has decided or has a challenge.
Step Feed(ListenerHandshake& listener, absl::string_view bytes, Reader& reader) {
  Step step = Step::kIncomplete;
  while (!bytes.empty() && step == Step::kIncomplete) {
    const absl::Span<char> room = listener.room();
    const size_t size = std::min({bytes.size(), room.size(), size_t{1} + reader.Byte()});
    std::memcpy(room.data(), bytes.data(), size);
    bytes.remove_prefix(size);
    step = listener.Receive(size, kSecret);
  }
  return step;
}

void ListenToStranger(Reader& reader) {
  ListenerHandshake listener;
  Step step = Step::kIncomplete;
  while (!reader.is_empty() && (step == Step::kIncomplete || step == Step::kChallenge)) {
    const absl::string_view bytes = reader.Bytes(1 + reader.Byte());
    const absl::Span<char> room = listener.room();
    const size_t size = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), size);
    step = listener.Receive(size, kSecret);
  }
  Require(step != Step::kProved, "a stranger proves nothing");
}

void ConnectToStranger(Reader& reader) {
  ChallengeMessage challenge = {};
  const absl::string_view bytes = reader.Bytes(sizeof(challenge));
  std::memcpy(&challenge, bytes.data(), bytes.size());
  Require(!CallerHandshake(kSecret, 1).Answer(challenge).ok(), "a stranger proves nothing");
}

void PassOn(Reader& reader) {
  const CallerHandshake caller(kSecret, reader.Byte());
  ListenerHandshake listener;
  std::string hello = BytesOf(caller.hello());
  const std::string untouched = hello;
  const bool other_hello = Tamper(reader, hello);
  // The tag is not part of what is proved.
  const size_t tagged = offsetof(HelloMessage, tag);
  const bool other_tag = hello.substr(tagged) != untouched.substr(tagged);
  const bool other_caller = hello.substr(0, tagged) != untouched.substr(0, tagged);
  if (Feed(listener, hello, reader) != Step::kChallenge) {
    Require(other_caller, "a caller's hello is understood");
    return;
  }
  Require(listener.has_greeted() == !other_hello, "the tag is that of the hello");
  Require(other_tag || other_caller || listener.rank() == caller.hello().rank, "the rank is kept");
  std::string text = BytesOf(listener.challenge());
  const bool other_challenge = Tamper(reader, text);
  ChallengeMessage challenge;
  std::memcpy(&challenge, text.data(), sizeof(challenge));
  const auto answer = caller.Answer(challenge);
  Require(answer.ok() == !(other_caller || other_challenge), "the listener's proof is checked");
  if (!answer.ok()) return;
  std::string proof = BytesOf(*answer);
  const bool other_proof = Tamper(reader, proof);
  const Step step = Feed(listener, proof, reader);
  Require(step == (other_proof ? Step::kRefused : Step::kProved), "the caller's proof is checked");
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
  const CallerHandshake caller(kSecret, 3);
  const std::string hello = BytesOf(caller.hello());
  const std::string proof(sizeof(ProofMessage), 'p');
  const auto piece = [](const std::string& bytes) {
    return std::string(1, static_cast<char>(bytes.size() - 1)) + bytes;
  };
  return {std::string(1, '\0') + piece(hello) + piece(proof),
          std::string(1, '\0') + piece(hello.substr(0, 10)) + piece(hello.substr(10) + proof),
          std::string(1, '\0') + piece("GET / HTTP/1.1\r\n\r\n"),
          "\1" + std::string(sizeof(ChallengeMessage), 'c'),
          // Untouched, and with a change of each message.
          std::string("\2\3\0\xff\0\xff\0\xff", 8), std::string("\2\3\1\5\0\1\0\0", 8),
          std::string("\2\3\0\xff\1\0\0\1\0", 9), std::string("\2\3\0\xff\0\1\0\0\1", 9)};
}

}  // namespace syncline::fuzz
