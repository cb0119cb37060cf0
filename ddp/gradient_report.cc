#include "ddp/gradient_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/rank_ranges.h"
#include "ddp/options_fingerprint.h"
#include "syncline/status.h"
#include "syncline/tensor.h"

namespace syncline::ddp {
namespace {

using Faults = std::vector<uint8_t>;  // Of a rank, by parameter.

Faults AsBytes(const std::vector<Fault>& faults) {
  Faults bytes;
  for (const Fault fault : faults) bytes.push_back(static_cast<uint8_t>(fault));
  return bytes;
}

// The parameters that have `fault`, by name; empty if there is none.
std::string ListOf(const Faults& faults, Fault fault, const std::vector<std::string>& names) {
  std::vector<std::string> items;
  for (size_t i = 0; i < faults.size(); ++i) {
    if (faults[i] == static_cast<uint8_t>(fault)) items.push_back(ParameterName(names, i));
  }
  return base::ListSome(items);
}

// "rank 1 produced no gradient for 'bias' (index 7)"; nothing if it did. `who` is "rank 1" or, with
// `what` being "a gradient", "no rank".
std::vector<std::string> Sentences(absl::string_view who, absl::string_view what,
                                   const Faults& faults, const std::vector<std::string>& names) {
  std::vector<std::string> sentences;
  const std::string missing = ListOf(faults, Fault::kMissing, names);
  if (!missing.empty()) {
    sentences.push_back(absl::StrCat(who, " produced ", what, " for ", missing));
  }
  const std::string surplus = ListOf(faults, Fault::kSurplus, names);
  if (!surplus.empty()) {
    sentences.push_back(
        absl::StrCat(who, " produced a gradient, though it was to have none, for ", surplus));
  }
  return sentences;
}

}  // namespace

absl::Status FaultsOf(int rank, const std::vector<Fault>& mine,
                      const std::vector<std::string>& names, absl::string_view advice) {
  const std::vector<std::string> sentences =
      Sentences(absl::StrCat("rank ", rank), "no gradient", AsBytes(mine), names);
  return ArgumentError(absl::StrCat(absl::StrJoin(sentences, "; "), "; ", advice));
}

absl::Status ReportFaults(const HostExchange& exchange, const std::vector<Fault>& mine,
                          const std::vector<std::string>& names, absl::string_view advice) {
  const ProcessGroup& group = exchange.group();
  const Faults own = AsBytes(mine);
  Faults flat(mine.size() * group.size());
  std::copy(own.begin(), own.end(), flat.begin() + group.rank() * own.size());
  SYNCLINE_RETURN_IF_ERROR(exchange.AllGatherInPlace(Tensor::Of(flat)));
  std::vector<Faults> all;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto begin = flat.begin() + rank * own.size();
    all.emplace_back(begin, begin + own.size());
  }
  const bool is_missing = ListOf(all[0], Fault::kSurplus, names).empty();
  const bool all_alike =
      std::all_of(all.begin(), all.end(), [&](const Faults& one) { return one == all.front(); });
  std::vector<std::string> sentences;
  if (group.size() > 1 && all_alike && is_missing) {
    sentences = Sentences("no rank", "a gradient", all[0], names);
  } else {
    for (int rank = 0; rank < group.size(); ++rank) {
      for (std::string& one :
           Sentences(absl::StrCat("rank ", rank), "no gradient", all[rank], names)) {
        sentences.push_back(std::move(one));
      }
    }
  }
  return ArgumentError(absl::StrCat(absl::StrJoin(sentences, "; "), "; ", advice));
}

}  // namespace syncline::ddp
