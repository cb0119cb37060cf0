#include "launch/options/option_values.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/status.h"

namespace syncline {
namespace {

constexpr int kMaxWorkers = 10000;

// The number of single-character edits that turn `a` into `b`.
// V. I. Levenshtein, "Binary codes capable of correcting deletions, insertions, and reversals".
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitution = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitution, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

absl::StatusOr<Streams> ParseStreamsDigit(absl::string_view option, absl::string_view text) {
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0 || value > 3) {
    return ArgumentError(absl::StrCat(
        option, ": '", text, "' is not a choice of streams: 0 (none), 1 (stdout), 2 (stderr) or 3 ",
        "(both), for all local ranks, or for some as in 0:1,1:2"));
  }
  return static_cast<Streams>(value);
}

bool IsThisHost(absl::string_view host) {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return host.empty() || host == "localhost" || host == "127.0.0.1" || host == "::1" ||
         host == name;
}

}  // namespace

absl::StatusOr<int> ParseWorkers(absl::string_view text, const HostResources& host) {
  if (text == "cpu") return host.cpus;
  if (text == "auto") return host.gpus > 0 ? host.gpus : host.cpus;
  if (text == "gpu") {
    if (host.gpus > 0) return host.gpus;
    return ArgumentError(
        "--nproc-per-node=gpu: no GPU was found on this host (no usable /dev/nvidia0, ...). Give "
        "a number, or 'cpu'");
  }
  int workers = 0;
  if (!absl::SimpleAtoi(text, &workers) || workers < 1 || workers > kMaxWorkers) {
    return ArgumentError(absl::StrCat("--nproc-per-node: '", text, "' is neither a number from 1 ",
                                      "to ", kMaxWorkers, " nor 'auto', 'cpu' or 'gpu'"));
  }
  return workers;
}

absl::Status CheckNodes(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> range =
      absl::StrContains(text, ':') ? absl::StrSplit(text, absl::MaxSplits(':', 1))
                                   : std::make_pair(text, text);
  int low = 0;
  int high = 0;
  if (!absl::SimpleAtoi(range.first, &low) || !absl::SimpleAtoi(range.second, &high) || low < 1 ||
      high < low) {
    return ArgumentError(absl::StrCat("--nnodes: '", text, "' is neither a positive number nor a ",
                                      "range MIN:MAX with 1 <= MIN <= MAX"));
  }
  if (high == 1) return absl::OkStatus();
  return UnsupportedError(absl::StrCat("--nnodes=", text, ": more than one node is not supported ",
                                       "yet by this version. Use --nnodes=1"));
}

absl::StatusOr<StreamMap> ParseStreams(absl::string_view option, absl::string_view text) {
  StreamMap map;
  if (!absl::StrContains(text, ':')) {
    SYNCLINE_ASSIGN_OR_RETURN(map.others, ParseStreamsDigit(option, text));
    return map;
  }
  for (absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int local_rank = 0;
    if (!absl::SimpleAtoi(pair.first, &local_rank) || local_rank < 0) {
      return ArgumentError(absl::StrCat(option, ": in '", text, "', '", pair.first,
                                        "' is not a local rank. Write it as in 0:1,1:2"));
    }
    SYNCLINE_ASSIGN_OR_RETURN(map.by_rank[local_rank], ParseStreamsDigit(option, pair.second));
  }
  return map;
}

absl::StatusOr<std::set<int>> ParseLocalRanks(absl::string_view option, absl::string_view text,
                                              int workers) {
  std::set<int> ranks;
  for (absl::string_view entry : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int rank = 0;
    if (!absl::SimpleAtoi(entry, &rank) || rank < 0 || rank >= workers) {
      return ArgumentError(absl::StrCat(option, ": '", entry, "' is not a local rank from 0 to ",
                                        workers - 1, ". Write them as in 0,1"));
    }
    ranks.insert(rank);
  }
  return ranks;
}

absl::StatusOr<int> ParseLocalEndpoint(absl::string_view text) {
  absl::string_view host = text;
  absl::string_view port_text;
  const size_t colon = text.rfind(':');
  const bool bare_ipv6 = std::count(text.begin(), text.end(), ':') > 1 && text[0] != '[';
  if (colon != absl::string_view::npos && !bare_ipv6 && text.back() != ']') {
    host = text.substr(0, colon);
    port_text = text.substr(colon + 1);
  }
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  int port = 0;
  if (!port_text.empty() && (!absl::SimpleAtoi(port_text, &port) || port < 0 || port > 65535)) {
    return ArgumentError(
        absl::StrCat("--rdzv-endpoint: '", port_text, "' is not a port from 0 to 65535"));
  }
  if (!IsThisHost(host)) {
    return UnsupportedError(absl::StrCat(
        "--rdzv-endpoint=", text, ": a rendezvous on another host is not supported yet by this ",
        "version. Leave the option out, or use localhost:0"));
  }
  return port;
}

std::string NearestMatch(absl::string_view word, absl::Span<const std::string> candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(word, candidate);
    // Half a name is a likely mistake too, and far off by edits.
    if (word.size() >= 4 && absl::StartsWith(candidate, word)) distance = 1;
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace syncline
