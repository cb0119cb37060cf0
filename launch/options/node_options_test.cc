// Nodes, rendezvous and `status`.
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/option_values.h"
#include "launch/options/parse_for_tests.h"
#include "launch/options/rendezvous_conf.h"
#include "store/common/listen_address.h"

namespace syncline::launch {
namespace {

using store::JoinHostPort;

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Backend = RendezvousOptions::Backend;

const Arguments kC10d = {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1"};

Arguments With(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("a.py");
  return arguments;
}

TEST(NodeOptionsTest, AJobOfOneNodeNeedsNothing) {
  const LaunchOptions options = Good({"a.py"});
  EXPECT_EQ(options.nodes.min, 1);
  EXPECT_EQ(options.nodes.max, 1);
  EXPECT_EQ(options.node_rank, -1);
  EXPECT_EQ(options.rendezvous.host, "");
  EXPECT_EQ(options.rendezvous.port, 0);
  EXPECT_EQ(options.rendezvous.id, "");
  EXPECT_EQ(Good({"--nnodes=1:1", "--node-rank=0", "a.py"}).nodes.max, 1);
  EXPECT_EQ(Good({"--rdzv-endpoint=localhost:4711", "a.py"}).rendezvous.port, 4711);
  EXPECT_EQ(Good({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost", "a.py"}).rendezvous.port, 0);
}

TEST(NodeOptionsTest, NodesAreANumberOrARange) {
  const LaunchOptions options = Good(With({"--nnodes=2:4"}, {"--rdzv-endpoint=node1"}));
  EXPECT_EQ(options.nodes.min, 2);
  EXPECT_EQ(options.nodes.max, 4);
  for (const char* bad : {"0", "-1", "one", "4:1", "1:", ":2", "1:2:3", "999999"}) {
    EXPECT_THAT(Error({"--nnodes", bad, "a.py"}), HasSubstr(absl::StrCat("--nnodes: '", bad)));
  }
  EXPECT_THAT(Error({"--node-rank=1", "a.py"}), HasSubstr("with one node its rank is 0"));
  EXPECT_THAT(Error(With(kC10d, {"--node-rank=2"})), HasSubstr("ranks are 0 to 1"));
  EXPECT_EQ(Good(With(kC10d, {"--node-rank=1"})).node_rank, 1);
}

TEST(NodeOptionsTest, C10dMeetsAtItsEndpoint) {
  const LaunchOptions options = Good(With(kC10d, {}));
  EXPECT_EQ(options.rendezvous.backend, Backend::kC10d);
  EXPECT_EQ(options.rendezvous.host, "node1");
  EXPECT_EQ(options.rendezvous.port, 29400);
  EXPECT_EQ(options.rendezvous.id, "none");
  EXPECT_THAT(Error({"--nnodes=2", "--rdzv-backend=c10d", "a.py"}),
              HasSubstr("--rdzv-endpoint is missing"));
  EXPECT_THAT(Error({"--nnodes=2", "--rdzv-endpoint=node1:0", "a.py"}),
              HasSubstr("the other nodes cannot find a port"));
}

TEST(NodeOptionsTest, AnEndpointWithoutRanksMeansC10d) {
  EXPECT_EQ(Good({"--nnodes=2", "--rdzv-endpoint=h", "a.py"}).rendezvous.backend, Backend::kC10d);
  EXPECT_EQ(Good({"--nnodes=2", "--node-rank=1", "--rdzv-endpoint=h", "a.py"}).rendezvous.backend,
            Backend::kStatic);
}

TEST(NodeOptionsTest, EndpointsMayBeIPv6) {
  const auto at = [](const std::string& text) { return *ParseEndpoint("x", text); };
  EXPECT_EQ(at("[fd00::1]:80").host, "fd00::1");
  EXPECT_EQ(at("[fd00::1]:80").port, 80);
  EXPECT_EQ(at("fd00::1").host, "fd00::1");
  EXPECT_EQ(at("fd00::1").port, -1);
  EXPECT_EQ(at("[::1]").host, "::1");
  EXPECT_EQ(at("h:").port, -1);
  EXPECT_EQ(JoinHostPort("::1", 5), "[::1]:5");
  EXPECT_EQ(JoinHostPort("h", 5), "h:5");
  for (const char* bad : {"http://h:1", ":80", "[::1", "::1]:5", "a b"}) {
    EXPECT_FALSE(ParseEndpoint("x", bad).ok()) << bad;
  }
  EXPECT_THAT(Error({"--rdzv-endpoint=h:http", "a.py"}), HasSubstr("'http'"));
  EXPECT_THAT(Error({"--rdzv-endpoint=h:65536", "a.py"}), HasSubstr("65536"));
}

TEST(NodeOptionsTest, StaticTakesRanksAndThePlaceOfNode0) {
  const LaunchOptions options =
      Good({"--nnodes=2", "--node-rank=1", "--master-addr=node0", "a.py"});
  EXPECT_EQ(options.rendezvous.backend, Backend::kStatic);
  EXPECT_EQ(options.rendezvous.host, "node0");
  EXPECT_EQ(options.rendezvous.port, 29500);
  EXPECT_EQ(options.master_addr, "node0");
  EXPECT_EQ(options.master_port, 0);
  EXPECT_EQ(Good({"--nnodes=2", "--node-rank=1", "--master-addr=node0", "--master-port=7", "a.py"})
                .rendezvous.port,
            7);
  EXPECT_THAT(Error({"--nnodes=2", "--master-addr=h", "a.py"}),
              HasSubstr("--node-rank is missing"));
  EXPECT_THAT(Error({"--nnodes=2", "a.py"}), HasSubstr("nothing says where the nodes meet"));
  EXPECT_THAT(Error({"--nnodes=2:3", "--node-rank=1", "--master-addr=h", "a.py"}),
              HasSubstr("--nnodes=2:3 and the backend static exclude each other"));
}

TEST(NodeOptionsTest, TheWorkersPortIsTheMasterPortWhereTheStoreHasItsOwn) {
  EXPECT_EQ(Good({"--master-port=7", "a.py"}).master_port, 7);
  const LaunchOptions options = Good(With(kC10d, {"--master-port=7", "--master-addr=m"}));
  EXPECT_EQ(options.master_port, 7);
  EXPECT_EQ(options.master_addr, "m");
  EXPECT_EQ(options.rendezvous.port, 29400);
}

TEST(NodeOptionsTest, EtcdHasItsOwnPortAndNeedsAnId) {
  const Arguments etcd = {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e"};
  const LaunchOptions options = Good(With(etcd, {"--rdzv-id=j"}));
  EXPECT_EQ(options.rendezvous.backend, Backend::kEtcd);
  EXPECT_EQ(options.rendezvous.port, 2379);
  EXPECT_THAT(options.notes, IsEmpty());
  EXPECT_THAT(Error(With(etcd, {})), HasSubstr("--rdzv-id is missing"));
  EXPECT_THAT(Error({"--rdzv-backend=etcd", "a.py"}), HasSubstr("--rdzv-endpoint is missing"));
  EXPECT_THAT(Good(With(etcd, {"--rdzv-id=j", "--rdzv-backend=etcd-v2"})).notes,
              ElementsAre(HasSubstr("version 3")));
  EXPECT_THAT(Error({"--rdzv-backend=etc", "a.py"}), HasSubstr("Did you mean 'etcd'?"));
}

TEST(NodeOptionsTest, AFileMayBeAskedForInTwoWays) {
  const Arguments common = {"--nnodes=2", "--rdzv-id=j", "--rdzv-endpoint=/shared/job"};
  for (const Arguments& arguments :
       {With(common, {"--rdzv-backend=file"}),
        With(common, {"--rdzv-backend=c10d", "--rdzv-conf=join_timeout=5,store_type=file"})}) {
    const LaunchOptions options = Good(arguments);
    EXPECT_EQ(options.rendezvous.backend, Backend::kFile);
    EXPECT_EQ(options.rendezvous.path, "/shared/job");
  }
}

TEST(NodeOptionsTest, AnIdMustBeAbleToNameAFolder) {
  EXPECT_EQ(Good({"--rdzv-id=job7", "a.py"}).rendezvous.id, "job7");
  EXPECT_THAT(Error({"--rdzv-id=a/b", "a.py"}), HasSubstr("without '/'"));
  EXPECT_THAT(Error({"--rdzv-id=..", "a.py"}), HasSubstr("without '/'"));
}

TEST(NodeOptionsTest, StandaloneContradictsAPlaceToMeet) {
  EXPECT_EQ(Good({"--standalone", "--nnodes=1", "--node-rank=0", "--rdzv-id=j",
                  "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "a.py"})
                .rendezvous.id,
            "j");
  EXPECT_THAT(Error({"--standalone", "--nnodes=2", "a.py"}),
              HasSubstr("--standalone and --nnodes=2 exclude each other"));
  EXPECT_THAT(Error({"--rdzv-endpoint=h:1", "--standalone", "a.py"}),
              HasSubstr("--standalone and --rdzv-endpoint=h:1 exclude each other"));
  EXPECT_THAT(Error({"--rdzv-backend=etcd", "--standalone", "a.py"}), HasSubstr("exclude"));
  EXPECT_THAT(Error({"--node-rank=1", "--standalone", "a.py"}), HasSubstr("exclude"));
}

TEST(NodeOptionsTest, TheStrongerOfTwoContradictorySourcesWinsAndSaysSo) {
  const LaunchOptions options =
      Good({"--standalone", "a.py"}, {{"PET_NNODES", "4"}, {"PET_RDZV_ENDPOINT", "h:1"}});
  EXPECT_EQ(options.nodes.max, 1);
  EXPECT_EQ(options.rendezvous.host, "");
  EXPECT_THAT(options.notes,
              ElementsAre(HasSubstr("PET_NNODES=4 does not count beside --standalone"),
                          HasSubstr("PET_RDZV_ENDPOINT=h:1 does not count")));
}

TEST(NodeOptionsTest, EveryTimeOfTheRendezvousCanBeSet) {
  const RendezvousOptions r =
      Good(With(kC10d, {"--rdzv-conf=join_timeout=1,last_call_timeout=2, close_timeout=3,"
                        "read_timeout=4,heartbeat_timeout=5,keep_alive_interval=0.25,"
                        "keep_alive_max_attempt=7,scale_up_delay=6,restart_backoff=0.5,"
                        "is_host=true"}))
          .rendezvous;
  EXPECT_EQ(r.join_timeout, absl::Seconds(1));
  EXPECT_EQ(r.last_call_timeout, absl::Seconds(2));
  EXPECT_EQ(r.close_timeout, absl::Seconds(3));
  EXPECT_EQ(r.read_timeout, absl::Seconds(4));
  EXPECT_EQ(r.heartbeat_timeout, absl::Seconds(5));
  EXPECT_EQ(r.keep_alive_interval, absl::Milliseconds(250));
  EXPECT_EQ(r.keep_alive_max_attempt, 7);
  EXPECT_EQ(r.scale_up_delay, absl::Seconds(6));
  EXPECT_EQ(r.restart_backoff, absl::Seconds(0.5));
  EXPECT_EQ(
      Good({"--rdzv-conf=restart_backoff=0,scale_up_delay=0", "a.py"}).rendezvous.restart_backoff,
      absl::ZeroDuration());
  EXPECT_EQ(r.hosting, RendezvousOptions::Hosting::kAlways);
  EXPECT_EQ(Good(With(kC10d, {"--rdzv-conf=is_host=0"})).rendezvous.hosting,
            RendezvousOptions::Hosting::kNever);
}

TEST(NodeOptionsTest, WrongDetailsOfTheRendezvousAreErrors) {
  const auto error = [](const std::string& conf) {
    return Error(With(kC10d, {"--rdzv-conf=" + conf}));
  };
  EXPECT_THAT(error("joint_timeout=3"), HasSubstr("Did you mean 'join_timeout'?"));
  EXPECT_THAT(error("qqqqq=3"), HasSubstr("It is one of join_timeout, last_call_timeout"));
  EXPECT_THAT(error("timeout=900"), AllOf(HasSubstr("join_timeout"), HasSubstr("read_timeout")));
  EXPECT_THAT(error("ca_cert=x"), HasSubstr("'ca_cert' is for --rdzv-backend=etcd"));
  EXPECT_THAT(error("join_timeout=soon"), HasSubstr("join_timeout: 'soon' is no number"));
  EXPECT_THAT(error("join_timeout=0"), HasSubstr("must be more than 0"));
  EXPECT_THAT(error("scale_up_delay=-1"), HasSubstr("scale_up_delay: '-1' is no number"));
  EXPECT_THAT(error("restart_backof=1"), HasSubstr("Did you mean 'restart_backoff'?"));
  EXPECT_THAT(error("keep_alive_max_attempt=0"), HasSubstr("'0' is not a number from 1"));
  EXPECT_THAT(error("keep_alive_max_attempt=1"),
              HasSubstr("keep_alive_max_attempt=1: one sign of life that comes late"));
  EXPECT_THAT(error("keep_alive_interval=0.01"),
              AllOf(HasSubstr("a node would be lost after 100ms"), HasSubstr("at least 500ms")));
  EXPECT_THAT(error("is_host=perhaps"), HasSubstr("neither true nor false"));
  EXPECT_THAT(error("store_type=hash"), HasSubstr("'hash' is not known"));
  for (const char* bad : {"join_timeout", "join_timeout=", "=3"}) {
    EXPECT_THAT(error(bad), HasSubstr("each part needs a key"));
  }
}

TEST(NodeOptionsTest, EtcdTakesCertificatesAndAUser) {
  const auto arguments = [](const std::string& conf) {
    return With({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e", "--rdzv-id=j"},
                {"--rdzv-conf=" + conf});
  };
  const RendezvousOptions::Etcd etcd =
      Good(arguments("protocol=https,cacert=c,ssl_cert=d,key=e,user=u,password=a=b,prefix=/p"))
          .rendezvous.etcd;
  EXPECT_EQ(etcd.ca_cert, "c");
  EXPECT_EQ(etcd.cert, "d");
  EXPECT_EQ(etcd.key, "e");
  EXPECT_EQ(etcd.user, "u");
  EXPECT_EQ(etcd.password, "a=b");
  EXPECT_EQ(etcd.prefix, "/p");
  EXPECT_THAT(Error(arguments("cert=d")), HasSubstr("cert and key go together"));
  EXPECT_THAT(Error(arguments("protocol=https")), HasSubstr("needs ca_cert"));
  EXPECT_THAT(Error(arguments("password=d")), HasSubstr("password needs user"));
  EXPECT_EQ(Good(arguments("timeout=900")).rendezvous.join_timeout, absl::Seconds(900));
}

TEST(NodeOptionsTest, APasswordMayHaveCommasAndComeFromAFile) {
  const auto arguments = [](const std::string& conf) {
    return With({"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=e", "--rdzv-id=j"},
                {"--rdzv-conf=user=u," + conf});
  };
  const auto password = [&](const std::string& conf) {
    return Good(arguments(conf)).rendezvous.etcd.password;
  };
  EXPECT_EQ(password(R"(password="a,b",prefix=/p)"), "a,b");
  EXPECT_EQ(password(R"(prefix=/p,password="a"",""b")"), "a\",\"b");
  EXPECT_EQ(password(R"(password=a"b)"), "a\"b");
  EXPECT_EQ(password(R"(password=a="b)"), "a=\"b");
  for (const char* value : {"a", "a,b", "\"", "\"a\"", ",", "a=\",\"", "\"\",\"\""}) {
    EXPECT_EQ(password(absl::StrCat("password=", QuoteConfValue(value), ",prefix=/p")), value);
  }
  for (const char* bad : {R"(password="a,b)", R"(password="a"b)", R"(password=")"}) {
    const std::string error = Error(arguments(bad));
    EXPECT_THAT(error, HasSubstr("the quotes of the value"));
    EXPECT_THAT(error, Not(HasSubstr("a,b")));
  }
  const std::string path = absl::StrCat(testing::TempDir(), "/password_", getpid());
  std::ofstream(path) << "a,b \"c\"\nnot this\n";
  EXPECT_EQ(password("password_file=" + path), "a,b \"c\"");
  EXPECT_THAT(Error(arguments("password=x,password_file=" + path)),
              HasSubstr("exclude each other"));
  std::ofstream(path, std::ios::trunc).flush();
  EXPECT_THAT(Error(arguments("password_file=" + path)), HasSubstr("it is empty"));
  unlink(path.c_str());
  EXPECT_THAT(Error(arguments("password_file=" + path)), HasSubstr("No such file"));
  EXPECT_THAT(Error(arguments("password_file=/dev/zero")), HasSubstr("not a regular file"));
}

TEST(NodeOptionsTest, EveryDocumentedKeyIsTaken) {
  for (const RendezvousKey& key : RendezvousKeys()) {
    RendezvousOptions options;
    options.backend = key.backends == "c10d" ? Backend::kC10d
                      : key.backends.empty() ? Backend::kStatic
                                             : Backend::kEtcd;
    absl::Status status;
    for (const char* value : {"1", "2", "tcp", "http"}) {
      status = ReadRendezvousConf("x", absl::StrCat(key.name, "=", value), &options);
      if (status.ok()) break;
    }
    const bool needs_another = key.name == "cert" || key.name == "key" || key.name == "password" ||
                               key.name == "password_file";
    EXPECT_EQ(status.ok(), !needs_another) << status;
  }
}

TEST(NodeOptionsTest, StatusAsksARunningJob) {
  const LaunchOptions options = Good({"status", "node1", "--rdzv-id=j"});
  EXPECT_EQ(options.status_endpoint, "node1:29400");
  EXPECT_EQ(options.rendezvous.backend, Backend::kC10d);
  EXPECT_EQ(options.rendezvous.id, "j");
  EXPECT_EQ(Good({"--rdzv-id", "j", "status", "[::1]:7"}).status_endpoint, "[::1]:7");
  EXPECT_EQ(Good({"status", "e", "--rdzv-backend=etcd", "--rdzv-id=j"}).status_endpoint, "e:2379");
  EXPECT_EQ(options.status_format, LaunchOptions::StatusFormat::kTable);
  EXPECT_EQ(Good({"status", "h", "--json"}).status_format, LaunchOptions::StatusFormat::kJson);
  EXPECT_THAT(Error({"--json", "a.py"}), HasSubstr("--json is for the question status"));
  EXPECT_THAT(Error({"status"}), HasSubstr("of which job?"));
  EXPECT_THAT(Error({"status", "h:1", "a"}), HasSubstr("./status"));
}

TEST(NodeOptionsTest, AProgramCalledStatusCanBeStarted) {
  EXPECT_EQ(Good({"./status", "x"}).program, "./status");
  EXPECT_EQ(Good({"--no-python", "--", "status", "x"}).program, "status");
  EXPECT_EQ(Good({"--", "status", "x"}).status_endpoint, "");
}

}  // namespace
}  // namespace syncline::launch
