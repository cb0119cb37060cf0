#include "launch/options/man_page.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "launch/options/flags.h"
#include "launch/options/help.h"

namespace syncline::launch {
namespace {

constexpr absl::string_view kVersion = SYNCLINE_VERSION;  // From bazel/version.bzl.

// `text` as troff prints it as it is. A hyphen of an option must stay the character that users
// type, and a line must not begin with a control character.
std::string Escaped(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (!escaped.empty() && (escaped[0] == '.' || escaped[0] == '\'')) escaped.insert(0, "\\&");
  return escaped;
}

std::string Variable(const Flag& flag) {
  std::string name = absl::AsciiStrToUpper(absl::StrReplaceAll(flag.name, {{"-", "_"}}));
  return absl::StrCat("SYNCLINE_", name);
}

void AppendFlag(const Flag& flag, std::string* out) {
  absl::StrAppend(out, ".TP\n");
  if (flag.letter != '\0') absl::StrAppend(out, "\\fB\\-", std::string(1, flag.letter), "\\fR, ");
  absl::StrAppend(out, "\\fB\\-\\-", Escaped(flag.name), "\\fR");
  if (flag.takes_value()) absl::StrAppend(out, " \\fI", Escaped(flag.metavar), "\\fR");
  absl::StrAppend(out, "\n", Escaped(flag.help), ".\n");
  if (!flag.choices.empty()) {
    absl::StrAppend(out, "One of ", Escaped(absl::StrReplaceAll(flag.choices, {{"|", ", "}})),
                    ".\n");
  }
  if (!flag.variable.empty()) {
    absl::StrAppend(out, "Also by \\fB", Escaped(flag.variable), "\\fR.\n");
  }
}

constexpr absl::string_view kEnvironment = R"(.SH ENVIRONMENT
An option that is not given is looked for as
.BR SYNCLINE_OPTION ,
its name in capitals with underscores
.RB ( )";

constexpr absl::string_view kEnd = R"(for \-\-nnodes), then as
.BR PET_OPTION ,
then in the file of
.BR \-\-config ,
then in what Slurm, Open MPI, MPICH or Kubernetes say.
.TP
.B SYNCLINE_SECRET_FILE
The file with a text that all nodes of the job share: strangers who do not know it are turned away.
.PP
Workers get what PyTorch's launcher sets: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,
MASTER_PORT, TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT and others.
.SH EXIT STATUS
That of the worker that failed first, which is 128 and the number of the signal that killed it; 1 if the launcher
itself failed, 2 for a mistake in the options.
.SH EXAMPLES
.TP
Two workers on this node:
.B syncline\-run \-\-standalone \-\-nproc\-per\-node=2 train.py
.TP
The same command on each of two nodes:
.B syncline\-run \-\-nnodes=2 \-\-rdzv\-endpoint=node1 \-\-nproc\-per\-node=8 train.py
.TP
What a running job is doing:
.B syncline\-run status node1
)";

}  // namespace

std::string ManPage() {
  std::string page = absl::StrCat(
      ".TH SYNCLINE\\-RUN 1 \"\" \"Syncline ", kVersion, "\" \"User Commands\"\n",
      ".SH NAME\nsyncline\\-run \\- start and watch the workers of a distributed job\n",
      ".SH SYNOPSIS\n.B syncline\\-run\n[\\fIoptions\\fR] \\fISCRIPT\\fR "
      "[\\fIarguments\\fR]\n.br\n",
      ".B syncline\\-run status\n\\fIHOST\\fR:\\fIPORT\\fR [\\fIoptions\\fR]\n",
      ".SH DESCRIPTION\n"
      "Starts the workers of a job on this node, watches over them, and restarts them together "
      "with\n"
      "those of the job's other nodes. It takes the command lines of torchrun.\n"
      ".B status\nasks a running job how it is.\n"
      ".PP\nOptions may be written with underscores, and shortened as long as they are "
      "unambiguous.\n"
      ".SH OPTIONS\n");
  for (const auto& [group, title] : FlagGroups()) {
    absl::StrAppend(&page, ".SS ", title, "\n");
    for (const Flag& flag : AllFlags()) {
      if (flag.group == group) AppendFlag(flag, &page);
    }
  }
  absl::StrAppend(&page, kEnvironment, Variable(FlagNamed("nnodes")), "\n", kEnd);
  return page;
}

}  // namespace syncline::launch
