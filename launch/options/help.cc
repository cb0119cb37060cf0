#include "launch/options/help.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace syncline::launch {
namespace {

constexpr absl::string_view kVersion = SYNCLINE_VERSION;  // From bazel/version.bzl.
constexpr size_t kWidth = 96;
constexpr size_t kHelpColumn = 30;

constexpr std::pair<FlagGroup, absl::string_view> kTitles[] = {
    {FlagGroup::kProgram, "Program"},
    {FlagGroup::kNodes, "Nodes and workers"},
    {FlagGroup::kRendezvous, "Rendezvous"},
    {FlagGroup::kSecurity, "Encryption"},
    {FlagGroup::kFailure, "Failure and signals"},
    {FlagGroup::kOutput, "Output"},
    {FlagGroup::kMonitoring, "Monitoring"},
    {FlagGroup::kOther, "Other"},
};

// Appends `text`, of which no line but a single word exceeds kWidth, from column kHelpColumn on.
void AppendWrapped(absl::string_view text, std::string* out) {
  size_t column = kHelpColumn;
  bool first = true;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!first && column + 1 + word.size() > kWidth) {
      absl::StrAppend(out, "\n", std::string(kHelpColumn, ' '));
      column = kHelpColumn;
    } else if (!first) {
      absl::StrAppend(out, " ");
      ++column;
    }
    absl::StrAppend(out, word);
    column += word.size();
    first = false;
  }
  absl::StrAppend(out, "\n");
}

void AppendFlag(const Flag& flag, std::string* out) {
  std::string names =
      flag.letter == '\0' ? "      " : absl::StrCat("  -", std::string(1, flag.letter), ", ");
  absl::StrAppend(&names, "--", flag.name);
  if (flag.takes_value()) absl::StrAppend(&names, " ", flag.metavar);
  if (names.size() + 2 > kHelpColumn) {
    absl::StrAppend(out, names, "\n", std::string(kHelpColumn, ' '));
  } else {
    absl::StrAppend(out, names, std::string(kHelpColumn - names.size(), ' '));
  }
  AppendWrapped(flag.help, out);
}

std::string AllNames(absl::string_view prefix) {
  std::string names;
  for (const Flag& flag : AllFlags()) {
    absl::StrAppend(&names, names.empty() ? "" : " ", prefix, flag.name);
  }
  return names;
}

std::string Choices(const Flag& flag) { return absl::StrReplaceAll(flag.choices, {{"|", " "}}); }

std::string Bash() {
  std::string values;
  for (const Flag& flag : AllFlags()) {
    if (flag.choices.empty()) continue;
    absl::StrAppend(&values, "    --", flag.name, ") words='", Choices(flag), "' ;;\n");
  }
  return absl::StrCat(
      "_syncline_run() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]} words=\n"
      "  [[ $option == = ]] && option=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  [[ $current == = ]] && current=\n"
      "  case $option in\n",
      values, "    *) [[ $current == -* ]] && words='", AllNames("--"),
      "' ;;\n"
      "  esac\n"
      "  if [[ -n $words ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _syncline_run syncline-run\n");
}

std::string Zsh() {
  std::string script = "#compdef syncline-run\n_syncline_run() {\n  _arguments -S \\\n";
  for (const Flag& flag : AllFlags()) {
    const std::string help = absl::StrReplaceAll(
        flag.help, {{"[", "("}, {"]", ")"}, {":", "\\:"}, {"'", ""}, {"$", "\\$"}});
    absl::StrAppend(&script, "    '--", flag.name, flag.takes_value() ? "=" : "", "[", help, "]");
    if (flag.takes_value()) {
      const std::string values =
          flag.choices.empty() ? "_files" : absl::StrCat("(", Choices(flag), ")");
      absl::StrAppend(&script, ":value:", values);
    }
    absl::StrAppend(&script, "' \\\n");
  }
  absl::StrAppend(&script, "    '1:script:_files' '*::argument:_files'\n}\n",
                  // As a file of fpath this is the body of the completion's first call; otherwise
                  // it is evaluated, and registers it.
                  "if [ \"$funcstack[1]\" = _syncline-run ]; then _syncline_run \"$@\"\n",
                  "else compdef _syncline_run syncline-run\nfi\n");
  return script;
}

std::string Tcsh() {
  std::string script = "complete syncline-run";
  for (const Flag& flag : AllFlags()) {
    if (flag.choices.empty()) continue;
    absl::StrAppend(&script, " 'n/--", flag.name, "/(", Choices(flag), ")/'");
  }
  absl::StrAppend(&script, " 'c/--/(", AllNames(""), ")/' 'p/*/f/'\n");
  return script;
}

std::string Fish() {
  std::string script;
  for (const Flag& flag : AllFlags()) {
    absl::StrAppend(&script, "complete -c syncline-run -l ", flag.name);
    if (flag.letter != '\0') absl::StrAppend(&script, " -s ", std::string(1, flag.letter));
    if (flag.takes_value()) absl::StrAppend(&script, " -r");
    if (!flag.choices.empty()) absl::StrAppend(&script, " -f -a '", Choices(flag), "'");
    const std::string help = absl::StrReplaceAll(flag.help, {{"\\", "\\\\"}, {"'", "\\'"}});
    absl::StrAppend(&script, " -d '", help, "'\n");
  }
  return script;
}

}  // namespace

std::string Usage() { return "Usage: syncline-run [options] SCRIPT [arguments of the script]"; }

absl::Span<const std::pair<FlagGroup, absl::string_view>> FlagGroups() { return kTitles; }

std::string Version() { return absl::StrCat("syncline-run ", kVersion, "\n"); }

std::string Help() {
  std::string help =
      absl::StrCat(Usage(), "\n       syncline-run status HOST:PORT [options]\n\n",
                   "Starts the workers of a job on this node, watches over them, and restarts them "
                   "together\n",
                   "with those of the job's other nodes. `status` asks a running job how it is.\n");
  for (const auto& [group, title] : FlagGroups()) {
    absl::StrAppend(&help, "\n", title, ":\n");
    for (const Flag& flag : AllFlags()) {
      if (flag.group == group) AppendFlag(flag, &help);
    }
  }
  absl::StrAppend(&help,
                  "\nOptions may be written with underscores and shortened (--nproc). One that is "
                  "not given is\n"
                  "looked for in the environment, as SYNCLINE_<OPTION> and then as PET_<OPTION>, "
                  "in the file of\n"
                  "--config, and in what Slurm, Open MPI or Kubernetes say. A script called status "
                  "is ./status.\n"
                  "Exit code: that of the worker that failed first (128 + the number of the signal "
                  "that killed\n"
                  "it); 1 if the launcher itself failed, 2 for a mistake in the options.\n");
  return help;
}

std::string Completion(absl::string_view shell) {
  if (shell == "zsh") return Zsh();
  if (shell == "tcsh") return Tcsh();
  if (shell == "fish") return Fish();
  return Bash();
}

}  // namespace syncline::launch
