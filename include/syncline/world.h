// World: all processes of a job, and the process groups among them.
#ifndef SYNCLINE_WORLD_H_
#define SYNCLINE_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "syncline/deadline.h"
#include "syncline/device.h"
#include "syncline/mpi_comm.h"
#include "syncline/process_group.h"
#include "syncline/store.h"

namespace syncline {

namespace join {
class JoinProtocol;
struct OpenedStore;
}  // namespace join

// How a process joins a world: either `store` with `rank` and `size`, or `init_method`:
//   env://                 RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from the environment, as
//                          launchers set them; a missing one is taken from Slurm's srun, Open
//                          MPI, MPICH, PALS or Flux, if one of them has started this process; an
//                          error if that does not suffice
//   tcp://host:port        rank 0 hosts the store at that address, which must be its own; without
//                          ranks the process that is first on that host does, and is rank 0
//   tcp://239.x.y.z:port   a multicast address, at which the processes of one group_name find each
//                          other; one of them hosts the store, and is rank 0 without ranks. Of IPv6
//                          tcp://[ff15::7]:port, or [ff15::7%eth1] to choose the interface
//   file:///path           a file that all processes reach; the remains of a killed job in it do
//                          no harm
//   mpi://                 rank and size are those of MPI_COMM_WORLD; rank 0 hosts the store and
//                          sends its address by MPI_Bcast. MPI is loaded and initialised for that
//                          if need be (docs/mpi.md). It is what backend mpi takes where nothing is
//                          given or set, and env:// where a launcher's variables do not lead to a
//                          store
//   etcd://host:port/job   an etcd cluster, of which several endpoints may be given, as in
//                          etcd://a:2379,b:2379/job7; the prefix, `job`, is the job's own, and 30
//                          seconds after the job's last process has ended nothing is left below it
// Ranks on several hosts reach each other at the address that leads to the store. Where there is no
// such address (file://, a store that is not on a network), or another is to be taken, set
// SYNCLINE_HOST_ADDRESS on each host to one of its own, or SYNCLINE_SOCKET_IFNAME to interfaces or
// networks (eth1,10.1.0.0/16, or ^docker0; where it is not set, GLOO_SOCKET_IFNAME counts).
//
// All but env:// and mpi:// take ?rank=R&world_size=N&group_name=G. `rank`, `size` and
// `group_name`, where given here, take precedence over what the URL or the environment says.
//
// A rank that is not given is assigned: given ranks are kept, and the free ones go to the host of
// the store and then to the others in the order of joining. With neither a store nor an
// init_method, and nothing in the environment, a process is a world of one, at once and without a
// socket; it says so in the log. Rank 0 of 1 always is.
struct WorldOptions {
  std::string backend = "auto";
  std::string init_method;  // Empty with a store; otherwise empty means env://, or a world of one.
  std::shared_ptr<Store> store;
  int rank = -1;
  int size = -1;
  // For joining, and the default of the groups. A store's server must answer within 5 minutes all
  // the same.
  absl::Duration timeout = kDefaultTimeout;
  std::string group_name;  // Worlds of different names may share a store.
  // The device whose tensors this rank will pass, for all groups of the world: see
  // ProcessGroup::Options. Where a group then has a communicator of NCCL, NewGroup waits until all
  // ranks of the world have called it, on those outside of the new group too.
  std::optional<Device> device_id = {};
};

// One process's (or thread's) part in a job. Users share it by shared_ptr. Thread-safe: but
// NewGroup, Close and the operations of groups are collective, so each rank makes these calls in
// one order.
//
//   WorldOptions options;
//   options.init_method = "tcp://node1:29500?rank=0&world_size=2";
//   SYNCLINE_ASSIGN_OR_RETURN(std::shared_ptr<World> world, World::Init(options));
//   std::vector<float> gradients = {1, 2, 3};
//   SYNCLINE_RETURN_IF_ERROR(world->group()->AllReduce(Tensor::Of(gradients)));
//   world->Close();
class World {
 public:
  // Joins; returns once all ranks have.
  //   ArgumentError  the options contradict each other; or the rank is taken, or the ranks do not
  //                  agree on the size, or there are more processes than that
  //   TimeoutError   it says which ranks have not joined
  //   MismatchError  the ranks do not agree on the backend
  //   StoreError, NetworkError, BackendError  the store or the backend could not be opened
  static absl::StatusOr<std::shared_ptr<World>> Init(const WorldOptions& options);

  // The world of the processes of an MPI communicator, with MPI's ranks: MPI_COMM_WORLD, or one
  // that the program has made. Backends are those of Init, so also "auto", which needs MPI for the
  // meeting alone; "mpi" takes processes of one MPI_COMM_WORLD. `options` say the rest, without
  // store, init_method, rank and size. A program that has initialised MPI, with
  // MPI_THREAD_MULTIPLE, goes on to use it, and finalises it after the world is closed.
  //
  // Collective over the communicator, which it only reads: the processes communicate over a
  // duplicate.
  //   ArgumentError  the communicator is MPI_COMM_NULL, an intercommunicator, or of another family
  //                  than the MPI that this process uses
  //   BackendError, UnsupportedError  MPI cannot be loaded, initialised or used; it says why
  //   TimeoutError   a process of the communicator has not called; MPI does not tell which. The
  //                  processes can try again
  //   MismatchError  the ranks do not agree on the backend
  // and those of Init.
  static absl::StatusOr<std::shared_ptr<World>> FromMpi(MpiComm comm,
                                                        const WorldOptions& options = {});

  // Aborts the group of all ranks, unless somebody else holds it: other ranks that wait for this
  // one get an error. Close leaves in order.
  ~World();

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  // The number of lower ranks on this rank's host.
  int local_rank() const;

  // The group of all ranks.
  const std::shared_ptr<ProcessGroup>& group() const { return group_; }
  // The store through which the ranks joined.
  const std::shared_ptr<Store>& store() const { return options_.store; }

  // A group of `ranks` (of this world), numbered in that order; all ranks of this world must call
  // it, with equal arguments and in the same order. Null on ranks that are not in it, at once
  // unless WorldOptions::device_id is given. Members that call it with other ranks or another
  // backend get a MismatchError that quotes both; a TimeoutError names the members that have not
  // called it. `device_id` takes the place of the world's for the new group, of which all members
  // have one or none has: a communicator is split off for it only if they have the world's. See
  // also subgroups.h.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewGroup(const std::vector<int>& ranks,
                                                         std::optional<std::string> backend = {},
                                                         ProcessGroup::Timeout timeout = {},
                                                         std::optional<Device> device_id = {});

  // The same, but only the members need to call it, all in the same order where they have called
  // it several times for one set of ranks.
  absl::StatusOr<std::shared_ptr<ProcessGroup>> NewLocalGroup(
      const std::vector<int>& ranks, std::optional<std::string> backend = {},
      ProcessGroup::Timeout timeout = {}, std::optional<Device> device_id = {});

  // Closes the group of all ranks. Takes at most `timeout`, and some seconds more if the store does
  // not answer, or hosts of other ranks do not take what this rank has sent. Groups made from it
  // live on. This rank may then join again, with the same store, once all ranks do. In a forked
  // child it does nothing.
  void Close(absl::Duration timeout = absl::Seconds(10));

 private:
  World(const WorldOptions& options, std::unique_ptr<join::JoinProtocol> joined);

  // Joins through the store that was opened; `options` have rank and size as far as they are known.
  static absl::StatusOr<std::shared_ptr<World>> Join(WorldOptions options,
                                                     const join::OpenedStore& opened,
                                                     const Deadline& deadline);

  // Connects the group of all ranks. `store_host` is the store's; empty if it is not on a network.
  absl::Status Connect(const std::string& store_host, const Deadline& deadline);

  // This rank's rank in a group of `ranks`, -1 if it has none. ArgumentError if they cannot be a
  // group.
  absl::StatusOr<int> GroupRankIn(const std::vector<int>& ranks) const;
  // One call of NewGroup or NewLocalGroup. All fields but the device are equal on all members.
  struct NewGroupCall {
    std::string name;          // For messages: "new_group #3".
    std::string store_prefix;  // Of the part of the store in which the members compare their calls.
    std::string group;         // The new group's name.
    std::optional<Device> device_id;  // If not the world's.
    bool splits = false;  // Whether all ranks of the world make it, from its communicator.
  };
  absl::StatusOr<std::shared_ptr<ProcessGroup>> MakeGroup(const NewGroupCall& call,
                                                          const std::vector<int>& ranks,
                                                          int group_rank,
                                                          const std::string& backend,
                                                          absl::Duration timeout) const;
  // Whether a group of `backend` gets a communicator that is split off that of all ranks.
  absl::StatusOr<bool> IsSplitOff(const std::string& backend) const;
  // ArgumentError if no group can be made with these.
  absl::Status CheckGroupOptions(const std::string& backend, absl::Duration timeout,
                                 const std::optional<Device>& device_id) const;
  // Options of a group of this world; rank, size and ranks are left to the caller.
  ProcessGroup::Options GroupOptions(absl::string_view name) const;

  const WorldOptions options_;  // With the store filled in.
  const std::unique_ptr<join::JoinProtocol> joined_;
  std::string local_address_;
  std::vector<std::string> more_addresses_;
  std::shared_ptr<ProcessGroup> group_;
  absl::Mutex mutex_;
  bool has_left_ ABSL_GUARDED_BY(mutex_) = false;  // joined_.Leave has been called.
  int groups_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> local_groups_made_ ABSL_GUARDED_BY(mutex_);  // By members, sorted.
};

}  // namespace syncline

#endif  // SYNCLINE_WORLD_H_
