#include "launch/options/option_values.h"

#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr int kMaxWorkers = 10000;
constexpr int kMaxNodes = 100000;

absl::StatusOr<Streams> ParseStreamsDigit(absl::string_view where, absl::string_view text) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0 || value > 3) {
    return ArgumentError(absl::StrCat(
        where, ": '", text, "' is not a choice of streams: 0 (none), 1 (stdout), 2 (stderr) or 3 ",
        "(both), for all local ranks, or for some as in 0:1,1:2"));
  }
  return static_cast<Streams>(value);
}

// 0 if there is none of that name.
int SignalNamed(absl::string_view name) {
  const std::string upper = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(name));
  const absl::string_view abbreviation = absl::StripPrefix(upper, "SIG");
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const char* known = sigabbrev_np(signal);
    if (known != nullptr && abbreviation == known) return signal;
  }
  return 0;
}

// Says why the launcher cannot take `signal` from a user; empty if it can.
absl::string_view WhyUnusable(int signal) {
  switch (signal) {
    case SIGKILL:
    case SIGSTOP:
      return "no process can handle it";
    case SIGCHLD:
    case SIGPIPE:
    case SIGALRM:
    case SIGXFSZ:
      return "the launcher needs it itself";
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
    case SIGTRAP:
    case SIGSYS:
    case SIGABRT:
      return "it means that the process itself has failed";
    default:
      return "";
  }
}

}  // namespace

absl::StatusOr<int> ParseNumber(absl::string_view where, absl::string_view text, int low,
                                int high) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return ArgumentError(
        absl::StrCat(where, ": '", text, "' is not a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<absl::Duration> ParseSeconds(absl::string_view where, absl::string_view text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds < 0 ||
      absl::Seconds(seconds) == absl::InfiniteDuration()) {
    return ArgumentError(absl::StrCat(where, ": '", text,
                                      "' is no number of seconds. Give a finite one, 0 or more"));
  }
  return absl::Seconds(seconds);
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view where, absl::string_view text) {
  constexpr absl::string_view kUnits = "KMGT";
  const std::string upper = absl::AsciiStrToUpper(text);
  absl::string_view digits = upper;
  absl::ConsumeSuffix(&digits, "B");
  absl::ConsumeSuffix(&digits, "I");
  int shift = 0;
  if (!digits.empty() && kUnits.find(digits.back()) != absl::string_view::npos) {
    shift = 10 * static_cast<int>(kUnits.find(digits.back()) + 1);
    digits.remove_suffix(1);
  }
  int64_t value = 0;
  if (!absl::SimpleAtoi(digits, &value) || value < 1 || value > (INT64_MAX >> shift)) {
    return ArgumentError(
        absl::StrCat(where, ": '", text, "' is no size. Write it as in 65536, 64M or 2G"));
  }
  return value << shift;
}

absl::StatusOr<int> ParseWorkers(absl::string_view where, absl::string_view text,
                                 const HostResources& host) {
  if (text == "cpu") return host.cpus;
  if (text == "auto") return host.gpus > 0 ? host.gpus : host.cpus;
  if (text == "gpu") {
    if (host.gpus > 0) return host.gpus;
    return ArgumentError(absl::StrCat(where,
                                      "=gpu: no GPU was found on this host (no usable "
                                      "/dev/nvidia0, ...). Give a number, or 'cpu'"));
  }
  int workers = 0;
  if (!absl::SimpleAtoi(text, &workers) || workers < 1 || workers > kMaxWorkers) {
    return ArgumentError(absl::StrCat(where, ": '", text, "' is neither a number from 1 to ",
                                      kMaxWorkers, " nor 'auto', 'cpu' or 'gpu'"));
  }
  return workers;
}

absl::StatusOr<NodeRange> ParseNodes(absl::string_view where, absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> range =
      absl::StrContains(text, ':') ? absl::StrSplit(text, absl::MaxSplits(':', 1))
                                   : std::make_pair(text, text);
  NodeRange nodes;
  if (!absl::SimpleAtoi(range.first, &nodes.min) || !absl::SimpleAtoi(range.second, &nodes.max) ||
      nodes.min < 1 || nodes.max < nodes.min || nodes.max > kMaxNodes) {
    return ArgumentError(absl::StrCat(where, ": '", text, "' is neither a number from 1 to ",
                                      kMaxNodes, " nor a range MIN:MAX of such numbers"));
  }
  return nodes;
}

absl::StatusOr<StreamMap> ParseStreams(absl::string_view where, absl::string_view text) {
  StreamMap map;
  if (!absl::StrContains(text, ':')) {
    SYNCLINE_ASSIGN_OR_RETURN(map.others, ParseStreamsDigit(where, text));
    return map;
  }
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int local_rank = 0;
    if (!absl::SimpleAtoi(pair.first, &local_rank) || local_rank < 0) {
      return ArgumentError(absl::StrCat(where, ": in '", text, "', '", pair.first,
                                        "' is not a local rank. Write it as in 0:1,1:2"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(map.by_rank[local_rank], ParseStreamsDigit(where, pair.second));
  }
  return map;
}

absl::StatusOr<std::set<int>> ParseLocalRanks(absl::string_view where, absl::string_view text,
                                              int workers) {
  std::set<int> ranks;
  for (absl::string_view entry : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int rank = 0;
    if (!absl::SimpleAtoi(entry, &rank) || rank < 0 || rank >= workers) {
      return ArgumentError(absl::StrCat(where, ": '", entry, "' is not a local rank from 0 to ",
                                        workers - 1, ". Write them as in 0,1"));
    }
    ranks.insert(rank);
  }
  return ranks;
}

absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view where, absl::string_view text) {
  std::vector<int> signals;
  for (absl::string_view name : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const int signal = SignalNamed(name);
    if (signal == 0) {
      return ArgumentError(absl::StrCat(where, ": no signal is called '", name,
                                        "'. Write them as in SIGTERM,SIGINT"));
    }
    if (const absl::string_view why = WhyUnusable(signal); !why.empty()) {
      return ArgumentError(absl::StrCat(where, ": ", name, " cannot be used: ", why));
    }
    if (std::find(signals.begin(), signals.end(), signal) == signals.end()) {
      signals.push_back(signal);
    }
  }
  return signals;
}

absl::StatusOr<std::vector<int>> ParseForwardedSignals(absl::string_view where,
                                                       absl::string_view text) {
  if (absl::EqualsIgnoreCase(text, "none")) return std::vector<int>();
  return ParseSignals(where, text);
}

std::vector<int> SignalsWithout(const std::vector<int>& signals, const std::vector<int>& others) {
  std::vector<int> rest;
  std::copy_if(signals.begin(), signals.end(), std::back_inserter(rest), [&](int signal) {
    return std::find(others.begin(), others.end(), signal) == others.end();
  });
  return rest;
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view where, absl::string_view text) {
  absl::string_view host = text;
  absl::string_view port;
  const size_t colon = text.rfind(':');
  const bool bare_ipv6 = std::count(text.begin(), text.end(), ':') > 1 && text[0] != '[';
  if (colon != absl::string_view::npos && !bare_ipv6 && text.back() != ']') {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  const bool bracket = absl::ConsumePrefix(&host, "[");
  Endpoint endpoint;
  if (bracket != absl::ConsumeSuffix(&host, "]") || host.empty() ||
      host.find_first_of("/ []") != absl::string_view::npos) {
    return ArgumentError(absl::StrCat(where, ": '", text, "' is not HOST[:PORT]. Write it as in ",
                                      "node1:29400 or [fd00::1]:29400"));
  }
  if (!port.empty()) {
    SYNCLINE_ASSIGN_OR_RETURN(endpoint.port,
                              ParseNumber(absl::StrCat(where, ", the port"), port, 0, 65535));
  }
  endpoint.host = std::string(host);
  return endpoint;
}

}  // namespace syncline::launch
