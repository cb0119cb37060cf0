#include "ddp/options_fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/hash.h"
#include "core/base/rank_ranges.h"
#include "syncline/error_origin.h"
#include "syncline/status.h"

namespace syncline::ddp {
namespace {

constexpr char kEnd = '\0';  // Ends each name and each value.

// Never 0, which stands for an error.
int64_t HashOf(absl::string_view text) {
  const uint64_t hash = base::Fnv1a64(text);
  return hash == 0 ? 1 : static_cast<int64_t>(hash);
}

// The numbers of all ranks, by rank.
absl::StatusOr<std::vector<int64_t>> AllGatherNumbers(const HostExchange& exchange, int64_t mine) {
  std::vector<int64_t> all(exchange.group().size());
  all[exchange.group().rank()] = mine;
  SYNCLINE_RETURN_IF_ERROR(exchange.AllGatherInPlace(Tensor::Of(all)));
  return all;
}

// The error for the ranks that could go on. `errors` are those of all ranks; empty for none.
absl::Status ErrorOf(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    const absl::Status error =
        MismatchError(absl::StrCat("rank ", rank, " could not set up its reducer: ", errors[rank]));
    return WithRanks(error, {static_cast<int>(rank)});
  }
  return MismatchError("the ranks' reducers differ");
}

// The error that names the first option that differs. `texts` are those of all ranks.
absl::Status Difference(const std::vector<std::string>& texts) {
  std::vector<std::vector<absl::string_view>> all;
  size_t most = 0;
  for (const std::string& text : texts) {
    all.push_back(absl::StrSplit(text, kEnd));
    most = std::max(most, all.back().size());
  }
  for (size_t i = 0; i + 1 < most; i += 2) {
    std::vector<std::pair<absl::string_view, std::vector<int>>> values;
    absl::string_view name;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const bool has = i + 1 < all[rank].size();
      const absl::string_view value = has ? all[rank][i + 1] : "nothing";
      if (has && name.empty()) name = all[rank][i];
      auto same = std::find_if(values.begin(), values.end(),
                               [&](const auto& known) { return known.first == value; });
      if (same == values.end()) same = values.insert(same, {value, {}});
      same->second.push_back(static_cast<int>(rank));
    }
    if (values.size() < 2) continue;
    const std::string list = absl::StrJoin(values, ", ", [](std::string* out, const auto& one) {
      absl::StrAppend(out, base::ListRanks(one.second), one.second.size() == 1 ? " has " : " have ",
                      one.first);
    });
    std::vector<int> ranks;
    for (const auto& one : values) {
      ranks.insert(ranks.end(), one.second.begin(), one.second.end());
    }
    const absl::Status mismatch =
        MismatchError(absl::StrCat("the reducers differ in ", name, ": ", list,
                                   "; build the same model, with the same options, on all ranks"));
    return WithRanks(mismatch, std::move(ranks));
  }
  return MismatchError("the ranks' reducers differ");
}

}  // namespace

absl::Status CheckSameOnAllRanks(const HostExchange& exchange, const OptionsFingerprint& options,
                                 const absl::Status& own) {
  std::string text;
  for (const OptionValue& option : options) {
    text.append(option.name).push_back(kEnd);
    text.append(option.value).push_back(kEnd);
  }
  auto all = AllGatherNumbers(exchange, own.ok() ? HashOf(text) : 0);
  if (!all.ok()) return own.ok() ? all.status() : own;
  const bool differ = std::any_of(all->begin(), all->end(),
                                  [&](int64_t hash) { return hash != all->front() || hash == 0; });
  if (!differ) return absl::OkStatus();
  const bool failed = std::find(all->begin(), all->end(), 0) != all->end();
  const std::string mine = failed ? std::string(own.message()) : text;
  auto texts = exchange.AllGatherBytes(mine);
  if (!own.ok()) return own;
  if (!texts.ok()) return texts.status();
  return failed ? ErrorOf(*texts) : Difference(*texts);
}

std::string ParameterName(const std::vector<std::string>& names, int64_t index) {
  if (names.empty()) return absl::StrCat("parameter ", index);
  return absl::StrCat("'", names[index], "' (index ", index, ")");
}

}  // namespace syncline::ddp
