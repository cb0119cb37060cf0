#include "launch/options/flags.h"

namespace syncline::launch {
namespace {

using G = FlagGroup;

// In the order of --help. An option of torchrun keeps its name and its meaning.
constexpr Flag kFlags[] = {
    {"module", 'm', G::kProgram, "", "SCRIPT is the name of a Python module, as in python -m", "",
     ""},
    {"no-python", 0, G::kProgram, "", "SCRIPT is a program to be run without Python", "", ""},
    {"run-path", 0, G::kProgram, "", "Run SCRIPT through runpy.run_path", "", ""},

    {"standalone", 0, G::kNodes, "", "A job of this node alone, whatever the cluster says", "", ""},
    {"nnodes", 0, G::kNodes, "MIN[:MAX]", "Number of nodes, or a range for an elastic job (1)", "",
     ""},
    {"nproc-per-node", 0, G::kNodes, "N",
     "Workers of this node: a number, auto (one per GPU, or per CPU if there is none), cpu or gpu "
     "(1)",
     "", ""},
    {"node-rank", 0, G::kNodes, "RANK", "Rank of this node, from 0; static needs it", "", ""},
    {"role", 0, G::kNodes, "NAME", "Role of this node's workers (default)", "", ""},
    {"local-addr", 0, G::kNodes, "ADDR", "Address of this node for the others; otherwise found out",
     "", ""},
    {"master-addr", 0, G::kNodes, "ADDR",
     "MASTER_ADDR of the workers; with static on several nodes, where node 0 is", "", ""},
    {"master-port", 0, G::kNodes, "PORT",
     "MASTER_PORT of the workers, 0: a free one (0); with static on several nodes, the port at "
     "which node 0 serves the rendezvous (29500)",
     "", ""},
    {"numa-binding", 0, G::kNodes, "HOW",
     "Bind each worker to CPUs: node, socket, exclusive or core-complex",
     "node|socket|exclusive|core-complex", ""},
    {"virtual-local-rank", 0, G::kNodes, "", "Every worker sees LOCAL_RANK 0, and its own GPU only",
     "", ""},
    {"start-method", 0, G::kNodes, "HOW", "Accepted for compatibility, without effect",
     "spawn|fork|forkserver", ""},

    {"rdzv-backend", 0, G::kRendezvous, "NAME",
     "How nodes find each other: static, c10d, etcd or file", "static|c10d|etcd|etcd-v2|file", ""},
    {"rdzv-endpoint", 0, G::kRendezvous, "HOST[:PORT]",
     "Where they meet (port 29400 for c10d, 2379 for etcd); a path for file", "", ""},
    {"rdzv-id", 0, G::kRendezvous, "ID",
     "Name of the job, the same on all its nodes; etcd and file need it on several nodes", "", ""},
    {"rdzv-conf", 0, G::kRendezvous, "KEY=VALUE,...",
     "Details: join_timeout, last_call_timeout, close_timeout, read_timeout, is_host, ...; all in "
     "docs/launcher.md",
     "", ""},

    {"tls", 0, G::kSecurity, "HOW",
     "Encrypt what processes of the job send to each other: off, secret (with a key from "
     "SYNCLINE_SECRET_FILE's), certificates, or throw-away (certificates that end with the job, on "
     "one node) (off)",
     "off|secret|certificates|throw-away", ""},
    {"tls-cert", 0, G::kSecurity, "FILE",
     "Certificate of this node, and those that lead from it to an authority (PEM)", "", ""},
    {"tls-key", 0, G::kSecurity, "FILE", "Its private key (PEM)", "", ""},
    {"tls-ca", 0, G::kSecurity, "FILE", "Certificates of the authorities that are trusted (PEM)",
     "", ""},
    {"tls-peer-name", 0, G::kSecurity, "NAME",
     "Name that all certificates of the job must have; otherwise that of the host", "", ""},
    {"make-certificates", 0, G::kSecurity, "DIR",
     "Write new certificates for the nodes of a job to DIR, and start nothing", "", ""},

    {"max-restarts", 0, G::kFailure, "N", "How often all workers are restarted after a failure (0)",
     "", ""},
    {"health-timeout", 0, G::kFailure, "SECONDS",
     "A worker whose heartbeat is older has failed (off)", "", ""},
    {"shutdown-timeout", 0, G::kFailure, "SECONDS",
     "Time of workers between a stop signal and SIGKILL (30)", "",
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {"failure-grace", 0, G::kFailure, "SECONDS",
     "Time of the other workers between SIGTERM and SIGKILL after a failure, or when a round ends; "
     "at most --shutdown-timeout (1)",
     "", ""},
    {"signals-to-handle", 0, G::kFailure, "NAMES",
     "Signals that stop the job (SIGTERM,SIGINT,SIGHUP,SIGQUIT)", "", ""},
    {"signals-to-forward", 0, G::kFailure, "NAMES",
     "Signals that are passed on to the workers, and stop nothing; none: no signal "
     "(SIGUSR1,SIGUSR2)",
     "", "", true},
    {"monitor-interval", 0, G::kFailure, "SECONDS",
     "Accepted for compatibility: workers are watched without an interval", "", ""},

    {"log-dir", 0, G::kOutput, "DIR",
     "Write output to DIR/<id>/attempt_<n>/<local rank>/{stdout,stderr}.log; without -r and -t: "
     "as well as to the console",
     "", ""},
    {"redirects", 'r', G::kOutput, "STREAMS",
     "Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both; per local rank: 0:1,1:2",
     "", ""},
    {"tee", 't', G::kOutput, "STREAMS", "Streams that go to files and to the console, as for -r",
     "", ""},
    {"local-ranks-filter", 0, G::kOutput, "RANKS",
     "Show only these local ranks on the console, as in 0,2", "", ""},
    {"duplicate-stdout-filters", 0, G::kOutput, "TEXTS",
     "Lines of stdout that contain one of these go to filtered_stdout.log too", "", ""},
    {"duplicate-stderr-filters", 0, G::kOutput, "TEXTS",
     "Lines of stderr that contain one of these go to filtered_stderr.log too", "", ""},
    {"log-line-prefix-template", 0, G::kOutput, "TEXT",
     "In front of each line: text with ${role_name}, ${rank} and ${local_rank}", "",
     "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {"no-prefix", 0, G::kOutput, "", "Show the lines of workers as they are, without a prefix", "",
     ""},
    {"interactive", 0, G::kOutput, "RANK",
     "Give the worker of this rank the terminal: its input and output are the launcher's", "", ""},
    {"log-rotate-size", 0, G::kOutput, "SIZE",
     "Start a new file of a log at this size, as in 64M (never)", "", ""},
    {"log-rotate-keep", 0, G::kOutput, "N", "How many older files of each log stay (5)", "", ""},
    {"logs-specs", 0, G::kOutput, "NAME", "Accepted for compatibility: default only", "default",
     ""},

    {"status-line", 0, G::kMonitoring, "WHEN",
     "One line about the job on the terminal: auto, always or never (auto)", "auto|always|never",
     ""},
    {"event-log", 0, G::kMonitoring, "FILE", "Append what happens to FILE, as lines of JSON", "",
     ""},
    {"metrics-port", 0, G::kMonitoring, "PORT",
     "Serve metrics for Prometheus, 0: at a free port (off)", "", ""},
    {"event-log-handler", 0, G::kMonitoring, "NAME",
     "null, or console: events as by --event-log, on stderr (null)", "null|console", ""},
    {"json", 0, G::kMonitoring, "", "With status: the answer as JSON", "", ""},

    {"config", 0, G::kOther, "FILE", "Take options from a TOML file, each by its name", "", ""},
    {"dry-run", 0, G::kOther, "", "Explain what would run, and start nothing", "", ""},
    {"print-completion", 0, G::kOther, "SHELL", "Print completions for bash, zsh, tcsh or fish",
     "bash|zsh|tcsh|fish", ""},
    {"print-manual", 0, G::kOther, "", "Print the manual page, for man(1)", "", ""},
    {"version", 0, G::kOther, "", "Print the version", "", ""},
    {"help", 'h', G::kOther, "", "Print this", "", ""},
};

}  // namespace

absl::Span<const Flag> AllFlags() { return kFlags; }

}  // namespace syncline::launch
