#include "launch/options/config_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launch/options/flags.h"
#include "launch/options/rendezvous_conf.h"
#include "syncline/status.h"
#include "toml++/toml.h"

namespace syncline::launch {
namespace {

// The same text that the command line would have.
bool MayStandInFile(absl::string_view name) {
  return name != "help" && name != "version" && name != "print-completion" &&
         name != "print-manual" && name != "make-certificates" && name != "config";
}

absl::StatusOr<const Flag*> FlagOfKey(absl::string_view where, absl::string_view key) {
  const std::string dashed = absl::StrReplaceAll(key, {{"_", "-"}});
  std::vector<std::string> names;
  for (const Flag& flag : AllFlags()) {
    if (!MayStandInFile(flag.name)) continue;
    if (flag.name == dashed) return &flag;
    names.push_back(std::string(flag.name));
  }
  const std::string nearest = NearestMatch(dashed, names);
  return ArgumentError(absl::StrCat(where, ": there is no option '", key, "'. ",
                                    nearest.empty()
                                        ? "Keys are the names of options; see --help"
                                        : absl::StrCat("Did you mean '", nearest, "'?")));
}

absl::StatusOr<std::string> ScalarText(absl::string_view where, const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* number = node.as_integer()) return absl::StrCat(number->get());
  if (const auto* number = node.as_floating_point()) return absl::StrCat(number->get());
  if (const auto* on = node.as_boolean()) return std::string(on->get() ? "true" : "false");
  return ArgumentError(absl::StrCat(where, ": must be a text, a number, true or false"));
}

absl::StatusOr<std::string> ListText(absl::string_view where, const toml::array& list) {
  std::vector<std::string> texts;
  for (const toml::node& element : list) {
    SYNCLINE_ASSIGN_OR_RETURN(texts.emplace_back(), ScalarText(where, element));
  }
  return absl::StrJoin(texts, ",");
}

absl::StatusOr<std::string> TableText(absl::string_view where, const toml::table& table) {
  std::vector<std::string> texts;
  for (const auto& [key, value] : table) {
    SYNCLINE_ASSIGN_OR_RETURN(const std::string text,
                              ScalarText(absl::StrCat(where, ".", std::string(key.str())), value));
    texts.push_back(absl::StrCat(std::string(key.str()), "=", QuoteConfValue(text)));
  }
  return absl::StrJoin(texts, ",");
}

}  // namespace

absl::Status AddConfigText(absl::string_view text, absl::string_view path, Settings* settings) {
  const toml::parse_result parsed = toml::parse(std::string_view(text.data(), text.size()));
  if (!parsed) {
    const toml::parse_error& error = parsed.error();
    return ArgumentError(absl::StrCat(path, ":", error.source().begin.line,
                                      ": not TOML: ", std::string(error.description())));
  }
  for (const auto& [key, value] : parsed.table()) {
    const std::string name(key.str());
    const std::string location = absl::StrCat(path, ":", key.source().begin.line);
    SYNCLINE_ASSIGN_OR_RETURN(const Flag* flag, FlagOfKey(location, name));
    const std::string where = absl::StrCat(location, ": ", name);
    absl::StatusOr<std::string> taken = value.is_array() ? ListText(where, *value.as_array())
                                        : value.is_table() && flag->name == "rdzv-conf"
                                            ? TableText(where, *value.as_table())
                                            : ScalarText(where, value);
    if (!taken.ok()) return taken.status();
    SYNCLINE_RETURN_IF_ERROR(
        settings->Set(*flag, Setting{*std::move(taken), Layer::kConfigFile, where}));
  }
  return absl::OkStatus();
}

absl::Status AddConfigFile(const std::string& path, Settings* settings) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) {
    return ArgumentError(absl::StrCat("the file of ", settings->Find("config")->Describe(),
                                      " cannot be read: ", std::strerror(errno)));
  }
  return AddConfigText(text.str(), path, settings);
}

}  // namespace syncline::launch
