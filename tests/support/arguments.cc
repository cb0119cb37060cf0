#include "tests/support/arguments.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace syncline {
namespace {

bool Read(absl::string_view text, int* value) {
  return absl::SimpleAtoi(text, value) && *value > 0;
}
bool Read(absl::string_view text, uint32_t* value) { return absl::SimpleAtoi(text, value); }
bool Read(absl::string_view text, std::string* value) {
  *value = std::string(text);
  return true;
}

}  // namespace

void ReadArguments(int argc, char** argv, const std::map<std::string, ArgumentValue>& values) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    bool is_understood = absl::ConsumePrefix(&argument, "--");
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(argument, absl::MaxSplits('=', 1));
    const auto found = values.find(parts.first);
    is_understood =
        is_understood && found != values.end() &&
        std::visit([&](auto* value) { return Read(parts.second, value); }, found->second);
    if (is_understood) continue;
    std::string names;
    for (const auto& [name, value] : values) absl::StrAppend(&names, " --", name, "=...");
    std::fprintf(stderr, "'%s' is not understood. There are%s\n", argv[i], names.c_str());
    std::exit(1);
  }
}

}  // namespace syncline
