#include "core/join/cluster_task.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/join/cluster_store.h"
#include "core/join/init_method.h"
#include "core/testing/environments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "syncline/status.h"

namespace syncline::join {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// The task, which there must be.
ClusterTask Task(const Variables& variables) {
  const std::optional<ClusterTask> task = DetectTask(LookUpIn(variables));
  EXPECT_TRUE(task.has_value());
  return task.value_or(ClusterTask());
}

std::string Ranks(const ClusterTask& task) {
  return absl::StrCat(task.launcher, " ", task.rank, "/", task.size, ", local ", task.local_rank,
                      ", hosts ", task.hosts, task.defect);
}

TEST(ClusterTest, EachLauncherSaysWhoItsTasksAre) {
  EXPECT_EQ(Ranks(Task(Recorded("slurm_three_nodes"))), "Slurm 1/3, local 0, hosts 3");
  EXPECT_EQ(Ranks(Task(Recorded("slurm_two_tasks_on_one_node"))), "Slurm 1/2, local 1, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("slurm_one_task"))), "Slurm 0/1, local 0, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("openmpi_4_one_host"))), "Open MPI 1/2, local 1, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("openmpi_4_two_hosts"))), "Open MPI 1/2, local 0, hosts 0");
  EXPECT_EQ(Ranks(Task(Recorded("openmpi_5_two_hosts"))), "Open MPI 0/2, local 0, hosts 0");
  EXPECT_EQ(Ranks(Task(Recorded("mpich"))), "MPICH 1/2, local 1, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("pals_one_node"))), "PALS 1/2, local 1, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("pals_two_nodes"))), "PALS 3/4, local 1, hosts 0");
  EXPECT_EQ(Ranks(Task(Recorded("flux_one_node"))), "Flux 3/4, local 1, hosts 1");
  EXPECT_EQ(Ranks(Task(Recorded("flux_two_nodes"))), "Flux 3/4, local 1, hosts 2");
}

TEST(ClusterTest, NothingIsATaskWithoutALauncher) {
  EXPECT_FALSE(DetectTask(LookUpIn({})).has_value());
  EXPECT_EQ(DescribeSingleProcess(LookUpIn({})), "no launcher has started this process");
}

TEST(ClusterTest, WhatSrunHasNotStartedIsAloneInItsJob) {
  for (const char* name : {"slurm_batch_script", "slurm_salloc_shell"}) {
    EXPECT_FALSE(DetectTask(LookUpIn(Recorded(name))).has_value()) << name;
    EXPECT_THAT(DescribeSingleProcess(LookUpIn(Recorded(name))),
                HasSubstr("srun has not started it"))
        << name;
  }
  EXPECT_THAT(DescribeSingleProcess(LookUpIn(Recorded("slurm_one_task"))),
              HasSubstr("Slurm has started this process alone (SLURM_STEP_NUM_TASKS)"));
}

TEST(ClusterTest, AWorkerOfALauncherInAJobIsNoTask) {
  for (const char* name : {"TORCHELASTIC_RUN_ID", "SYNCLINE_ROUND"}) {
    EXPECT_FALSE(
        DetectTask(LookUpIn(With(Recorded("openmpi_4_one_host"), {{name, "1"}}))).has_value());
  }
}

TEST(ClusterTest, TheInnermostLauncherCounts) {
  const Variables slurm = Recorded("slurm_three_nodes");
  EXPECT_EQ(Task(With(slurm, Recorded("openmpi_4_one_host"))).launcher, "Open MPI");
  EXPECT_EQ(Task(With(slurm, Recorded("mpich"))).launcher, "MPICH");
  EXPECT_EQ(Task(With(slurm, Recorded("flux_one_node"))).launcher, "Flux");
  EXPECT_EQ(Task(With(Recorded("pals_one_node"), Recorded("mpich"))).launcher, "MPICH");
  // As `srun --mpi=pmi2` sets them.
  EXPECT_EQ(Task(With(slurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}})).launcher, "Slurm");
}

TEST(ClusterTest, AnUnknownLauncherThatSpeaksPmiIsNoWorldOfOne) {
  const ClusterTask task = Task({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(Ranks(task), "PMI 2/3, local -1, hosts 0");
  const absl::StatusOr<ClusterStore> found = StoreOfTask(task, LookUpIn({}));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->scheme, kMpiScheme);
  EXPECT_THAT(found->advice, AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("MASTER_PORT")));
}

TEST(ClusterTest, VariablesThatAreMissingOrWrongAreADefect) {
  EXPECT_EQ(Task({{"OMPI_COMM_WORLD_SIZE", "4"}}).defect, "OMPI_COMM_WORLD_RANK is not set");
  EXPECT_EQ(Task({{"PALS_RANKID", "0"}}).defect, "PMI_SIZE is not set");
  EXPECT_EQ(Task({{"FLUX_TASK_RANK", "0"}}).defect, "FLUX_JOB_SIZE is not set");
  EXPECT_EQ(Task({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}}).defect,
            "SLURM_PROCID is not set");
  EXPECT_EQ(Task(With(Recorded("mpich"), {{"PMI_RANK", "2"}})).defect,
            "PMI_RANK is '2' and PMI_SIZE is '2'");
  EXPECT_EQ(Task(With(Recorded("mpich"), {{"PMI_SIZE", "two"}})).defect,
            "PMI_RANK is '1' and PMI_SIZE is 'two'");
}

TEST(ClusterTest, JobsHaveNamesPortsAndSecretsOfTheirOwn) {
  const ClusterTask one = Task(Recorded("slurm_three_nodes"));
  const ClusterTask next = Task(With(Recorded("slurm_three_nodes"), {{"SLURM_STEP_ID", "3"}}));
  EXPECT_EQ(one.job, "slurm-1.0");
  EXPECT_EQ(next.job, "slurm-1.3");
  EXPECT_NE(PortOfJob(one.job), PortOfJob(next.job));
  EXPECT_NE(SecretOfJob(one.job), SecretOfJob(next.job));
  const Variables requeued = With(Recorded("slurm_three_nodes"), {{"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(Task(requeued).job, "slurm-1.0-r1");
}

class MeetingTest : public testing::Test {
 protected:
  static ClusterStore Find(const Variables& variables) {
    absl::StatusOr<ClusterStore> found = StoreOfTask(Task(variables), LookUpIn(variables));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : ClusterStore();
  }
  // Of tasks that have to ask MPI: what the user can do instead.
  static std::string Advice(const Variables& variables) {
    const ClusterStore found = Find(variables);
    EXPECT_EQ(found.scheme, kMpiScheme);
    return found.advice;
  }
  static std::string Refusal(const Variables& variables) {
    const absl::Status status = StoreOfTask(Task(variables), LookUpIn(variables)).status();
    EXPECT_EQ(KindOf(status), ErrorKind::kArgument) << status;
    return std::string(status.message());
  }
};

TEST_F(MeetingTest, OnOneHostItIsAFileOfTheJob) {
  for (const char* name :
       {"slurm_two_tasks_on_one_node", "openmpi_4_one_host", "pals_one_node", "flux_one_node"}) {
    const ClusterStore found = Find(Recorded(name));
    EXPECT_EQ(found.scheme, "file") << name;
    EXPECT_THAT(found.store.path, StartsWith(absl::StrCat("/tmp/syncline-", geteuid(), "/")));
  }
  const Variables slurm = Recorded("slurm_two_tasks_on_one_node");
  EXPECT_THAT(Find(slurm).store.path, HasSubstr("/slurm-2.0-"));
  EXPECT_EQ(Find(slurm).store.path, Find(With(slurm, {{"SLURM_PROCID", "0"}})).store.path);
  EXPECT_NE(Find(slurm).store.path, Find(With(slurm, {{"SLURM_JOB_ID", "7"}})).store.path);
}

TEST_F(MeetingTest, OnSeveralHostsItIsTheFirstAtAPortOfTheJob) {
  const ClusterStore slurm = Find(Recorded("slurm_three_nodes"));
  EXPECT_EQ(slurm.scheme, "tcp");
  EXPECT_EQ(slurm.store.host, "n1");
  EXPECT_EQ(slurm.store.port, PortOfJob("slurm-1.0"));
  EXPECT_EQ(slurm.store.secret, SecretOfJob("slurm-1.0"));
  EXPECT_TRUE(slurm.any_rank_serves);
  EXPECT_EQ(Find(Recorded("openmpi_4_two_hosts")).store.host, "10.0.0.5");
  EXPECT_EQ(Find(Recorded("openmpi_5_two_hosts")).store.host, "login-7");
}

TEST_F(MeetingTest, ASecretThatIsGivenReplacesThatOfTheJob) {
  const Variables variables =
      With(Recorded("slurm_three_nodes"), {{"SYNCLINE_SECRET_FILE", "/secret"}});
  EXPECT_THAT(Find(variables).store.secret, IsEmpty());
}

TEST_F(MeetingTest, ALauncherThatNamesNoHostNeedsMpiOrMasterAddr) {
  EXPECT_THAT(Advice(Recorded("flux_two_nodes")),
              AllOf(StartsWith("Flux started this process as rank 3 of 4"),
                    HasSubstr("Set MASTER_ADDR to the host of rank 0")));
  EXPECT_THAT(Advice(Recorded("pals_two_nodes")), HasSubstr("Set MASTER_ADDR"));
  const ClusterStore found = Find(With(Recorded("flux_two_nodes"), {{"MASTER_ADDR", "fluke1"}}));
  EXPECT_EQ(found.store.host, "fluke1");
  EXPECT_GE(found.store.port, 20000);
  EXPECT_FALSE(found.any_rank_serves);
  const Variables mpich =
      With(Recorded("mpich"), {{"MPI_LOCALNRANKS", "1"}, {"MASTER_ADDR", "host"}});
  EXPECT_THAT(Refusal(mpich), HasSubstr("MASTER_PORT to a free port of MASTER_ADDR"));
  EXPECT_EQ(Find(With(mpich, {{"MASTER_PORT", "4711"}})).store.port, 4711);
  EXPECT_THAT(Refusal(With(mpich, {{"MASTER_PORT", "no"}})), HasSubstr("MASTER_PORT is 'no'"));
}

TEST_F(MeetingTest, WithoutTheProcessOfMpiexecThatTasksShareMpiOrMasterAddrIsNeeded) {
  EXPECT_THAT(Advice(Recorded("mpich")), HasSubstr("Set MASTER_ADDR=127.0.0.1 and MASTER_PORT"));
  // Those of MPI_Comm_spawn share it with others.
  EXPECT_EQ(Task(With(Recorded("mpich"), {{"PMI_SPAWNED", "1"}})).ancestor, "");
  EXPECT_EQ(Task(Recorded("mpich")).ancestor, "hydra_pmi_proxy");
}

TEST_F(MeetingTest, AJobsFileIsInAFolderOfThisUserAlone) {
  const std::string folder = absl::StrCat(testing::TempDir(), "/syncline-", geteuid());
  const absl::StatusOr<std::string> path = JobFile("flux-ƒ2/x", testing::TempDir());
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, StartsWith(folder + "/flux-__2_x-"));
  struct stat info = {};
  ASSERT_EQ(stat(folder.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700);
  EXPECT_EQ(*JobFile("flux-ƒ2/x", testing::TempDir()), *path);
  EXPECT_NE(*JobFile("flux-ƒ2?x", testing::TempDir()), *path);

  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_THAT(std::string(JobFile("job", testing::TempDir()).status().message()),
              AllOf(HasSubstr("mode 0700"), HasSubstr("0755"), HasSubstr("MASTER_ADDR")));
  ASSERT_EQ(rmdir(folder.c_str()), 0);
  ASSERT_EQ(symlink("/tmp", folder.c_str()), 0);
  EXPECT_FALSE(JobFile("job", testing::TempDir()).ok());
  EXPECT_EQ(unlink(folder.c_str()), 0);
}

}  // namespace
}  // namespace syncline::join
