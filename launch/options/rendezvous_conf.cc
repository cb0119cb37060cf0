#include "launch/options/rendezvous_conf.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "launch/options/flags.h"
#include "launch/options/option_values.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

using Backend = RendezvousOptions::Backend;

// A call to a store gets no longer than this either.
constexpr absl::Duration kMinLostAfter = absl::Milliseconds(500);

constexpr RendezvousKey kKeys[] = {
    {"join_timeout", "", "seconds to wait until MIN nodes have come (600)"},
    {"last_call_timeout", "", "seconds to wait for more nodes once MIN have come (30)"},
    {"close_timeout", "", "seconds for saying goodbye to the store (30)"},
    {"read_timeout", "", "seconds for connecting to the store, and for each call of it (60)"},
    {"heartbeat_timeout", "",
     "seconds after which a silent node is not waited for while a round forms (1.5; three "
     "intervals at least)"},
    {"keep_alive_interval", "", "seconds between the signs of life of a node (0.5)"},
    {"keep_alive_max_attempt", "", "how many of them may be missing in a row (10; 2 or more)"},
    {"scale_up_delay", "",
     "seconds from the coming of a node to the end of the round, so that several cost one restart "
     "(1)"},
    {"restart_backoff", "",
     "seconds before the second restart in a row, twice as many before each further one, up to 30 "
     "or what is given here, if that is more (1)"},
    {"timeout", "static,etcd", "the same as join_timeout"},
    {"is_host", "c10d", "whether this node hosts the store: true, false; otherwise it tries to"},
    {"store_type", "c10d", "tcp, or file: then the endpoint is a path, as with the backend file"},
    {"prefix", "etcd", "what the names of the job's keys begin with (/syncline)"},
    {"protocol", "etcd", "http or https"},
    {"ca_cert", "etcd", "PEM file of who signed the server's certificate; cacert is the same"},
    {"cert", "etcd", "PEM file of our certificate; ssl_cert is the same"},
    {"key", "etcd", "PEM file of its key; ssl_cert_key is the same"},
    {"user", "etcd", "name to log in with"},
    {"password", "etcd",
     "password of user; better in password_file, in SYNCLINE_RDZV_CONF or in a configuration "
     "file than on the command line, which every user of the host can read"},
    {"password_file", "etcd", "file whose first line is the password of user"},
};

std::string Canonical(absl::string_view key) {
  if (key == "cacert") return "ca_cert";
  if (key == "ssl_cert") return "cert";
  if (key == "ssl_cert_key") return "key";
  return std::string(key);
}

absl::string_view BackendName(Backend backend) {
  switch (backend) {
    case Backend::kStatic:
      return "static";
    case Backend::kC10d:
      return "c10d";
    case Backend::kEtcd:
      return "etcd";
    case Backend::kFile:
      return "file";
  }
  return "";
}

absl::Status CheckKey(absl::string_view where, absl::string_view key, Backend backend) {
  std::vector<std::string> names;
  for (const RendezvousKey& known : kKeys) {
    const std::vector<absl::string_view> backends = absl::StrSplit(known.backends, ',');
    const bool fits = known.backends.empty() ||
                      absl::c_linear_search(backends, BackendName(backend)) ||
                      // The spelling of c10d over a file.
                      (known.name == "store_type" && backend == Backend::kFile);
    if (known.name == key && fits) return absl::OkStatus();
    if (known.name == key && key == "timeout") {
      return ArgumentError(absl::StrCat(
          where, ": ", BackendName(backend), " has no 'timeout'. Say which: join_timeout (until ",
          "MIN nodes have come) or read_timeout (for connecting to the store)"));
    }
    if (known.name == key) {
      return ArgumentError(absl::StrCat(where, ": '", key,
                                        "' is for --rdzv-backend=", known.backends,
                                        ", and this job uses ", BackendName(backend)));
    }
    if (fits) names.push_back(std::string(known.name));
  }
  return ArgumentError(
      absl::StrCat(where, ": there is no key '", key, "'.", Suggestion(key, names)));
}

absl::Status SetDuration(absl::string_view where, absl::string_view value,
                         absl::Duration* duration) {
  SYNCLINE_ASSIGN_OR_RETURN(*duration, ParseSeconds(where, value));
  if (*duration > absl::ZeroDuration()) return absl::OkStatus();
  return ArgumentError(absl::StrCat(where, "=", value, ": must be more than 0"));
}

// What QuoteConfValue has quoted.
absl::StatusOr<std::string> Unquoted(absl::string_view where, absl::string_view value) {
  if (!absl::ConsumePrefix(&value, "\"")) return std::string(value);
  std::string plain;
  while (!value.empty()) {
    const size_t quote = value.find('"');
    if (quote == absl::string_view::npos) break;
    absl::StrAppend(&plain, value.substr(0, quote));
    value.remove_prefix(quote + 1);
    if (value.empty()) return plain;
    if (!absl::ConsumePrefix(&value, "\"")) break;
    plain += '"';
  }
  // Not the value itself: it may be a password.
  return ArgumentError(absl::StrCat(where, ": the quotes of the value end too early, or not at ",
                                    "all. Within them a double quote is written twice"));
}

absl::Status SetHosting(absl::string_view where, absl::string_view value,
                        RendezvousOptions* options) {
  bool is_host = false;
  if (!absl::SimpleAtob(value, &is_host)) {
    return ArgumentError(absl::StrCat(where, ": '", value, "' is neither true nor false"));
  }
  options->hosting =
      is_host ? RendezvousOptions::Hosting::kAlways : RendezvousOptions::Hosting::kNever;
  return absl::OkStatus();
}

absl::Status SetPassword(absl::string_view where, absl::string_view path,
                         RendezvousOptions* options) {
  struct stat info;
  if (stat(std::string(path).c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return ArgumentError(absl::StrCat(where, "=", path, ": this is not a regular file"));
  }
  std::ifstream file{std::string(path)};
  if (!file || !std::getline(file, options->etcd.password)) {
    return ArgumentError(absl::StrCat(
        where, "=", path, " cannot be read: ", file.eof() ? "it is empty" : std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status CheckOneOf(absl::string_view where, absl::string_view value,
                        const std::vector<std::string>& choices) {
  if (absl::c_linear_search(choices, value)) return absl::OkStatus();
  return ArgumentError(
      absl::StrCat(where, ": '", value, "' is not known.", Suggestion(value, choices)));
}

absl::Status SetKey(absl::string_view where, absl::string_view key, absl::string_view value,
                    RendezvousOptions* options) {
  const std::pair<absl::string_view, absl::Duration*> durations[] = {
      {"join_timeout", &options->join_timeout},
      {"timeout", &options->join_timeout},
      {"last_call_timeout", &options->last_call_timeout},
      {"close_timeout", &options->close_timeout},
      {"read_timeout", &options->read_timeout},
      {"heartbeat_timeout", &options->heartbeat_timeout},
      {"keep_alive_interval", &options->keep_alive_interval},
  };
  for (const auto& [name, duration] : durations) {
    if (name == key) return SetDuration(where, value, duration);
  }
  const std::pair<absl::string_view, absl::Duration*> delays[] = {
      {"scale_up_delay", &options->scale_up_delay},
      {"restart_backoff", &options->restart_backoff},
  };
  for (const auto& [name, delay] : delays) {
    if (name != key) continue;
    SYNCLINE_ASSIGN_OR_RETURN(*delay, ParseSeconds(where, value));  // 0: none.
    return absl::OkStatus();
  }
  const std::pair<absl::string_view, std::string*> texts[] = {
      {"prefix", &options->etcd.prefix}, {"ca_cert", &options->etcd.ca_cert},
      {"cert", &options->etcd.cert},     {"key", &options->etcd.key},
      {"user", &options->etcd.user},     {"password", &options->etcd.password},
  };
  for (const auto& [name, text] : texts) {
    if (name != key) continue;
    *text = std::string(value);
    return absl::OkStatus();
  }
  if (key == "keep_alive_max_attempt") {
    SYNCLINE_ASSIGN_OR_RETURN(options->keep_alive_max_attempt,
                              ParseNumber(where, value, 1, 1000000));
    return absl::OkStatus();
  }
  if (key == "password_file") return SetPassword(where, value, options);
  if (key == "is_host") return SetHosting(where, value, options);
  if (key == "store_type") return CheckOneOf(where, value, {"tcp", "file"});
  return CheckOneOf(where, value, {"http", "https"});  // protocol
}

absl::Status CheckEtcd(absl::string_view where, bool wants_tls, const RendezvousOptions& options) {
  const RendezvousOptions::Etcd& etcd = options.etcd;
  const bool has_tls = !etcd.ca_cert.empty() || !etcd.cert.empty() || !etcd.key.empty();
  if (etcd.cert.empty() != etcd.key.empty()) {
    return ArgumentError(absl::StrCat(where, ": cert and key go together: give both"));
  }
  if (wants_tls && !has_tls) {
    return ArgumentError(absl::StrCat(where, ": protocol=https needs ca_cert, the PEM file of who ",
                                      "signed the server's certificate"));
  }
  if (etcd.user.empty() && !etcd.password.empty()) {
    return ArgumentError(absl::StrCat(where, ": password needs user, and so does password_file"));
  }
  return absl::OkStatus();
}

// Refuses times with which every round would end by itself.
absl::Status CheckTimes(absl::string_view where, const RendezvousOptions& options) {
  if (options.keep_alive_max_attempt == 1) {
    return ArgumentError(absl::StrCat(where, ", keep_alive_max_attempt=1: one sign of life that ",
                                      "comes late would end the round; give 2 or more"));
  }
  const absl::Duration lost_after = options.keep_alive_interval * options.keep_alive_max_attempt;
  if (lost_after >= kMinLostAfter) return absl::OkStatus();
  return ArgumentError(absl::StrCat(
      where, ": a node would be lost after ", absl::FormatDuration(lost_after),
      " (keep_alive_interval * keep_alive_max_attempt); it must be at least ",
      absl::FormatDuration(kMinLostAfter), ", or a short delay of the network ends the round"));
}

}  // namespace

absl::Span<const RendezvousKey> RendezvousKeys() { return kKeys; }

absl::string_view TakeConfEntry(absl::string_view* rest) {
  bool is_quoted = false;  // The value.
  bool is_within = false;  // The quotes; a doubled one ends and begins them.
  size_t end = 0;
  for (; end < rest->size() && (is_within || (*rest)[end] != ','); ++end) {
    if ((*rest)[end] != '"') continue;
    is_quoted = is_quoted || (end > 0 && (*rest)[end - 1] == '=' && rest->find('=') == end - 1);
    if (is_quoted) is_within = !is_within;
  }
  const absl::string_view entry = rest->substr(0, end);
  rest->remove_prefix(std::min(end + 1, rest->size()));
  return entry;
}

std::string QuoteConfValue(absl::string_view value) {
  if (!absl::StrContains(value, ',') && !absl::StartsWith(value, "\"")) return std::string(value);
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\"", "\"\""}}), "\"");
}

absl::Status ReadRendezvousConf(absl::string_view where, absl::string_view text,
                                RendezvousOptions* options) {
  bool wants_tls = false;
  std::set<std::string> keys;
  for (absl::string_view rest = text; !rest.empty();) {
    const absl::string_view entry = absl::StripAsciiWhitespace(TakeConfEntry(&rest));
    if (entry.empty()) continue;
    const size_t equals = entry.find('=');
    if (equals == 0 || equals == absl::string_view::npos || equals + 1 == entry.size()) {
      // Not the entry itself: it may be the end of a password.
      return ArgumentError(absl::StrCat(where, ": write it as in join_timeout=60,read_timeout=10; ",
                                        "each part needs a key, '=' and a value, which stands in ",
                                        "double quotes if there is a comma in it"));
    }
    const std::string key = Canonical(entry.substr(0, equals));
    SYNCLINE_RETURN_IF_ERROR(CheckKey(where, key, options->backend));
    SYNCLINE_ASSIGN_OR_RETURN(const std::string value,
                              Unquoted(absl::StrCat(where, ", ", key), entry.substr(equals + 1)));
    SYNCLINE_RETURN_IF_ERROR(SetKey(absl::StrCat(where, ", ", key), key, value, options));
    wants_tls = wants_tls || (key == "protocol" && value == "https");
    keys.insert(key);
  }
  if (keys.count("password") > 0 && keys.count("password_file") > 0) {
    return ArgumentError(
        absl::StrCat(where, ": password and password_file exclude each other. Leave one out"));
  }
  SYNCLINE_RETURN_IF_ERROR(CheckTimes(where, *options));
  return CheckEtcd(where, wants_tls, *options);
}

bool AsksForFile(absl::string_view text) {
  while (!text.empty()) {
    if (absl::StripAsciiWhitespace(TakeConfEntry(&text)) == "store_type=file") return true;
  }
  return false;
}

}  // namespace syncline::launch
