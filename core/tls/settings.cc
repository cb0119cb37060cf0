#include "core/tls/settings.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "syncline/status.h"

namespace syncline::tls {
namespace {

constexpr absl::string_view kMode = "SYNCLINE_TLS";

}  // namespace

absl::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kOff:
      return "off";
    case Mode::kSecret:
      return "secret";
    case Mode::kCertificates:
      return "certificates";
  }
  return "";
}

absl::StatusOr<Settings> SettingsFromEnvironment(const base::EnvironmentLookup& environment) {
  Settings settings;
  const std::string mode = environment(kMode).value_or("");
  if (mode == ModeName(Mode::kSecret)) {
    settings.mode = Mode::kSecret;
  } else if (mode == ModeName(Mode::kCertificates)) {
    settings.mode = Mode::kCertificates;
  } else if (!mode.empty() && mode != ModeName(Mode::kOff)) {
    return ArgumentError(
        absl::StrCat(kMode, " must be off, secret or certificates, not '", mode, "'"));
  }
  const bool has_certificates = settings.mode == Mode::kCertificates;
  const struct {
    absl::string_view name;
    std::string& value;
    bool is_required;
  } variables[] = {{"SYNCLINE_TLS_CERT", settings.certificate_file, true},
                   {"SYNCLINE_TLS_KEY", settings.key_file, true},
                   {"SYNCLINE_TLS_CA", settings.authorities_file, true},
                   {"SYNCLINE_TLS_PEER_NAME", settings.peer_name, false}};
  for (const auto& variable : variables) {
    variable.value = environment(variable.name).value_or("");
    if (!variable.value.empty() && !has_certificates) {
      return ArgumentError(absl::StrCat(variable.name, " has no effect unless ", kMode,
                                        " is certificates; it is '", mode, "'"));
    }
    if (variable.value.empty() && has_certificates && variable.is_required) {
      return ArgumentError(
          absl::StrCat(kMode, " is certificates, so ", variable.name, " must name a file"));
    }
  }
  settings.plain_backends =
      absl::StrSplit(environment("SYNCLINE_TLS_PLAIN").value_or(""), ',', absl::SkipWhitespace());
  return settings;
}

absl::Status CheckSecretMayBeWeak(const base::EnvironmentLookup& environment) {
  SYNCLINE_ASSIGN_OR_RETURN(const Settings settings, SettingsFromEnvironment(environment));
  if (settings.mode != Mode::kSecret) return absl::OkStatus();
  return ArgumentError(
      "SYNCLINE_TLS is secret, so SYNCLINE_SECRET_FILE must name a file with a secret that nobody "
      "can "
      "guess, the same for all processes of the job");
}

}  // namespace syncline::tls
