#include "core/base/env.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "syncline/status.h"

namespace syncline::base {
namespace {

constexpr absl::string_view kSecretFile = "SYNCLINE_SECRET_FILE";
constexpr size_t kMaxSecretSize = 4096;

absl::Status SecretError(absl::string_view path, absl::string_view what) {
  return ArgumentError(absl::StrCat("the job's secret cannot be read from '", path, "', which ",
                                    kSecretFile, " names: ", what));
}

// Through the descriptor, so that what is checked is what is read. As with private keys (core/tls),
// root may let a group read its file: so Kubernetes hands secrets to containers that do not run as
// root.
absl::Status CheckSecretFile(int fd, const std::string& path) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return SecretError(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return SecretError(path, "it is not a regular file");
  const mode_t too_much = info.st_uid == 0 ? S_IWGRP | S_IXGRP | S_IRWXO : S_IRWXG | S_IRWXO;
  if ((info.st_mode & too_much) != 0) {
    return SecretError(path,
                       absl::StrFormat("others than its owner may use it (mode %04o); run "
                                       "`chmod %s %s`",
                                       info.st_mode & 07777,
                                       info.st_uid == 0 && geteuid() != 0 ? "640" : "600", path));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<std::string> GetEnv(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

absl::StatusOr<std::string> RequireEnv(absl::string_view name) {
  std::optional<std::string> value = GetEnv(name);
  if (value.has_value()) return *std::move(value);
  return ArgumentError(absl::StrCat("environment variable ", name,
                                    " is not set; a launcher such as syncline-run sets it. "
                                    "Without one, give the rank and the number of ranks with the "
                                    "init method"));
}

absl::StatusOr<int64_t> RequireEnvInt(absl::string_view name, int64_t low, int64_t high) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::string text, RequireEnv(name));
  int64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && low <= value && value <= high) return value;
  return ArgumentError(absl::StrCat("environment variable ", name, " is '", text,
                                    "'; it must be an integer from ", low, " to ", high));
}

absl::StatusOr<bool> DebugChecks() {
  const std::string value = absl::AsciiStrToLower(GetEnv("SYNCLINE_DEBUG").value_or("on"));
  // "detail" is for backends to which the moment of the comparison makes a difference.
  if (value == "on" || value == "off" || value == "detail") return value != "off";
  return ArgumentError(absl::StrCat(
      "SYNCLINE_DEBUG must be on, off or detail, not '", value,
      "': off saves the comparison of calls between ranks before each collective, detail has every "
      "rank wait for the comparison with all others in each call"));
}

absl::StatusOr<std::string> JobSecret() {
  const std::optional<std::string> path = GetEnv(kSecretFile);
  if (!path.has_value()) return std::string();
  // O_NONBLOCK: opening a FIFO by mistake must not wait for its writer.
  const int fd = open(path->c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SecretError(*path, std::strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  SYNCLINE_RETURN_IF_ERROR(CheckSecretFile(fd, *path));
  std::string secret;
  char buffer[kMaxSecretSize];
  ssize_t size = 0;
  while ((size = read(fd, buffer, sizeof(buffer))) != 0) {
    if (size < 0) return SecretError(*path, std::strerror(errno));
    secret.append(buffer, static_cast<size_t>(size));
    if (secret.size() > kMaxSecretSize) {
      return SecretError(*path, absl::StrCat("it is larger than ", kMaxSecretSize, " bytes"));
    }
  }
  if (secret.empty()) return SecretError(*path, "it is empty");
  return secret;
}

}  // namespace syncline::base
