// Both ends of connections in one process: what they prove to each other, what they say when they
// do not, and that what one sends is what the other gets however the bytes are cut.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/sockets.h"
#include "core/base/unique_fd.h"
#include "core/testing/environments.h"
#include "core/tls/certificates.h"
#include "core/tls/context.h"
#include "core/tls/settings.h"
#include "core/tls/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/deadline.h"
#include "syncline/status.h"

namespace syncline::tls {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A folder of certificates.
class Folder {
 public:
  explicit Folder(const CertificateRequest& request = {{"localhost", "127.0.0.1"}}) {
    std::string path = absl::StrCat(::testing::TempDir(), "/tls_XXXXXX");
    path_ = mkdtemp(path.data());
    Renew(request);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  void Renew(const CertificateRequest& request) {
    for (const char* name : {kKeyFile, kCertificateFile, kAuthoritiesFile}) {
      std::filesystem::remove(*this / name);
    }
    ASSERT_TRUE(NewCertificates(path_, request).ok());
  }
  std::string operator/(const char* name) const { return absl::StrCat(path_, "/", name); }

  Settings settings() const {
    Settings settings;
    settings.mode = Mode::kCertificates;
    settings.certificate_file = *this / kCertificateFile;
    settings.key_file = *this / kKeyFile;
    settings.authorities_file = *this / kAuthoritiesFile;
    return settings;
  }

 private:
  std::string path_;
};

std::shared_ptr<Context> NewContext(Settings settings, std::string secret = "",
                                    uint64_t records_per_key = Context::kRecordsPerKey) {
  auto context = Context::Create(std::move(settings), std::move(secret), records_per_key);
  EXPECT_TRUE(context.ok()) << context.status();
  return context.ok() ? *context : nullptr;
}

std::shared_ptr<Context> OfSecret(std::string secret,
                                  uint64_t records_per_key = Context::kRecordsPerKey) {
  Settings settings;
  settings.mode = Mode::kSecret;
  return NewContext(std::move(settings), std::move(secret), records_per_key);
}

std::pair<base::UniqueFd, base::UniqueFd> SocketPair() {
  int pair[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
  return {base::UniqueFd(pair[0]), base::UniqueFd(pair[1])};
}

struct Ends {
  Stream client, server;
  absl::Status client_error, server_error;
};

// One end's handshake to its end; it may have ended already.
absl::Status Shake(Session& session, int socket) {
  const Deadline deadline(absl::Seconds(20));
  while (true) {
    SYNCLINE_ASSIGN_OR_RETURN(const bool is_complete, session.Handshake(socket));
    if (is_complete) return absl::OkStatus();
    SYNCLINE_RETURN_IF_ERROR(base::WaitReadable(socket, deadline));
  }
}

Ends Connect(Context& client, Context& server, const std::string& host = "localhost",
             const char* client_purpose = "test", const char* server_purpose = "test") {
  Ends ends;
  auto [client_socket, server_socket] = SocketPair();
  auto client_session = client.Connect(client_purpose, host);
  auto server_session = server.Accept(server_purpose);
  EXPECT_TRUE(client_session.ok() && server_session.ok());
  std::thread accepting([&, &server_socket = server_socket] {
    ends.server_error = Shake(**server_session, server_socket.get());
    // A server that refuses ends the connection, as those here do.
    if (!ends.server_error.ok()) server_socket = base::UniqueFd();
  });
  ends.client_error = Shake(**client_session, client_socket.get());
  if (!ends.client_error.ok()) client_socket = base::UniqueFd();
  accepting.join();
  ends.client = Stream(std::move(client_socket), *std::move(client_session));
  ends.server = Stream(std::move(server_socket), *std::move(server_session));
  return ends;
}

void ExpectConnected(const Ends& ends) {
  ASSERT_TRUE(ends.client_error.ok()) << ends.client_error << ends.server_error;
  ASSERT_TRUE(ends.server_error.ok()) << ends.server_error;
}

// Sends `bytes` from one end to the other, in pieces whose sizes `sizes` chooses.
void ExpectTransfer(Stream& from, Stream& to, size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::string sent(bytes, '\0'), received(bytes, '\0');
  for (char& byte : sent) byte = static_cast<char>(random());
  const auto cut = [&](std::mt19937& sizes, std::string& data, size_t begin) {
    const size_t kinds[] = {1, 56, 4095, 4096, 16384, 100'000, 600'000};
    std::vector<iovec> pieces;
    for (size_t at = begin; at < bytes && pieces.size() < 16;) {
      const size_t size = std::min(bytes - at, 1 + sizes() % kinds[sizes() % std::size(kinds)]);
      pieces.push_back({&data[at], size});
      at += size;
    }
    return pieces;
  };
  std::thread sending([&] {
    std::mt19937 sizes(seed + 1);
    for (size_t at = 0; at < bytes;) {
      const std::vector<iovec> pieces = cut(sizes, sent, at);
      ssize_t count;
      while ((count = from.Send(pieces.data(), pieces.size())) < 0) {
        ASSERT_EQ(errno, EAGAIN);
        ASSERT_TRUE(base::WaitWritable(from.fd(), Deadline(absl::Seconds(20))).ok());
      }
      at += static_cast<size_t>(count);
    }
  });
  std::mt19937 sizes(seed + 2);
  for (size_t at = 0; at < bytes;) {
    const std::vector<iovec> pieces = cut(sizes, received, at);
    const ssize_t count = to.Receive(pieces.data(), pieces.size());
    if (count > 0) {
      at += static_cast<size_t>(count);
      continue;
    }
    ASSERT_EQ(errno, EAGAIN);
    ASSERT_TRUE(base::WaitReadable(to.fd(), Deadline(absl::Seconds(20))).ok());
  }
  sending.join();
  EXPECT_TRUE(sent == received);
}

TEST(SettingsTest, TellsModes) {
  EXPECT_EQ(SettingsFromEnvironment(LookUpIn({}))->mode, Mode::kOff);
  EXPECT_EQ(SettingsFromEnvironment(LookUpIn({{"SYNCLINE_TLS", "off"}}))->mode, Mode::kOff);
  EXPECT_EQ(SettingsFromEnvironment(LookUpIn({{"SYNCLINE_TLS", "secret"}}))->mode, Mode::kSecret);
}

TEST(SettingsTest, RefusesWhatWouldHaveNoEffect) {
  const auto message = [](const Variables& values) {
    const auto settings = SettingsFromEnvironment(LookUpIn(values));
    EXPECT_EQ(KindOf(settings.status()), ErrorKind::kArgument);
    return std::string(settings.status().message());
  };
  EXPECT_THAT(message({{"SYNCLINE_TLS", "on"}}), HasSubstr("off, secret or certificates"));
  EXPECT_THAT(message({{"SYNCLINE_TLS_CERT", "/cert"}}),
              HasSubstr("SYNCLINE_TLS_CERT has no effect"));
  EXPECT_THAT(message({{"SYNCLINE_TLS", "secret"}, {"SYNCLINE_TLS_PEER_NAME", "a"}}),
              HasSubstr("SYNCLINE_TLS_PEER_NAME has no effect"));
  EXPECT_THAT(message({{"SYNCLINE_TLS", "certificates"}, {"SYNCLINE_TLS_CERT", "/cert"}}),
              HasSubstr("SYNCLINE_TLS_KEY must name a file"));
}

TEST(TlsTest, CarriesBytesHoweverTheyAreCut) {
  const auto context = OfSecret("a secret");
  Ends ends = Connect(*context, *context);
  ASSERT_NO_FATAL_FAILURE(ExpectConnected(ends));
  for (const uint32_t seed : {1u, 2u, 3u}) {
    ExpectTransfer(ends.client, ends.server, 1, seed);
    ExpectTransfer(ends.server, ends.client, 5'000'000, seed);
    ExpectTransfer(ends.client, ends.server, 5'000'000, seed);
  }
}

TEST(TlsTest, ChangesItsKeys) {
  const auto context = OfSecret("a secret", 3);
  Ends ends = Connect(*context, *context);
  ASSERT_NO_FATAL_FAILURE(ExpectConnected(ends));
  ExpectTransfer(ends.client, ends.server, 5'000'000, 1);
  ExpectTransfer(ends.server, ends.client, 5'000'000, 2);
}

TEST(TlsTest, SecretsMustBeTheSame) {
  const auto context = OfSecret("a secret");
  const Ends ends = Connect(*context, *OfSecret("another"));
  for (const absl::Status& error : {ends.client_error, ends.server_error}) {
    EXPECT_EQ(KindOf(error), ErrorKind::kNetwork);
    EXPECT_THAT(error.message(), HasSubstr("same job secret"));
  }
  const Ends other = Connect(*context, *context, "localhost", "one purpose", "another");
  EXPECT_FALSE(other.client_error.ok());
  EXPECT_FALSE(other.server_error.ok());
}

TEST(TlsTest, CertificatesAreOfUseForTheConnectionAlone) {
  const Folder folder;
  const auto context = NewContext(folder.settings());
  const Ends ends = Connect(*context, *context, "localhost", "one purpose", "another");
  for (const absl::Status& error : {ends.client_error, ends.server_error}) {
    EXPECT_EQ(KindOf(error), ErrorKind::kNetwork) << error;
    EXPECT_THAT(error.message(), HasSubstr("do not mean the same connection"));
    EXPECT_TRUE(IsRefusal(Annotate(error, "while connecting")));
  }
}

TEST(TlsTest, ASecretIsNoCertificate) {
  const Folder folder;
  const auto secret = OfSecret("a secret"), certificates = NewContext(folder.settings());
  for (const Ends& ends : {Connect(*secret, *certificates), Connect(*certificates, *secret)}) {
    EXPECT_FALSE(ends.client_error.ok());
    EXPECT_FALSE(ends.server_error.ok());
  }
}

TEST(TlsTest, CertificatesOfOneAuthorityAreAccepted) {
  const Folder folder;
  const auto context = NewContext(folder.settings());
  for (const char* host : {"localhost", "127.0.0.1"}) {
    Ends ends = Connect(*context, *context, host);
    ExpectConnected(ends);
    ExpectTransfer(ends.client, ends.server, 1'000'000, 1);
  }
}

TEST(TlsTest, TellsWhatIsWrongWithACertificate) {
  const Folder folder, other;
  const auto context = NewContext(folder.settings());
  {
    const Ends ends = Connect(*context, *context, "elsewhere");
    EXPECT_THAT(ends.client_error.message(), HasSubstr("it is not for 'elsewhere'"));
    EXPECT_THAT(ends.client_error.message(), HasSubstr("syncline job"));
    EXPECT_THAT(ends.server_error.message(), HasSubstr("does not accept the certificate in '"));
  }
  {
    const Ends ends = Connect(*context, *context, "10.0.0.7");
    EXPECT_THAT(ends.client_error.message(), HasSubstr("it is not for '10.0.0.7'"));
  }
  {
    const Ends ends = Connect(*NewContext(other.settings()), *context);
    EXPECT_THAT(ends.client_error.message(), HasSubstr("no authority of SYNCLINE_TLS_CA"));
    EXPECT_THAT(ends.server_error.message(), HasSubstr("SYNCLINE_TLS_CA"));
  }
  {
    // The client trusts the server, but not the other way round.
    Settings settings = other.settings();
    settings.authorities_file = folder / kAuthoritiesFile;
    const Ends ends = Connect(*NewContext(settings), *context);
    EXPECT_THAT(ends.server_error.message(), HasSubstr("no authority of SYNCLINE_TLS_CA"));
    EXPECT_THAT(ends.client_error.message(), HasSubstr("the other side does not accept"));
  }
  {
    Settings named = folder.settings();
    named.peer_name = "worker";
    const Ends ends = Connect(*context, *NewContext(named));
    EXPECT_THAT(ends.server_error.message(), HasSubstr("it is not for 'worker'"));
    EXPECT_THAT(ends.client_error.message(), HasSubstr("the other side does not accept"));
  }
}

TEST(TlsTest, ACertificateThatExpiresMeanwhileIsRefused) {
  Folder folder;
  // Made from a certificate that is valid for five seconds more.
  folder.Renew({{"localhost"}, -absl::Hours(1), absl::Seconds(5)});
  const auto context = NewContext(folder.settings());
  ExpectConnected(Connect(*context, *context));
  absl::SleepFor(absl::Seconds(6));
  const Ends ends = Connect(*context, *context);
  EXPECT_THAT(ends.client_error.message(), HasSubstr("certificate has expired"));
  EXPECT_THAT(ends.server_error.message(), HasSubstr("it has expired"));
  const auto again = Context::Create(folder.settings(), "");
  EXPECT_EQ(KindOf(again.status()), ErrorKind::kArgument);
  EXPECT_THAT(again.status().message(), HasSubstr("has expired"));
}

TEST(TlsTest, ACertificateThatIsNotYetValidIsRefused) {
  Folder folder;
  folder.Renew({{"localhost"}, absl::Hours(1), absl::Hours(2)});
  EXPECT_THAT(Context::Create(folder.settings(), "").status().message(),
              HasSubstr("not valid yet"));
}

TEST(TlsTest, RenewedCertificatesAreReadAgain) {
  Folder folder;
  const auto context = NewContext(folder.settings());
  ExpectConnected(Connect(*context, *context));
  folder.Renew({{"elsewhere"}});
  ExpectConnected(Connect(*context, *context, "elsewhere"));
  // A file that is half written: those before still count.
  std::ofstream(folder / kKeyFile) << "-----BEGIN";
  ExpectConnected(Connect(*context, *context, "elsewhere"));
  std::filesystem::remove(folder / kCertificateFile);
  ExpectConnected(Connect(*context, *context, "elsewhere"));
}

TEST(TlsTest, TellsWhichFileCannotBeUsed) {
  const Folder folder, other;
  const auto message = [](const Settings& settings) {
    const auto context = Context::Create(settings, "");
    EXPECT_EQ(KindOf(context.status()), ErrorKind::kArgument);
    return std::string(context.status().message());
  };
  Settings settings = folder.settings();
  settings.certificate_file = "/nowhere/cert.pem";
  EXPECT_THAT(message(settings), HasSubstr("'/nowhere/cert.pem', which SYNCLINE_TLS_CERT names"));
  EXPECT_THAT(message(settings), HasSubstr("No such file"));
  settings = folder.settings();
  settings.key_file = other / kKeyFile;  // Of another certificate.
  EXPECT_THAT(message(settings), HasSubstr("SYNCLINE_TLS_KEY"));
  settings = folder.settings();
  settings.authorities_file = folder / kKeyFile;
  EXPECT_THAT(message(settings), HasSubstr("SYNCLINE_TLS_CA"));
  settings = folder.settings();
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  settings.authorities_file = folder / "fifo";  // Nobody writes to it.
  EXPECT_THAT(message(settings), HasSubstr("it is not a regular file"));
  settings = Settings();
  settings.mode = Mode::kSecret;  // Without a secret.
  EXPECT_THAT(message(settings), HasSubstr("SYNCLINE_SECRET_FILE"));
}

TEST(TlsTest, AKeyThatOthersMayUseIsRefused) {
  const Folder folder;
  const std::string key = folder / kKeyFile;
  const auto create_with = [&](mode_t mode) {
    EXPECT_EQ(chmod(key.c_str(), mode), 0);
    return Context::Create(folder.settings(), "").status();
  };
  for (const mode_t mode : {0644, 0604, 0620, 0660, 0677}) {
    const absl::Status refused = create_with(mode);
    EXPECT_EQ(KindOf(refused), ErrorKind::kArgument);
    EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("which SYNCLINE_TLS_KEY names"),
                                                      HasSubstr(absl::StrFormat("mode %04o", mode)),
                                                      HasSubstr(absl::StrCat("chmod 600 ", key))));
  }
  for (const mode_t mode : {0600, 0400}) EXPECT_TRUE(create_with(mode).ok());
  // Only root can let a group read its key.
  EXPECT_EQ(create_with(0640).ok(), geteuid() == 0);
  // A sandbox may have no other users.
  if (geteuid() != 0 || chown(key.c_str(), 12345, 12345) != 0) return;
  EXPECT_FALSE(create_with(0640).ok());
  EXPECT_TRUE(create_with(0600).ok());
}

// A job that runs does not end for it.
TEST(TlsTest, AKeyThatIsRenewedSoThatOthersMayUseItIsNotTaken) {
  Folder folder;
  const auto context = NewContext(folder.settings());
  folder.Renew({{"elsewhere"}});
  ASSERT_EQ(chmod((folder / kKeyFile).c_str(), 0644), 0);
  ExpectConnected(Connect(*context, *context, "localhost"));
  // It is, once that is mended.
  ASSERT_EQ(chmod((folder / kKeyFile).c_str(), 0600), 0);
  ExpectConnected(Connect(*context, *context, "elsewhere"));
}

TEST(TlsTest, FilesAreForTheirOwnerAlone) {
  const Folder folder;
  for (const char* name : {kKeyFile, kCertificateFile, kAuthoritiesFile}) {
    struct stat info = {};
    ASSERT_EQ(stat((folder / name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_EQ(KindOf(NewCertificates("/nowhere", {{"a"}})), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(NewCertificates(".", {{"a,DNS:b"}})), ErrorKind::kArgument);
  EXPECT_EQ(KindOf(NewCertificates(".", {})), ErrorKind::kArgument);
}

TEST(TlsTest, FilesThatExistAreNotOverwritten) {
  for (const char* name : {kKeyFile, kCertificateFile, kAuthoritiesFile}) {
    std::string path = absl::StrCat(::testing::TempDir(), "/tls_XXXXXX");
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    const std::string file = absl::StrCat(path, "/", name);
    std::ofstream(file) << "the user's own";
    const absl::Status error = NewCertificates(path, {{"localhost"}});
    EXPECT_EQ(KindOf(error), ErrorKind::kArgument);
    EXPECT_THAT(error.message(), HasSubstr(absl::StrCat("'", file, "' exists already")));
    std::string text;
    std::getline(std::ifstream(file), text);
    EXPECT_EQ(text, "the user's own");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path), {}), 1);
    std::filesystem::remove_all(path);
  }
}

TEST(TlsTest, ChangedBytesEndTheStream) {
  const auto context = OfSecret("a secret");
  Ends ends = Connect(*context, *context);
  ExpectConnected(ends);
  std::string data(1000, 'x');
  const iovec out = {data.data(), data.size()};
  ASSERT_EQ(ends.client.Send(&out, 1), 1000);
  // The record is taken off the socket, changed in one bit, and put back.
  std::string record(4096, '\0');
  const ssize_t size = recv(ends.server.fd(), record.data(), record.size(), 0);
  ASSERT_GT(size, 1000);
  record[500] ^= 1;
  ASSERT_EQ(send(ends.client.fd(), record.data(), static_cast<size_t>(size), 0), size);
  std::string received(1000, '\0');
  const iovec in = {received.data(), received.size()};
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ends.server.Receive(&in, 1), -1);
    EXPECT_EQ(errno, EPROTO);
  }
}

TEST(TlsTest, ARecordSentTwiceEndsTheStream) {
  const auto context = OfSecret("a secret");
  Ends ends = Connect(*context, *context);
  ExpectConnected(ends);
  std::string data(100, 'x'), received(100, '\0');
  const iovec out = {data.data(), data.size()}, in = {received.data(), received.size()};
  ASSERT_EQ(ends.client.Send(&out, 1), 100);
  std::string record(4096, '\0');
  const auto size = static_cast<size_t>(recv(ends.server.fd(), record.data(), record.size(), 0));
  for (int i = 0; i < 2; ++i) ASSERT_GT(send(ends.client.fd(), record.data(), size, 0), 0);
  EXPECT_EQ(ends.server.Receive(&in, 1), 100);
  EXPECT_EQ(ends.server.Receive(&in, 1), -1);
  EXPECT_EQ(errno, EPROTO);
}

TEST(TlsTest, TheEndOfTheConnectionEndsTheStream) {
  const auto context = OfSecret("a secret");
  Ends ends = Connect(*context, *context);
  ExpectConnected(ends);
  char byte = 'x';
  const iovec one = {&byte, 1};
  EXPECT_EQ(ends.server.Receive(&one, 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  ASSERT_EQ(ends.client.Send(&one, 1), 1);
  ends.client = Stream();
  EXPECT_EQ(ends.server.Receive(&one, 1), 1);  // What was sent before is still read.
  EXPECT_EQ(ends.server.Receive(&one, 1), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(ends.server.Send(&one, 1), -1);
  EXPECT_NE(errno, EAGAIN);
}

// Whatever a stranger sends ends the handshake, and nothing else.
TEST(TlsTest, RefusesNoise) {
  const auto context = OfSecret("a secret");
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    auto [ours, theirs] = SocketPair();
    auto session = i % 2 == 0 ? context->Accept("test") : context->Connect("test", "localhost");
    ASSERT_TRUE(session.ok());
    std::string noise(random() % 2000, '\0');
    for (char& byte : noise) byte = static_cast<char>(random());
    // Often what looks like the header of a record.
    if (i % 3 == 0 && noise.size() > 5) {
      noise.replace(0, 5, std::string("\x16\x03\x01\x00\x40", 5));
    }
    ASSERT_EQ(send(theirs.get(), noise.data(), noise.size(), 0),
              static_cast<ssize_t>(noise.size()));
    // Much of it is refused while the other side is there; the rest may be the beginning of more.
    const absl::StatusOr<bool> at_once = (*session)->Handshake(ours.get());
    if (at_once.ok()) {
      EXPECT_FALSE(*at_once);
    } else {
      EXPECT_FALSE((*session)->has_ended());
      ++refused;
    }
    theirs = base::UniqueFd();
    EXPECT_EQ(KindOf(Shake(**session, ours.get())), ErrorKind::kNetwork);
  }
  EXPECT_GT(refused, 100);
}

TEST(TlsTest, AConnectionThatEndsIsNoRefusal) {
  const Folder folder, other;
  for (const auto& context : {OfSecret("a secret"), NewContext(folder.settings())}) {
    auto [ours, theirs] = SocketPair();
    auto session = context->Connect("test", "localhost");
    EXPECT_FALSE(*(*session)->Handshake(ours.get()));
    theirs = base::UniqueFd();
    EXPECT_FALSE((*session)->Handshake(ours.get()).ok());
    EXPECT_TRUE((*session)->has_ended());
  }
}

}  // namespace
}  // namespace syncline::tls
