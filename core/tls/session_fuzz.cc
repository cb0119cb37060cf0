// What a stranger sends in place of a TLS handshake, to both ends and in both modes, and what
// somebody between two ends makes of what they send.
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "core/testing/fuzz/fuzz.h"
#include "core/tls/certificates.h"
#include "core/tls/context.h"
#include "core/tls/session.h"
#include "core/tls/settings.h"

namespace syncline::fuzz {
namespace {

// Both modes; the certificates are read once.
tls::Context& ContextOf(tls::Mode mode) {
  static const auto contexts = [] {
    const char* const parent = std::getenv("TEST_TMPDIR");
    std::string folder = absl::StrCat(parent == nullptr ? "/tmp" : parent, "/tls.XXXXXX");
    Require(mkdtemp(&folder[0]) != nullptr, "there is a folder for certificates");
    Require(tls::NewCertificates(folder, {{"localhost"}}).ok(), "certificates can be made");
    tls::Settings secret, certificates;
    secret.mode = tls::Mode::kSecret;
    certificates.mode = tls::Mode::kCertificates;
    certificates.certificate_file = folder + "/" + tls::kCertificateFile;
    certificates.key_file = folder + "/" + tls::kKeyFile;
    certificates.authorities_file = folder + "/" + tls::kAuthoritiesFile;
    // Never destroyed.
    auto* const made = new std::pair<std::shared_ptr<tls::Context>, std::shared_ptr<tls::Context>>(
        tls::Context::Create(secret, "the job's secret").value(),
        tls::Context::Create(certificates, "").value());
    return made;
  }();
  return mode == tls::Mode::kSecret ? *contexts->first : *contexts->second;
}

std::pair<base::UniqueFd, base::UniqueFd> SocketPair() {
  int pair[2] = {-1, -1};
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0,
          "there are descriptors");
  return {base::UniqueFd(pair[0]), base::UniqueFd(pair[1])};
}

std::unique_ptr<tls::Session> NewSession(tls::Mode mode, tls::Session::Role role) {
  tls::Context& context = ContextOf(mode);
  return (role == tls::Session::Role::kClient ? context.Connect("fuzz", "localhost")
                                              : context.Accept("fuzz"))
      .value();
}

std::string ReadAll(int socket) {
  std::string all;
  char bytes[4096];
  ssize_t size;
  while ((size = recv(socket, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0) {
    all.append(bytes, static_cast<size_t>(size));
  }
  return all;
}

void Write(int socket, absl::string_view bytes) {
  static_cast<void>(send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void MeetStranger(Reader& reader) {
  const tls::Mode mode = reader.Below(2) == 0 ? tls::Mode::kSecret : tls::Mode::kCertificates;
  const auto role =
      reader.Below(2) == 0 ? tls::Session::Role::kServer : tls::Session::Role::kClient;
  const auto session = NewSession(mode, role);
  auto [own, stranger] = SocketPair();
  absl::StatusOr<bool> is_complete = session->Handshake(own.get());
  while (is_complete.ok() && !reader.is_empty()) {
    Write(stranger.get(), reader.Text());
    is_complete = session->Handshake(own.get());
    Require(!is_complete.ok() || !*is_complete, "a stranger completes no handshake");
  }
  stranger.reset();
  if (is_complete.ok()) is_complete = session->Handshake(own.get());
  Require(!is_complete.ok(), "the end of the connection is an error");
}

// Both ends, of which each gets what the other has sent, changed at one place of all of it.
void PassOn(Reader& reader) {
  const tls::Mode mode = reader.Below(2) == 0 ? tls::Mode::kSecret : tls::Mode::kCertificates;
  const size_t change_at = reader.Number();
  const char change = static_cast<char>(reader.Byte());
  const std::unique_ptr<tls::Session> sessions[] = {NewSession(mode, tls::Session::Role::kClient),
                                                    NewSession(mode, tls::Session::Role::kServer)};
  std::pair<base::UniqueFd, base::UniqueFd> pairs[] = {SocketPair(), SocketPair()};
  absl::StatusOr<bool> results[] = {false, false};
  size_t passed = 0;
  const auto pass = [&](int from) {
    std::string bytes = ReadAll(pairs[from].second.get());
    if (passed <= change_at && change_at < passed + bytes.size()) {
      bytes[change_at - passed] = static_cast<char>(bytes[change_at - passed] ^ change);
    }
    passed += bytes.size();
    Write(pairs[1 - from].second.get(), bytes);
  };
  const auto is_open = [](const absl::StatusOr<bool>& result) { return result.ok() && !*result; };
  for (int round = 0; round < 4; ++round) {
    for (int end = 0; end < 2; ++end) {
      if (is_open(results[end])) results[end] = sessions[end]->Handshake(pairs[end].first.get());
      pass(end);
    }
  }
  for (int end = 0; end < 2; ++end) {
    if (!results[end].ok() || !*results[end]) continue;
    std::string sent = "what one end has sent", received(2 * sent.size(), '\0');
    const iovec piece = {&sent[0], sent.size()}, room = {&received[0], received.size()};
    // It may have received what ended its stream.
    const ssize_t size_sent = sessions[end]->Send(pairs[end].first.get(), &piece, 1);
    Require(size_sent == static_cast<ssize_t>(sent.size()) || (size_sent < 0 && change != 0),
            "there is room");
    if (size_sent < 0) continue;
    pass(end);
    if (!results[1 - end].ok() || !*results[1 - end]) continue;
    const ssize_t size = sessions[1 - end]->Receive(pairs[1 - end].first.get(), &room, 1);
    Require(size < 0 || received.substr(0, static_cast<size_t>(size)) == sent,
            "what comes is what was sent, or an error");
  }
  if (change == 0) Require(results[0].ok() && *results[0] && results[1].ok(), "they find together");
}

}  // namespace

void RunOne(absl::string_view input) {
  Reader reader(input);
  // What strangers send takes less time, and there is more of it.
  if (reader.Below(64) != 63) return MeetStranger(reader);
  PassOn(reader);
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const char mode : {'\0', '\1'}) {
    const tls::Mode of = mode == 0 ? tls::Mode::kSecret : tls::Mode::kCertificates;
    const auto client = NewSession(of, tls::Session::Role::kClient);
    const auto server = NewSession(of, tls::Session::Role::kServer);
    auto [client_end, to_client] = SocketPair();
    auto [server_end, to_server] = SocketPair();
    std::string of_client = {'\0', mode, '\0'}, of_server = {'\0', mode, '\1'};
    for (int round = 0; round < 3; ++round) {
      Require(client->Handshake(client_end.get()).ok(), "the client goes on");
      std::string bytes = ReadAll(to_client.get());
      Write(to_server.get(), bytes);
      of_client += Text(bytes);
      Require(server->Handshake(server_end.get()).ok(), "the server goes on");
      bytes = ReadAll(to_server.get());
      Write(to_client.get(), bytes);
      of_server += Text(bytes);
    }
    seeds.push_back(of_client);
    seeds.push_back(of_server);
    seeds.push_back({'\0', mode, '\0', 5, 0, '\x16', '\x03', '\x01', '\x40', '\x00'});
    seeds.push_back({'\x3f', mode, '\0', '\0', '\0'});
    for (const char at : {10, 50, 100}) {
      seeds.push_back({'\x3f', mode, at, '\0', '\1'});
      seeds.push_back({'\x3f', mode, at, '\1', '\1'});
    }
  }
  return seeds;
}

}  // namespace syncline::fuzz
