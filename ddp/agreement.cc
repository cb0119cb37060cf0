#include "ddp/agreement.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/group/byte_collectives.h"

namespace syncline {
namespace {

constexpr char kEnd = '\0';  // Of each text.

// Never 0, which stands for an error. FNV-1a: equal in all processes, unlike absl::Hash.
int64_t Fingerprint(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash == 0 ? 1 : static_cast<int64_t>(hash);
}

// Of all ranks, in their order.
absl::StatusOr<std::vector<int64_t>> Exchange(ProcessGroup& group, int64_t mine) {
  std::vector<int64_t> all(group.size());
  const Tensor whole = Tensor::Of(all);
  std::vector<Tensor> outputs;
  for (int64_t rank = 0; rank < group.size(); ++rank) outputs.push_back(whole.Slice(rank, 1));
  all[group.rank()] = mine;
  SYNCLINE_RETURN_IF_ERROR(group.AllGather(outputs, outputs[group.rank()]));
  return all;
}

// The error that follows from ranks' `errors`, where those that have none are empty.
absl::Status ErrorOf(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank].empty()) continue;
    return MismatchError(
        absl::StrCat("rank ", rank, " could not set up its reducer: ", errors[rank]));
  }
  return MismatchError("the ranks' reducers differ");
}

// The first difference in what the ranks said.
absl::Status Difference(const std::vector<std::string>& texts) {
  std::vector<std::vector<absl::string_view>> all;
  size_t most = 0;
  for (const std::string& text : texts) {
    all.push_back(absl::StrSplit(text, kEnd));
    most = std::max(most, all.back().size());
  }
  for (size_t i = 0; i + 1 < most; i += 2) {
    std::vector<std::pair<absl::string_view, std::vector<int64_t>>> values;
    absl::string_view what;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const bool has = i + 1 < all[rank].size();
      const absl::string_view value = has ? all[rank][i + 1] : "nothing";
      if (has && what.empty()) what = all[rank][i];
      auto same = std::find_if(values.begin(), values.end(),
                               [&](const auto& known) { return known.first == value; });
      if (same == values.end()) same = values.insert(same, {value, {}});
      same->second.push_back(static_cast<int64_t>(rank));
    }
    if (values.size() < 2) continue;
    const std::string list = absl::StrJoin(values, ", ", [](std::string* out, const auto& one) {
      absl::StrAppend(out, ListRanks(one.second), one.second.size() == 1 ? " has " : " have ",
                      one.first);
    });
    return MismatchError(absl::StrCat("the reducers differ in ", what, ": ", list,
                                      "; build the same model, with the same options, on all "
                                      "ranks"));
  }
  return MismatchError("the ranks' reducers differ");
}

}  // namespace

absl::Status AgreeOn(ProcessGroup& group, const std::vector<Trait>& traits,
                     const absl::Status& own) {
  std::string text;
  for (const Trait& trait : traits) {
    text.append(trait.what).push_back(kEnd);
    text.append(trait.value).push_back(kEnd);
  }
  auto all = Exchange(group, own.ok() ? Fingerprint(text) : 0);
  if (!all.ok()) return own.ok() ? all.status() : own;
  const bool differ = std::any_of(all->begin(), all->end(),
                                  [&](int64_t hash) { return hash != all->front() || hash == 0; });
  if (!differ) return absl::OkStatus();
  const bool failed = std::find(all->begin(), all->end(), 0) != all->end();
  const std::string mine = failed ? std::string(own.message()) : text;
  auto texts = AllGatherBytes(group, mine);
  if (!own.ok()) return own;
  if (!texts.ok()) return texts.status();
  return failed ? ErrorOf(*texts) : Difference(*texts);
}

std::string ListRanks(const std::vector<int64_t>& ranks) {
  std::vector<std::string> items;
  for (int64_t rank : ranks) items.push_back(absl::StrCat(rank));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", ListSome(items));
}

std::string ListSome(const std::vector<std::string>& items) {
  constexpr size_t kSome = 10;
  const size_t shown = std::min(items.size(), kSome);
  std::string list = absl::StrJoin(items.begin(), items.begin() + shown, ", ");
  if (shown < items.size()) absl::StrAppend(&list, " and ", items.size() - shown, " more");
  return list;
}

std::string ParameterName(const std::vector<std::string>& names, int64_t index) {
  if (names.empty()) return absl::StrCat("parameter ", index);
  return absl::StrCat("'", names[index], "' (index ", index, ")");
}

}  // namespace syncline
