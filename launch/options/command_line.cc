#include "launch/options/command_line.h"

#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

bool LooksLikeOption(absl::string_view word) {
  double number;
  return word.size() > 1 && word[0] == '-' && !absl::SimpleAtod(word, &number);
}

// One pass over the words.
class Reader {
 public:
  explicit Reader(const std::vector<std::string>& words) : words_(words) {}

  absl::StatusOr<CommandLine> Read();

 private:
  absl::Status ReadOption();
  absl::StatusOr<std::string> TakeValue(absl::string_view spelled);
  absl::Status ReadStatus();

  const std::vector<std::string>& words_;
  size_t next_ = 0;
  CommandLine line_;
};

absl::StatusOr<std::string> Reader::TakeValue(absl::string_view spelled) {
  if (next_ == words_.size()) return ArgumentError(absl::StrCat(spelled, " needs a value"));
  const std::string& value = words_[next_];
  if (LooksLikeOption(value)) {
    return ArgumentError(absl::StrCat(spelled, " needs a value, and '", value,
                                      "' looks like an option. If it is the value, write ", spelled,
                                      "=", value));
  }
  ++next_;
  return value;
}

absl::Status Reader::ReadOption() {
  const absl::string_view word = words_[next_++];
  const bool is_long = absl::StartsWith(word, "--");
  const size_t equals = word.find('=');
  const absl::string_view spelled = is_long ? word.substr(0, equals) : word.substr(0, 2);
  SYNCLINE_ASSIGN_OR_RETURN(const Flag* flag, FindFlag(spelled));
  // The table's spelling, which the user can find in --help.
  Setting setting{"true", Layer::kCommandLine, absl::StrCat("--", flag->name)};
  if (is_long && equals != absl::string_view::npos) {
    setting.text = std::string(word.substr(equals + 1));
  } else if (!is_long && word.size() > 2 && flag->takes_value()) {
    setting.text = std::string(word.substr(word[2] == '=' ? 3 : 2));
  } else if (!is_long && word.size() > 2) {
    return ArgumentError(absl::StrCat("unknown option ", word, ". Did you mean ", spelled, "?"));
  } else if (flag->takes_value()) {
    SYNCLINE_ASSIGN_OR_RETURN(setting.text, TakeValue(spelled));
    if (setting.text.empty() && !flag->may_be_empty) {
      return ArgumentError(absl::StrCat("the value of ", spelled, " is empty"));
    }
  }
  return line_.settings.Set(*flag, std::move(setting));
}

absl::Status Reader::ReadStatus() {
  line_.asks_status = true;
  while (next_ < words_.size()) {
    if (LooksLikeOption(words_[next_])) {
      SYNCLINE_RETURN_IF_ERROR(ReadOption());
    } else if (!line_.program.empty()) {
      return ArgumentError(absl::StrCat("status: '", words_[next_], "' is one argument too many. ",
                                        "To run a program of that name, write ./status"));
    } else {
      line_.program = words_[next_++];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CommandLine> Reader::Read() {
  while (next_ < words_.size()) {
    if (words_[next_] == "--") {
      ++next_;
      break;
    }
    // "-" and "" are programs, if strange ones.
    if (words_[next_].size() < 2 || words_[next_][0] != '-') {
      if (words_[next_] != "status") break;
      ++next_;
      SYNCLINE_RETURN_IF_ERROR(ReadStatus());
      return std::move(line_);
    }
    SYNCLINE_RETURN_IF_ERROR(ReadOption());
  }
  if (next_ < words_.size()) line_.program = words_[next_++];
  line_.arguments.assign(words_.begin() + next_, words_.end());
  return std::move(line_);
}

}  // namespace

absl::StatusOr<CommandLine> ReadCommandLine(const std::vector<std::string>& arguments) {
  return Reader(arguments).Read();
}

}  // namespace syncline::launch
