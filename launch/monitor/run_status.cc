#include "launch/monitor/run_status.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launch/monitor/status_json.h"
#include "launch/monitor/status_table.h"
#include "nlohmann/json.hpp"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

constexpr absl::string_view kStatusFolder = "status/";
constexpr absl::Duration kFresh = absl::Seconds(3);  // Of something renewed every second.
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(200);
constexpr absl::Duration kReadTimeout = absl::Milliseconds(500);

using Texts = std::map<std::string, std::string>;  // By key.

// The current statuses. Skips a key that is deleted during the call.
absl::StatusOr<Texts> ReadAll(Store& store, absl::string_view prefix, absl::Time deadline) {
  SYNCLINE_ASSIGN_OR_RETURN(const std::vector<std::string> keys,
                            store.Keys(absl::StrCat(prefix, kStatusFolder)));
  Texts texts;
  const absl::Duration left = std::max(absl::ZeroDuration(), deadline - absl::Now());
  if (absl::StatusOr<std::vector<std::string>> values =
          store.MultiGet(keys, std::min(left, kReadTimeout));
      values.ok()) {
    for (size_t i = 0; i < keys.size(); ++i) texts[keys[i]] = std::move((*values)[i]);
    return texts;
  }
  for (const std::string& key : keys) {
    absl::StatusOr<std::string> value = store.Get(key, absl::ZeroDuration());
    if (value.ok()) texts[key] = *std::move(value);
    if (absl::Now() >= deadline) break;
  }
  return texts;
}

FoundNode Find(const std::string& text, absl::Time now) {
  FoundNode found;
  absl::StatusOr<NodeStatus> status = NodeStatusFromJson(text);
  if (status.ok()) {
    found.status = *std::move(status);
  } else {  // Another version: half of the table is better than none.
    found.status.job.last_failure = std::string(status.status().message());
  }
  found.silent_for = std::max(absl::ZeroDuration(), now - found.status.updated);
  found.answers = absl::AbsDuration(now - found.status.updated) < kFresh;
  return found;
}

bool AllAnswer(const std::map<std::string, FoundNode>& nodes) {
  return std::all_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return node.second.answers; });
}

// Polls until all nodes have renewed their status, or have had the time to.
absl::StatusOr<std::vector<FoundNode>> FindNodes(Store& store, const StatusOptions& options) {
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + options.timeout;
  SYNCLINE_ASSIGN_OR_RETURN(Texts texts, ReadAll(store, options.prefix, deadline));
  std::map<std::string, FoundNode> nodes;
  for (const auto& [key, text] : texts) nodes[key] = Find(text, absl::Now());
  const absl::Time until = std::min(deadline, start + kFresh);
  while (!AllAnswer(nodes) && absl::Now() < until) {
    absl::SleepFor(std::min(kBetweenLooks, until - absl::Now()));
    SYNCLINE_ASSIGN_OR_RETURN(const Texts again, ReadAll(store, options.prefix, deadline));
    for (const auto& [key, text] : again) {
      const auto before = texts.find(key);
      if (before != texts.end() && before->second == text) continue;
      nodes[key] = Find(text, absl::Now());
      nodes[key].answers = true;  // Whatever its clock shows.
      texts[key] = text;
    }
  }
  std::vector<FoundNode> found;
  for (auto& [key, node] : nodes) found.push_back(std::move(node));
  return found;
}

std::string FormatJson(const std::vector<FoundNode>& nodes, bool is_running) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const FoundNode& node : nodes) {
    Json one = Json::parse(ToJson(node.status), nullptr, /*allow_exceptions=*/false);
    one["answers"] = node.answers;
    one["silent_for"] = node.answers ? 0 : absl::ToDoubleSeconds(node.silent_for);
    list.push_back(std::move(one));
  }
  const Json all = {{"running", is_running}, {"nodes", std::move(list)}};
  return all.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string StatusKey(absl::string_view prefix, absl::string_view node) {
  return absl::StrCat(prefix, kStatusFolder, node);
}

StatusAnswer RunStatus(Store& store, const StatusOptions& options) {
  StatusAnswer answer;
  const absl::StatusOr<std::vector<FoundNode>> nodes = FindNodes(store, options);
  if (!nodes.ok()) {
    answer.err = absl::StrCat("nobody answers: ", nodes.status().message(), "\n");
    return answer;
  }
  const bool is_running =
      std::any_of(nodes->begin(), nodes->end(), [](const FoundNode& node) { return node.answers; });
  answer.exit_code = is_running ? kStatusRunning : kStatusNobody;
  if (options.format == StatusFormat::kJson) {
    answer.out = FormatJson(*nodes, is_running);
  } else if (!nodes->empty()) {
    answer.out = FormatStatusTable(*nodes);
  }
  if (nodes->empty()) {
    answer.err = absl::StrCat("nobody answers: no node has left its status in ", store.ToString(),
                              " under ", options.prefix, ". Is the --rdzv-id that of the job?\n");
  } else if (!is_running) {
    answer.err = "nobody answers: no node has renewed its status\n";
  }
  return answer;
}

}  // namespace syncline::launch
