#include "launch/tls.h"

#include <stdlib.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/tls/certificates.h"
#include "core/tls/context.h"
#include "core/tls/settings.h"
#include "launch/absolute_path.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// The name in certificates that are made here, whatever the hosts are called.
constexpr char kPeerName[] = "syncline-job";

absl::StatusOr<tls::Settings> SettingsFor(const LaunchOptions& options, const std::string& folder) {
  tls::Settings settings = options.tls;
  if (options.makes_own_certificates && folder.empty()) {
    return ArgumentError("--tls=throw-away is for the launcher that makes the certificates");
  }
  if (options.makes_own_certificates) {
    tls::CertificateRequest request;
    request.names = {kPeerName};
    request.ends = absl::Hours(24 * 365);  // Longer than the job.
    SYNCLINE_RETURN_IF_ERROR(tls::NewCertificates(folder, request));
    settings.mode = tls::Mode::kCertificates;
    settings.certificate_file = absl::StrCat(folder, "/", tls::kCertificateFile);
    settings.key_file = absl::StrCat(folder, "/", tls::kKeyFile);
    settings.authorities_file = absl::StrCat(folder, "/", tls::kAuthoritiesFile);
    settings.peer_name = kPeerName;
  }
  // Workers may change their folder.
  for (std::string* file :
       {&settings.certificate_file, &settings.key_file, &settings.authorities_file}) {
    if (!file->empty()) *file = AbsolutePath(*file);
  }
  return settings;
}

}  // namespace

absl::Status UseTls(const LaunchOptions& options, const std::string& folder, bool has_secret,
                    Environment* environment) {
  if (options.tls.mode == tls::Mode::kSecret && !has_secret) {
    return ArgumentError(
        "--tls=secret needs a secret that nobody can guess, and that of a job of several nodes "
        "follows from its --rdzv-id: give all nodes one by SYNCLINE_SECRET_FILE");
  }
  SYNCLINE_ASSIGN_OR_RETURN(const tls::Settings settings, SettingsFor(options, folder));
  const bool is_on = settings.mode != tls::Mode::kOff;
  const std::pair<const char*, std::string> variables[] = {
      {"SYNCLINE_TLS", is_on ? std::string(tls::ModeName(settings.mode)) : ""},
      {"SYNCLINE_TLS_CERT", settings.certificate_file},
      {"SYNCLINE_TLS_KEY", settings.key_file},
      {"SYNCLINE_TLS_CA", settings.authorities_file},
      {"SYNCLINE_TLS_PEER_NAME", settings.peer_name}};
  for (const auto& [name, value] : variables) {
    if (value.empty()) {
      unsetenv(name);
      environment->erase(name);
    } else {
      setenv(name, value.c_str(), 1);
      (*environment)[name] = value;
    }
  }
  // What is wrong with a file is told before anything starts. The key plays no role in that.
  return tls::Context::Create(settings, "any").status();
}

absl::StatusOr<std::string> MakeCertificates(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return ArgumentError(
        absl::StrCat("the folder '", folder, "' cannot be made: ", error.message()));
  }
  tls::CertificateRequest request;
  request.names = {kPeerName};
  SYNCLINE_RETURN_IF_ERROR(tls::NewCertificates(folder, request));
  const std::string path = AbsolutePath(folder);
  return absl::StrCat("A certificate for all nodes of a job is in ", path,
                      ", valid for 30 days. Copy the folder to ",
                      "each node, for its owner alone, and start each launcher with\n  "
                      "--tls=certificates --tls-cert=",
                      path, "/", tls::kCertificateFile, " --tls-key=", path, "/", tls::kKeyFile,
                      " --tls-ca=", path, "/", tls::kAuthoritiesFile,
                      " --tls-peer-name=", kPeerName, "\n");
}

}  // namespace syncline::launch
