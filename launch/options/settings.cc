#include "launch/options/settings.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "syncline/status.h"

namespace syncline::launch {
namespace {

// Variables that an outer launcher sets for its workers: they are not the user's choice.
bool IsOfOuterJob(absl::string_view variable, const base::EnvironmentLookup& environment) {
  return variable == "SYNCLINE_MAX_RESTARTS" && environment("SYNCLINE_ROUND").has_value();
}

// Options that only make sense where they are typed.
bool IsForCommandLineOnly(absl::string_view name) {
  return name == "help" || name == "version" || name == "print-completion" ||
         name == "print-manual" || name == "make-certificates";
}

absl::Status CheckChoice(const Flag& flag, const Setting& setting) {
  if (flag.choices.empty()) return absl::OkStatus();
  const std::vector<std::string> choices = absl::StrSplit(flag.choices, '|');
  if (std::find(choices.begin(), choices.end(), setting.text) != choices.end()) {
    return absl::OkStatus();
  }
  return ArgumentError(absl::StrCat(setting.name, ": '", setting.text, "' is not known.",
                                    Suggestion(setting.text, choices)));
}

}  // namespace

std::string Setting::Describe() const {
  // A switch of the command line is as the user wrote it.
  if (layer == Layer::kCommandLine && text == "true") return name;
  return absl::StrCat(name, "=", text);
}

absl::Status Settings::Set(const Flag& flag, Setting setting) {
  if (flag.takes_value()) {
    if (setting.text.empty() && !flag.may_be_empty) {
      return ArgumentError(absl::StrCat(setting.name, "= has no value"));
    }
    SYNCLINE_RETURN_IF_ERROR(CheckChoice(flag, setting));
  } else {
    bool on = false;
    if (!absl::SimpleAtob(setting.text, &on)) {
      return ArgumentError(absl::StrCat(setting.name, "=", setting.text,
                                        ": this is a switch: 1 or true, 0 or false"));
    }
    setting.text = on ? "true" : "false";
  }
  const auto found = settings_.find(std::string(flag.name));
  if (found == settings_.end()) {
    settings_.emplace(flag.name, std::move(setting));
  } else if (found->second.layer <= setting.layer) {
    found->second = std::move(setting);
  }
  return absl::OkStatus();
}

absl::Status Settings::AddEnvironment(const base::EnvironmentLookup& environment) {
  for (const Flag& flag : AllFlags()) {
    if (IsForCommandLineOnly(flag.name)) continue;
    const std::string upper = absl::AsciiStrToUpper(absl::StrReplaceAll(flag.name, {{"-", "_"}}));
    const std::pair<std::string, Layer> variables[] = {
        {std::string(flag.variable), Layer::kPetVariable},
        {absl::StrCat("PET_", upper), Layer::kPetVariable},
        {absl::StrCat("SYNCLINE_", upper), Layer::kVariable},
    };
    for (const auto& [variable, layer] : variables) {
      if (variable.empty() || IsOfOuterJob(variable, environment)) continue;
      const std::optional<std::string> value = environment(variable);
      if (!value.has_value() || value->empty()) continue;
      // A stronger layer overrides it anyway, so it need not be valid.
      const Setting* present = Find(flag.name);
      if (present != nullptr && present->layer > layer) continue;
      SYNCLINE_RETURN_IF_ERROR(Set(flag, Setting{*value, layer, variable}));
    }
  }
  return absl::OkStatus();
}

const Setting* Settings::Find(absl::string_view name) const {
  const auto found = settings_.find(std::string(name));
  return found == settings_.end() ? nullptr : &found->second;
}

const Setting* Settings::Given(absl::string_view name) const {
  const Setting* setting = Find(name);
  return setting != nullptr && setting->layer > Layer::kCluster ? setting : nullptr;
}

std::string Settings::Text(absl::string_view name, absl::string_view default_value) const {
  const Setting* setting = Find(name);
  return setting == nullptr ? std::string(default_value) : setting->text;
}

std::string Settings::Name(absl::string_view name) const {
  const Setting* setting = Find(name);
  return setting == nullptr ? absl::StrCat("--", name) : setting->name;
}

bool Settings::IsOn(absl::string_view name) const { return Text(name, "false") == "true"; }

absl::Status Settings::ResolveConflict(absl::string_view one, absl::string_view other,
                                       absl::string_view why, std::vector<std::string>* notes) {
  const Setting& a = *Find(one);
  const Setting& b = *Find(other);
  if (a.layer == b.layer) {
    return ArgumentError(absl::StrCat(a.Describe(), " and ", b.Describe(),
                                      " exclude each other: ", why, ". Leave one out"));
  }
  const bool keep_first = a.layer > b.layer;
  if (std::min(a.layer, b.layer) > Layer::kCluster) {
    notes->push_back(absl::StrCat((keep_first ? b : a).Describe(), " does not count beside ",
                                  (keep_first ? a : b).Describe(), ": ", why));
  }
  Drop(keep_first ? other : one);
  return absl::OkStatus();
}

}  // namespace syncline::launch
