// What connections between processes of a job prove and hide, as the environment says.
#ifndef SYNCLINE_CORE_TLS_SETTINGS_H_
#define SYNCLINE_CORE_TLS_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/env.h"

namespace syncline::tls {

enum class Mode {
  kOff,           // Connections are not encrypted.
  kSecret,        // Both ends prove a key that follows from the job's secret.
  kCertificates,  // Both ends have certificates.
};

// "off", "secret" or "certificates".
absl::string_view ModeName(Mode mode);

// A plain value. Files are in PEM format.
struct Settings {
  Mode mode = Mode::kOff;
  // Only with kCertificates.
  std::string certificate_file;  // This process's, followed by those that lead to an authority.
  std::string key_file;          // Its private key, without a password.
  std::string authorities_file;  // The certificates by which those of others are trusted.
  // The name that each peer's certificate must have. Empty: who connects asks for the host name or
  // address that it connects to, and who is connected to asks for none.
  std::string peer_name;
  // Backends that may send between hosts what they cannot encrypt.
  std::vector<std::string> plain_backends;
};

// From SYNCLINE_TLS (a ModeName; unset: off), SYNCLINE_TLS_CERT, SYNCLINE_TLS_KEY, SYNCLINE_TLS_CA,
// SYNCLINE_TLS_PEER_NAME and SYNCLINE_TLS_PLAIN (names with commas between them). An ArgumentError
// if one is missing, or would have no effect: whoever sets it believes that connections are
// encrypted.
absl::StatusOr<Settings> SettingsFromEnvironment(
    const base::EnvironmentLookup& environment = base::GetEnv);

// For whoever makes up a secret that is no better kept than what it follows from, or is sent in the
// clear. An ArgumentError with Mode::kSecret, which relies on it.
absl::Status CheckSecretMayBeWeak(const base::EnvironmentLookup& environment = base::GetEnv);

}  // namespace syncline::tls

#endif  // SYNCLINE_CORE_TLS_SETTINGS_H_
