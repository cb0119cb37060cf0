#include "core/segments/segment_client.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "core/base/sockets.h"
#include "core/tensor/shared_place.h"
#include "syncline/fork.h"
#include "syncline/status.h"

namespace syncline::segments {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

std::string PathOf(absl::string_view name) { return absl::StrCat(kFolder, "/", name); }

SegmentKey KeyOf(const SegmentName& name) { return {name.pid, name.client, name.number}; }

absl::Status Gone(absl::string_view manager) {
  return NetworkError(absl::StrCat("the manager of shared segments (", manager,
                                   ") has ended: it was killed, or its job is over"));
}

absl::Status BadName(absl::string_view name) {
  return BackendError(absl::StrCat("'", name, "' is no name of a shared segment"));
}

}  // namespace

// This process's use of a segment.
class SegmentClient::Reference {
 public:
  explicit Reference(std::string name) : name_(std::move(name)) {}
  ~Reference() {
    if (!guard_->InChild()) SegmentClient::Get().Release(name_);
  }

 private:
  friend class SegmentClient;
  const std::string name_;
  std::unique_ptr<ForkGuard> guard_ = std::make_unique<ForkGuard>();
};

SegmentClient& SegmentClient::Get() {
  static SegmentClient* const client = new SegmentClient;
  return *client;
}

SegmentClient::SegmentClient() {
  // The child closes its copies of the connections: a client has ended when nobody holds its own.
  pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                 [] {
                   Get().connections_.clear();
                   Get().mutex_.unlock();
                 });
}

bool SegmentClient::Serves(const Connection& connection) {
  char byte;
  const ssize_t size = recv(connection.socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

SegmentClient::Connection* SegmentClient::Connect(const std::string& manager,
                                                  const Deadline& deadline) {
  const auto found = connections_.find(manager);
  if (found != connections_.end()) {
    if (Serves(*found->second)) return found->second.get();
    connections_.erase(found);
  }
  absl::StatusOr<base::UniqueFd> socket =
      base::Connect(ManagerAddress(manager), SOCK_SEQPACKET, deadline);
  Greeting greeting;
  if (!socket.ok() || !IsOwnUser(socket->get()) ||
      !base::ReceiveAll(socket->get(), &greeting, sizeof greeting, deadline).ok() ||
      greeting.magic != Greeting::kMagic) {
    return nullptr;
  }
  auto connection = std::make_unique<Connection>();
  connection->socket = *std::move(socket);
  connection->client = greeting.client;
  return (connections_[manager] = std::move(connection)).get();
}

bool SegmentClient::Flush(Connection& connection) {
  while (!connection.unsent.empty()) {
    const ssize_t size = send(connection.socket.get(), &connection.unsent.front(), sizeof(Request),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return false;
    connection.unsent.pop_front();  // Sent; or the manager has ended, and needs it no more.
  }
  return true;
}

void SegmentClient::SendLater(Connection& connection, const Request& request) {
  connection.unsent.push_back(request);
  Flush(connection);
}

absl::Status SegmentClient::Send(Connection& connection, const Request& request,
                                 const Deadline& deadline) {
  connection.unsent.push_back(request);
  while (!Flush(connection)) {
    const absl::Status waited = base::WaitWritable(connection.socket.get(), deadline);
    if (!waited.ok()) {
      connection.unsent.pop_back();
      return Annotate(waited, "the manager of shared segments does not answer; is it stopped?");
    }
  }
  return absl::OkStatus();
}

void SegmentClient::Tell(Request::Kind kind, absl::string_view name, ClientId sender) {
  const std::optional<SegmentName> parsed = SegmentName::Parse(name);
  if (!parsed.has_value()) return;
  const auto found = connections_.find(parsed->manager);
  if (found != connections_.end()) SendLater(*found->second, {kind, KeyOf(*parsed), sender});
}

absl::Status SegmentClient::Use(const std::string& manager) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Connect(manager, Deadline(kTimeout)) == nullptr) return Gone(manager);
  manager_ = manager;
  return absl::OkStatus();
}

std::string SegmentClient::manager() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = connections_.find(manager_);
  return found != connections_.end() && Serves(*found->second) ? manager_ : "";
}

absl::StatusOr<SegmentName> SegmentClient::NewName(Request::Kind kind, const Deadline& deadline) {
  Connection* const connection = manager_.empty() ? nullptr : Connect(manager_, deadline);
  if (connection == nullptr) return Gone(manager_);
  SegmentName name{manager_, static_cast<int>(getpid()), connection->client, ++last_number_};
  // Before there is a file: if this process is killed, the manager removes it.
  SYNCLINE_RETURN_IF_ERROR(Send(*connection, {kind, KeyOf(name), 0}, deadline));
  return name;
}

namespace {

// A new file of this size.
absl::StatusOr<base::UniqueFd> MakeFile(const SegmentName& name, size_t size) {
  const std::string path = PathOf(name.ToString());
  base::UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid() || ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    return BackendError(
        absl::StrCat("cannot make ", path, " of ", size >> 10, " KiB: ", std::strerror(errno)));
  }
  return file;
}

}  // namespace

absl::StatusOr<Carried> SegmentClient::Write(size_t size,
                                             absl::Span<const tensor::Segment::Part> parts) {
  SegmentName name;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(name, NewName(Request::kCarry, Deadline(kTimeout)));
  }
  const Carried carried{name.ToString(), name.client};
  absl::Cleanup give_up = [&] {
    unlink(PathOf(carried.name).c_str());
    Drop(carried);
  };
  SYNCLINE_ASSIGN_OR_RETURN(const base::UniqueFd file, MakeFile(name, size));
  // A guardian that came before the file has not removed it.
  if (manager() != name.manager) return Gone(name.manager);
  SYNCLINE_RETURN_IF_ERROR(tensor::Segment::FillFile(file.get(), size, parts));
  if (manager() != name.manager) return Gone(name.manager);  // It has removed the file.
  std::move(give_up).Cancel();
  return carried;
}

absl::StatusOr<Tensor> SegmentClient::Make(size_t size) {
  SegmentName name;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    SYNCLINE_ASSIGN_OR_RETURN(name, NewName(Request::kUse, Deadline(kTimeout)));
  }
  auto reference = std::make_shared<Reference>(name.ToString());
  absl::Cleanup give_up = [&] { unlink(PathOf(reference->name_).c_str()); };
  SYNCLINE_ASSIGN_OR_RETURN(base::UniqueFd file, MakeFile(name, size));
  if (manager() != name.manager) return Gone(name.manager);  // As in Write.
  SYNCLINE_RETURN_IF_ERROR(tensor::Segment::ReserveFile(file.get(), size));
  SYNCLINE_ASSIGN_OR_RETURN(Tensor tensor,
                            tensor::MapNamed(reference->name_, file.release(), size, reference));
  std::move(give_up).Cancel();
  return tensor;
}

std::optional<SegmentClient::Place> SegmentClient::Find(const void* data, size_t bytes) {
  const std::optional<tensor::NamedPlace> place = tensor::FindNamed(data, bytes);
  if (!place.has_value()) return std::nullopt;
  auto& reference = *static_cast<Reference*>(place->keeper.get());
  if (!Adopt(reference)) return std::nullopt;
  return Place{place->name, place->offset, place->size};
}

bool SegmentClient::Adopt(Reference& reference) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::optional<SegmentName> name = SegmentName::Parse(reference.name_);
  const Deadline deadline(kTimeout);
  Connection* const connection = name.has_value() ? Connect(name->manager, deadline) : nullptr;
  if (!reference.guard_->InChild()) return connection != nullptr;
  char answer = 0;
  if (connection == nullptr ||
      !Send(*connection, {Request::kAdopt, KeyOf(*name), 0}, deadline).ok() ||
      !base::ReceiveAll(connection->socket.get(), &answer, 1, deadline).ok() || answer == 0) {
    return false;
  }
  reference.guard_ = std::make_unique<ForkGuard>();
  return true;
}

absl::StatusOr<Carried> SegmentClient::Carry(const std::string& name) {
  const std::optional<SegmentName> parsed = SegmentName::Parse(name);
  if (!parsed.has_value()) return BadName(name);
  const Deadline deadline(kTimeout);
  const std::lock_guard<std::mutex> lock(mutex_);
  Connection* const connection = Connect(parsed->manager, deadline);
  if (connection == nullptr) return Gone(parsed->manager);
  SYNCLINE_RETURN_IF_ERROR(Send(*connection, {Request::kCarry, KeyOf(*parsed), 0}, deadline));
  return Carried{name, connection->client};
}

void SegmentClient::Drop(const Carried& carried) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Tell(Request::kDrop, carried.name, 0);
}

void SegmentClient::Release(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Tell(Request::kRelease, name, 0);
}

void SegmentClient::Discard(const Carried& carried) {
  const std::optional<SegmentName> name = SegmentName::Parse(carried.name);
  if (!name.has_value()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Connect(name->manager, Deadline(kTimeout)) == nullptr) return;
  Tell(Request::kDiscard, carried.name, carried.sender);
}

absl::StatusOr<Tensor> SegmentClient::Receive(const Carried& carried, int pid, size_t size) {
  const std::optional<SegmentName> name = SegmentName::Parse(carried.name);
  if (!name.has_value()) return BadName(carried.name);
  base::UniqueFd file(open(PathOf(carried.name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid() && errno == ENOENT) {
    return NetworkError(absl::StrCat(
        "the memory of an array that process ", pid, " has sent is gone: pid ", pid,
        " was killed before the array was received, or the manager of the segments was (",
        carried.name, ")"));
  }
  if (!file.valid()) {
    // The message still carries it: it can be received later.
    return BackendError(absl::StrCat("cannot open ", PathOf(carried.name), " of process ", pid,
                                     ": ", std::strerror(errno)));
  }
  std::shared_ptr<Reference> reference;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Without a manager the mapping is all that there is to keep.
    if (Connect(name->manager, Deadline(kTimeout)) != nullptr) {
      Tell(Request::kClaim, carried.name, carried.sender);
    }
  }
  reference = std::make_shared<Reference>(carried.name);
  return tensor::MapNamed(carried.name, file.release(), size, reference);
}

void SegmentClient::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Deadline deadline(kTimeout);
  for (const auto& [manager, connection] : connections_) {
    static_cast<void>(Send(*connection, {Request::kLeave, {}, 0}, deadline));
  }
}

}  // namespace syncline::segments
