#include "backends/nccl/introduction.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncline::nccl {

std::string Introduction::Serialize() const {
  return absl::StrCat(compares ? "compares" : "trusts", " ", is_eager ? "eager" : "lazy", " ",
                      has_split ? "split" : "new", " ", endpoint, "\n", support.Serialize());
}

Introduction Introduction::Parse(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> lines =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  const std::vector<absl::string_view> words = absl::StrSplit(lines.first, absl::MaxSplits(' ', 3));
  Introduction introduction;
  introduction.support = RankSupport::Parse(words.size() == 4 ? lines.second : "");
  if (words.size() != 4) return introduction;
  introduction.compares = words[0] == "compares";
  introduction.is_eager = words[1] == "eager";
  introduction.has_split = words[2] == "split";
  introduction.endpoint = std::string(words[3]);
  return introduction;
}

}  // namespace syncline::nccl
