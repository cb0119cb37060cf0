// Turns TLS on for what a test makes.
#ifndef SYNCLINE_CORE_TESTING_TLS_ENVIRONMENT_H_
#define SYNCLINE_CORE_TESTING_TLS_ENVIRONMENT_H_

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/tls/certificates.h"
#include "core/tls/settings.h"
#include "gtest/gtest.h"

namespace syncline {

// A temporary folder with a job's secret and certificates for 127.0.0.1, and the environment
// variables that name them. While one is Set, no other thread may change or read the environment.
class TlsEnvironment {
 public:
  explicit TlsEnvironment(const tls::CertificateRequest& request = {{"localhost", "127.0.0.1"}}) {
    std::string path = absl::StrCat(::testing::TempDir(), "/tls_XXXXXX");
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    folder_ = path;
    EXPECT_TRUE(tls::NewCertificates(folder_, request).ok());
    std::ofstream(secret_file()) << "a secret for tests of TLS";
    chmod(secret_file().c_str(), 0600);
  }
  TlsEnvironment(const TlsEnvironment&) = delete;
  TlsEnvironment& operator=(const TlsEnvironment&) = delete;
  ~TlsEnvironment() {
    Unset();
    std::filesystem::remove_all(folder_);
  }

  // Of this process, and of the children that it starts from now on.
  void Set(tls::Mode mode) const {
    Unset();
    setenv("SYNCLINE_TLS", std::string(tls::ModeName(mode)).c_str(), 1);
    setenv("SYNCLINE_SECRET_FILE", secret_file().c_str(), 1);
    if (mode != tls::Mode::kCertificates) return;
    setenv("SYNCLINE_TLS_CERT", (folder_ + "/" + tls::kCertificateFile).c_str(), 1);
    setenv("SYNCLINE_TLS_KEY", (folder_ + "/" + tls::kKeyFile).c_str(), 1);
    setenv("SYNCLINE_TLS_CA", (folder_ + "/" + tls::kAuthoritiesFile).c_str(), 1);
  }

  static void Unset() {
    for (const char* name : {"SYNCLINE_TLS", "SYNCLINE_TLS_CERT", "SYNCLINE_TLS_KEY",
                             "SYNCLINE_TLS_CA", "SYNCLINE_TLS_PEER_NAME", "SYNCLINE_SECRET_FILE"}) {
      unsetenv(name);
    }
  }

  // From now on, who has these settings accepts what the authorities of `other` have signed as
  // well.
  void Trust(const TlsEnvironment& other) const {
    std::ofstream(folder_ + "/" + tls::kAuthoritiesFile, std::ios::app)
        << std::ifstream(other.folder_ + "/" + tls::kAuthoritiesFile).rdbuf();
  }

  const std::string& folder() const { return folder_; }
  std::string secret_file() const { return folder_ + "/secret"; }

 private:
  std::string folder_;
};

}  // namespace syncline

#endif  // SYNCLINE_CORE_TESTING_TLS_ENVIRONMENT_H_
