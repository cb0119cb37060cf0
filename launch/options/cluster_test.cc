#include "launch/options/cluster.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/testing/environments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launch/options/parse_for_tests.h"

namespace syncline::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;
using Backend = RendezvousOptions::Backend;

TEST(ClusterTest, NoClusterProposesNothing) {
  EXPECT_FALSE(DetectCluster(LookUpIn({})).has_value());
  EXPECT_EQ(Good({"a.py"}).nodes.max, 1);
}

TEST(ClusterTest, ATaskOfSrunIsANodeOfTheJob) {
  const LaunchOptions options = Good({"a.py"}, Recorded("slurm_three_nodes"));
  EXPECT_EQ(options.nodes.min, 3);
  EXPECT_EQ(options.nodes.max, 3);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.workers, 1);
  EXPECT_EQ(options.rendezvous.backend, Backend::kC10d);
  EXPECT_EQ(options.rendezvous.id, "slurm-1.0");
  EXPECT_EQ(options.rendezvous.host, "n1");
  EXPECT_GE(options.rendezvous.port, 20000);
  EXPECT_LT(options.rendezvous.port, 30000);
}

TEST(ClusterTest, TwoStepsOfOneSlurmJobDoNotMeet) {
  const LaunchOptions one = Good({"a.py"}, Recorded("slurm_three_nodes"));
  const LaunchOptions other =
      Good({"a.py"}, With(Recorded("slurm_three_nodes"), {{"SLURM_STEP_ID", "3"}}));
  EXPECT_NE(one.rendezvous.id, other.rendezvous.id);
  EXPECT_NE(one.rendezvous.port, other.rendezvous.port);
}

TEST(ClusterTest, TasksOfSlurmMayShareAHost) {
  const LaunchOptions options =
      Good({"--nproc-per-node=auto", "a.py"}, Recorded("slurm_two_tasks_on_one_node"));
  EXPECT_EQ(options.nodes.max, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous.host, "127.0.0.1");
  EXPECT_EQ(options.workers, 2);  // SLURM_CPUS_PER_TASK.
}

TEST(ClusterTest, OneTaskOfSlurmIsAJobOfOneNodeWithAllItsGpus) {
  const Variables variables = With(Recorded("slurm_one_task"), {{"SLURM_GPUS_ON_NODE", "8"}});
  const LaunchOptions options = Good({"a.py"}, variables);
  EXPECT_EQ(options.nodes.max, 1);
  EXPECT_EQ(options.workers, 8);
  EXPECT_EQ(options.rendezvous.id, "slurm-3.0");
  EXPECT_EQ(options.rendezvous.host, "");
  EXPECT_EQ(Good({"--nproc-per-node=2", "a.py"}, variables).workers, 2);
}

TEST(ClusterTest, WithoutSrunALauncherIsAlone) {
  EXPECT_EQ(Good({"a.py"}, Recorded("slurm_batch_script")).nodes.max, 1);
  EXPECT_EQ(Good({"a.py"}, Recorded("slurm_salloc_shell")).nodes.max, 1);
}

TEST(ClusterTest, ARequeuedSlurmJobGetsANewId) {
  const Variables variables = With(Recorded("slurm_three_nodes"), {{"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(Good({"a.py"}, variables).rendezvous.id, "slurm-1.0-r1");
}

TEST(ClusterTest, ASlurmWithoutAListOfHostsIsAskedForOne) {
  const Variables variables =
      With(Recorded("slurm_three_nodes"),
           {{"SLURM_STEP_NODELIST", "a["}, {"SLURM_JOB_NODELIST", ""}, {"SLURM_NODELIST", ""}});
  EXPECT_THAT(Error({"a.py"}, variables), HasSubstr("Give --rdzv-endpoint=HOST"));
}

TEST(ClusterTest, MpirunOnOneHostMeetsOnLoopback) {
  const LaunchOptions options = Good({"a.py"}, Recorded("openmpi_4_one_host"));
  EXPECT_EQ(options.nodes.max, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous.id, "mpi562036737");
  EXPECT_EQ(options.rendezvous.host, "127.0.0.1");
  EXPECT_THAT(options.notes, IsEmpty());
}

TEST(ClusterTest, MpirunOnSeveralHostsMeetsAtMpirun) {
  const LaunchOptions options = Good({"a.py"}, Recorded("openmpi_4_two_hosts"));
  EXPECT_EQ(options.rendezvous.host, "10.0.0.5");
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_THAT(options.notes, ElementsAre(HasSubstr("mpirun's own host, 10.0.0.5")));
  EXPECT_EQ(Good({"a.py"}, Recorded("openmpi_5_two_hosts")).rendezvous.host, "login-7");
  EXPECT_EQ(Good({"a.py"}, Recorded("openmpi_5_two_hosts")).rendezvous.id,
            "mpiprterun-login-7-4711-1");
}

TEST(ClusterTest, MpiexecOfMpichLacksAPlaceToMeet) {
  EXPECT_THAT(Error({"a.py"}, Recorded("mpich")),
              AllOf(HasSubstr("mpiexec started 2"), HasSubstr("127.0.0.1 here")));
  const LaunchOptions options = Good({"--rdzv-endpoint=127.0.0.1:5000", "a.py"}, Recorded("mpich"));
  EXPECT_EQ(options.nodes.max, 2);
  EXPECT_EQ(options.node_rank, 1);
}

TEST(ClusterTest, MpirunWinsOverTheSlurmAroundIt) {
  const LaunchOptions options =
      Good({"a.py"}, With(Recorded("slurm_three_nodes"), Recorded("openmpi_4_one_host")));
  EXPECT_EQ(options.nodes.max, 2);
}

TEST(ClusterTest, APodOfAnIndexedJobFindsPod0) {
  const Variables variables = Recorded("kubernetes_indexed_job");
  const LaunchOptions options = Good({"a.py"}, variables);
  EXPECT_EQ(options.nodes.max, 4);
  EXPECT_EQ(options.node_rank, 2);
  EXPECT_EQ(options.rendezvous.host, "train-0.train");
  EXPECT_EQ(options.rendezvous.port, 29400);
  EXPECT_EQ(options.rendezvous.id, "train");
  EXPECT_THAT(Error({"a.py"}, With(variables, {{"SYNCLINE_NNODES", ""}})),
              AllOf(StartsWith("this is pod 2"), HasSubstr("SYNCLINE_NNODES")));
  EXPECT_EQ(Good({"--standalone", "a.py"}, With(variables, {{"SYNCLINE_NNODES", ""}})).nodes.max,
            1);
}

TEST(ClusterTest, APodOfAJobSetFindsPod0) {
  const LaunchOptions options = Good({"a.py"}, Recorded("kubernetes_jobset"));
  EXPECT_EQ(options.nodes.max, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.rendezvous.host, "exp-workers-0-0.exp");
  EXPECT_EQ(options.rendezvous.id, "exp");
  const Variables again = With(Recorded("kubernetes_jobset"), {{"JOBSET_RESTART_ATTEMPT", "2"}});
  EXPECT_EQ(Good({"a.py"}, again).rendezvous.id, "exp-r2");
  EXPECT_EQ(Good({"a.py"}, again).rendezvous.host, "exp-workers-0-0.exp");
}

TEST(ClusterTest, KubeflowsVariablesCountAsTheyDoForTorchrun) {
  const LaunchOptions train_job = Good({"a.py"}, Recorded("kubeflow_trainjob"));
  EXPECT_EQ(train_job.rendezvous.backend, Backend::kStatic);
  EXPECT_EQ(train_job.rendezvous.host, "job-node-0-0.job");
  EXPECT_EQ(train_job.rendezvous.port, 29400);
  EXPECT_EQ(train_job.node_rank, 1);
  const LaunchOptions pytorch_job = Good({"a.py"}, Recorded("kubeflow_pytorchjob"));
  EXPECT_EQ(pytorch_job.rendezvous.backend, Backend::kStatic);
  EXPECT_EQ(pytorch_job.rendezvous.host, "job-master-0");
  EXPECT_EQ(pytorch_job.rendezvous.port, 23456);
  EXPECT_EQ(pytorch_job.nodes.max, 3);
  EXPECT_EQ(pytorch_job.node_rank, 1);
}

TEST(ClusterTest, WhatTheUserSaysWins) {
  const Variables slurm = Recorded("slurm_three_nodes");
  EXPECT_EQ(Good({"--standalone", "a.py"}, slurm).nodes.max, 1);
  EXPECT_EQ(Good({"--nnodes=1", "a.py"}, slurm).rendezvous.id, "");
  EXPECT_EQ(Good({"--nnodes=2:3", "a.py"}, slurm).nodes.min, 2);
  const LaunchOptions explicit_place = Good({"--rdzv-endpoint=n3:1", "--rdzv-id=j", "a.py"}, slurm);
  EXPECT_EQ(explicit_place.rendezvous.host, "n3");
  EXPECT_EQ(explicit_place.rendezvous.id, "j");
  const LaunchOptions master = Good({"--master-addr=m", "a.py"}, slurm);
  EXPECT_EQ(master.rendezvous.backend, Backend::kStatic);
  EXPECT_EQ(master.rendezvous.host, "m");
  EXPECT_THAT(Error({"--rdzv-backend=etcd", "a.py"}, slurm),
              HasSubstr("--rdzv-endpoint is missing"));
  EXPECT_THAT(Error({"--nnodes=1:1", "--node-rank=1", "a.py"}, slurm), HasSubstr("its rank is 0"));
  EXPECT_THAT(
      Error({"--nnodes=2", "--rdzv-endpoint=h", "a.py"}, With(slurm, {{"SLURM_PROCID", "2"}})),
      HasSubstr("Slurm (SLURM_PROCID): node-rank=2: with 2 nodes"));
}

TEST(ClusterTest, ALauncherInAWorkerIsNotPartOfTheCluster) {
  const Variables inside =
      With(Recorded("slurm_three_nodes"), {{"TORCHELASTIC_RUN_ID", "slurm-1.0"}});
  EXPECT_EQ(Good({"a.py"}, inside).nodes.max, 1);
}

TEST(ClusterTest, ADryRunSaysWhatTheClusterProposed) {
  const std::string text = Good({"--dry-run", "a.py"}, Recorded("slurm_three_nodes")).information;
  EXPECT_THAT(text, HasSubstr("this is node 1"));
  EXPECT_THAT(text, HasSubstr("nnodes = 3   from Slurm (SLURM_STEP_NUM_TASKS)"));
  EXPECT_THAT(text, Not(HasSubstr("<from the rendezvous>")));
  EXPECT_THAT(text, HasSubstr("RANK=1"));
}

}  // namespace
}  // namespace syncline::launch
