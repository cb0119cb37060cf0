// Fills in MpiApi, in one source for all families of MPI: <mpi.h> says which it is compiled for.
//
// What a family has had since MPI 3.0 is called directly, and resolved when the plug-in is loaded.
// What came later, or is an extension, is looked up in the library that is loaded: a plug-in that
// was compiled against an old header serves a new library too, and the other way round. No C++
// library is needed at run time: the plug-in may be loaded into any program.
#include <dlfcn.h>
#include <mpi.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/mpi/mpi_api.h"

namespace syncline::mpi {
namespace {

// Error classes of ULFM, and what else of it <mpi.h> may lack.
#if defined(OPEN_MPI)
constexpr char kFamily[] = "Open MPI";
constexpr bool kHasUlfm = true;
// Of Open MPI 5, as the header of Open MPI 4 has none of these.
constexpr int kProcessFailed = 75;
constexpr int kProcessFailedPending = 76;
constexpr int kRevoked = 77;
constexpr int kFaultToleranceKey = 12;  // MPI_FT, an attribute of MPI_COMM_WORLD.
#elif defined(MPI_ABI)
constexpr char kFamily[] = "MPI 5 ABI";
constexpr bool kHasUlfm = false;
constexpr int kProcessFailed = -1;
constexpr int kProcessFailedPending = -1;
constexpr int kRevoked = -1;
constexpr int kFaultToleranceKey = MPI_KEYVAL_INVALID;
#else
constexpr char kFamily[] = "MPICH";
constexpr bool kHasUlfm = false;  // Its functions fail an assertion.
constexpr int kProcessFailed = MPIX_ERR_PROC_FAILED;
constexpr int kProcessFailedPending = MPIX_ERR_PROC_FAILED_PENDING;
constexpr int kRevoked = MPIX_ERR_REVOKED;
constexpr int kFaultToleranceKey = MPI_KEYVAL_INVALID;
#endif

static_assert(MPI_SUCCESS == kMpiSuccess);
static_assert(sizeof(MPI_Count) == sizeof(int64_t));

// What not every library of a family has; null where the loaded one does not.
struct OptionalFunctions {
  int (*isend_c)(const void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
  int (*irecv_c)(void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);
  int (*get_elements)(const MPI_Status*, MPI_Datatype, MPI_Count*);  // _c, or _x before MPI 4.
  int (*revoke)(MPI_Comm);
  int (*shrink)(MPI_Comm, MPI_Comm*);
  int (*agree)(MPI_Comm, int*);
};
OptionalFunctions optional;

template <typename Function>
void LookUp(Function** function, const char* name, const char* other_name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  if (symbol == nullptr && other_name != nullptr) symbol = dlsym(RTLD_DEFAULT, other_name);
  *function = reinterpret_cast<Function*>(symbol);
}

// Handles of MPI are pointers or ints.
template <typename Handle>
MpiHandle FromNative(Handle native) {
  static_assert(sizeof(native) <= sizeof(MpiHandle));
  MpiHandle handle = 0;
  std::memcpy(&handle, &native, sizeof(native));
  return handle;
}

template <typename Handle>
Handle ToNative(MpiHandle handle) {
  Handle native;
  std::memcpy(&native, &handle, sizeof(native));
  return native;
}

MPI_Comm ToComm(MpiHandle handle) { return ToNative<MPI_Comm>(handle); }

MpiThreadLevel FromNativeLevel(int level) {
  if (level == MPI_THREAD_MULTIPLE) return MpiThreadLevel::kMultiple;
  if (level == MPI_THREAD_SERIALIZED) return MpiThreadLevel::kSerialized;
  if (level == MPI_THREAD_FUNNELED) return MpiThreadLevel::kFunneled;
  return MpiThreadLevel::kSingle;
}

int FromNativeSource(int source) { return source == MPI_ANY_SOURCE ? kMpiAnySource : source; }
int ToNativeSource(int source) { return source == kMpiAnySource ? MPI_ANY_SOURCE : source; }

// Copies a text that ends with a zero, as far as it fits.
void CopyText(const char* from, char* to, size_t size) {
  if (size == 0) return;
  const size_t length = strnlen(from, size - 1);
  std::memcpy(to, from, length);
  to[length] = '\0';
}

int LibraryVersion(char* text, size_t size) {
  char version[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
  int length = 0;
  const int error = MPI_Get_library_version(version, &length);
  CopyText(version, text, size);
  return error;
}

int ErrorString(int error, char* text, size_t size) {
  char message[MPI_MAX_ERROR_STRING + 1] = "";
  int length = 0;
  const int result = MPI_Error_string(error, message, &length);
  CopyText(message, text, size);
  return result;
}

int IsProcessFailure(int error) {
  int error_class = MPI_SUCCESS;
  if (error == MPI_SUCCESS || MPI_Error_class(error, &error_class) != MPI_SUCCESS) return 0;
  return error_class == kProcessFailed || error_class == kProcessFailedPending ||
         error_class == kRevoked;
}

int InitThread(MpiThreadLevel* provided) {
  int level = MPI_THREAD_SINGLE;
  int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  *provided = FromNativeLevel(level);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return error;
}

int QueryThread(MpiThreadLevel* provided) {
  int level = MPI_THREAD_SINGLE;
  const int error = MPI_Query_thread(&level);
  *provided = FromNativeLevel(level);
  return error;
}

void (*before_finalize)() = nullptr;

int CallBeforeFinalize(MPI_Comm, int, void*, void*) {
  before_finalize();
  return MPI_SUCCESS;
}

int BeforeFinalize(void (*function)()) {
  before_finalize = function;
  int key = MPI_KEYVAL_INVALID;
  int error = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, CallBeforeFinalize, &key,
                                     /*extra_state=*/nullptr);
  if (error == MPI_SUCCESS) error = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  return error;
}

MpiHandle CommWorld() { return FromNative(MPI_COMM_WORLD); }
MpiHandle CommNull() { return FromNative(MPI_COMM_NULL); }
MpiHandle RequestNull() { return FromNative(MPI_REQUEST_NULL); }

int CommRank(MpiHandle comm, int* rank) { return MPI_Comm_rank(ToComm(comm), rank); }
int CommSize(MpiHandle comm, int* size) { return MPI_Comm_size(ToComm(comm), size); }

int CommTestInter(MpiHandle comm, int* flag) { return MPI_Comm_test_inter(ToComm(comm), flag); }

// Hands over a communicator that a call with the result `error` has made.
int Made(int error, MPI_Comm comm, MpiHandle* made) {
  if (error == MPI_SUCCESS && comm != MPI_COMM_NULL) {
    error = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  *made = FromNative(comm);
  return error;
}

int CommCreateGroup(MpiHandle comm, const int* ranks, int count, int tag, MpiHandle* made) {
  *made = CommNull();
  MPI_Group all, members;
  int error = MPI_Comm_group(ToComm(comm), &all);
  if (error != MPI_SUCCESS) return error;
  error = MPI_Group_incl(all, count, ranks, &members);
  MPI_Group_free(&all);
  if (error != MPI_SUCCESS) return error;
  MPI_Comm native = MPI_COMM_NULL;
  error = MPI_Comm_create_group(ToComm(comm), members, tag, &native);
  error = Made(error, native, made);
  MPI_Group_free(&members);
  return error;
}

int CommDup(MpiHandle comm, MpiHandle* made) {
  MPI_Comm native = MPI_COMM_NULL;
  const int error = MPI_Comm_dup(ToComm(comm), &native);
  return Made(error, native, made);
}

int CommIdup(MpiHandle comm, MpiHandle* made, MpiHandle* request) {
  // MPI writes the native handle later, into the bytes that ToNative reads.
  *made = CommNull();
  MPI_Request native = MPI_REQUEST_NULL;
  const int error = MPI_Comm_idup(ToComm(comm), reinterpret_cast<MPI_Comm*>(made), &native);
  *request = FromNative(native);
  return error;
}

int CommReturnErrors(MpiHandle comm) {
  return MPI_Comm_set_errhandler(ToComm(comm), MPI_ERRORS_RETURN);
}

int CommFree(MpiHandle* comm) {
  MPI_Comm native = ToComm(*comm);
  const int error = MPI_Comm_free(&native);
  *comm = FromNative(native);
  return error;
}

int WorldRanks(MpiHandle comm, const int* ranks, int count, int* world_ranks) {
  MPI_Group all, world;
  int error = MPI_Comm_group(ToComm(comm), &all);
  if (error != MPI_SUCCESS) return error;
  error = MPI_Comm_group(MPI_COMM_WORLD, &world);
  if (error == MPI_SUCCESS) {
    error = MPI_Group_translate_ranks(all, count, ranks, world, world_ranks);
    MPI_Group_free(&world);
  }
  MPI_Group_free(&all);
  if (error != MPI_SUCCESS) return error;
  for (int i = 0; i < count; ++i) {
    if (world_ranks[i] == MPI_UNDEFINED) world_ranks[i] = -1;
  }
  return MPI_SUCCESS;
}

int TagUpperBound(MpiHandle comm, int* bound) {
  int* value = nullptr;
  int is_set = 0;
  const int error = MPI_Comm_get_attr(ToComm(comm), MPI_TAG_UB, &value, &is_set);
  *bound = error == MPI_SUCCESS && is_set != 0 ? *value : 32767;  // The least that MPI allows.
  return error;
}

// A datatype for more bytes than an int counts, for libraries without the functions that take an
// MPI_Count: blocks of 1 GiB and the rest. It is freed with the object; MPI keeps it as long as
// operations use it.
class LargeType {
 public:
  explicit LargeType(size_t bytes) {
    constexpr size_t kBlock = size_t{1} << 30;
    MPI_Datatype block;
    error_ = MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block);
    if (error_ != MPI_SUCCESS) return;
    int counts[2] = {static_cast<int>(bytes / kBlock), static_cast<int>(bytes % kBlock)};
    MPI_Aint offsets[2] = {0, static_cast<MPI_Aint>(bytes - bytes % kBlock)};
    MPI_Datatype types[2] = {block, MPI_BYTE};
    error_ = MPI_Type_create_struct(2, counts, offsets, types, &type_);
    MPI_Type_free(&block);
    if (error_ == MPI_SUCCESS) error_ = MPI_Type_commit(&type_);
  }
  ~LargeType() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  LargeType(const LargeType&) = delete;
  LargeType& operator=(const LargeType&) = delete;

  int error() const { return error_; }  // Without one, type() may be used.
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  int error_;
};

int Ibcast(void* data, size_t bytes, int root, MpiHandle comm, MpiHandle* request) {
  if (bytes > INT_MAX) return MPI_ERR_COUNT;
  MPI_Request native = MPI_REQUEST_NULL;
  const int error =
      MPI_Ibcast(data, static_cast<int>(bytes), MPI_BYTE, root, ToComm(comm), &native);
  *request = FromNative(native);
  return error;
}

int Iallgather(const void* sent, size_t bytes, void* received, MpiHandle comm, MpiHandle* request) {
  if (bytes > INT_MAX) return MPI_ERR_COUNT;
  const int count = static_cast<int>(bytes);
  MPI_Request native = MPI_REQUEST_NULL;
  const int error =
      MPI_Iallgather(sent, count, MPI_BYTE, received, count, MPI_BYTE, ToComm(comm), &native);
  *request = FromNative(native);
  return error;
}

int IsendLarge(const void* data, size_t bytes, int destination, int tag, MPI_Comm comm,
               MPI_Request* request) {
  if (optional.isend_c != nullptr) {
    return optional.isend_c(data, static_cast<MPI_Count>(bytes), MPI_BYTE, destination, tag, comm,
                            request);
  }
  const LargeType large(bytes);
  if (large.error() != MPI_SUCCESS) return large.error();
  return MPI_Isend(data, 1, large.type(), destination, tag, comm, request);
}

int Isend(const void* data, size_t bytes, int destination, int tag, MpiHandle comm,
          MpiHandle* request) {
  MPI_Request native = MPI_REQUEST_NULL;
  const int error = bytes <= INT_MAX
                        ? MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, destination, tag,
                                    ToComm(comm), &native)
                        : IsendLarge(data, bytes, destination, tag, ToComm(comm), &native);
  *request = FromNative(native);
  return error;
}

int IrecvLarge(void* data, size_t bytes, int source, int tag, MPI_Comm comm, MPI_Request* request) {
  if (optional.irecv_c != nullptr) {
    return optional.irecv_c(data, static_cast<MPI_Count>(bytes), MPI_BYTE, source, tag, comm,
                            request);
  }
  const LargeType large(bytes);
  if (large.error() != MPI_SUCCESS) return large.error();
  return MPI_Irecv(data, 1, large.type(), source, tag, comm, request);
}

int Irecv(void* data, size_t bytes, int source, int tag, MpiHandle comm, MpiHandle* request) {
  source = ToNativeSource(source);
  MPI_Request native = MPI_REQUEST_NULL;
  const int error = bytes <= INT_MAX ? MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source,
                                                 tag, ToComm(comm), &native)
                                     : IrecvLarge(data, bytes, source, tag, ToComm(comm), &native);
  *request = FromNative(native);
  return error;
}

// `status` is of a receive or of a probe, and not cancelled.
int ReadStatus(const MPI_Status& status, MpiMessage* message) {
  MPI_Count bytes = 0;
  const int error = optional.get_elements(&status, MPI_BYTE, &bytes);
  *message = {FromNativeSource(status.MPI_SOURCE), status.MPI_TAG, bytes, false};
  return error;
}

int Test(MpiHandle* request, int* done, MpiMessage* message) {
  MPI_Request native = ToNative<MPI_Request>(*request);
  MPI_Status status;
  // MPI_ERROR in a status counts for functions that complete several requests only; this one
  // returns the error.
  int error = MPI_Test(&native, done, message == nullptr ? MPI_STATUS_IGNORE : &status);
  *request = FromNative(native);
  if (error != MPI_SUCCESS) {
    *done = native == MPI_REQUEST_NULL;
    return error;
  }
  if (*done == 0 || message == nullptr) return MPI_SUCCESS;
  int is_cancelled = 0;
  error = MPI_Test_cancelled(&status, &is_cancelled);
  if (error != MPI_SUCCESS) return error;
  if (is_cancelled == 0) return ReadStatus(status, message);
  *message = {kMpiAnySource, 0, 0, true};
  return MPI_SUCCESS;
}

int Cancel(MpiHandle* request) {
  MPI_Request native = ToNative<MPI_Request>(*request);
  const int error = MPI_Cancel(&native);
  *request = FromNative(native);
  return error;
}

int IsFaultTolerant(int* flag) {
  *flag = 0;
  if (!kHasUlfm || optional.revoke == nullptr) return MPI_SUCCESS;
  int* value = nullptr;
  int is_set = 0;
  const int error = MPI_Comm_get_attr(MPI_COMM_WORLD, kFaultToleranceKey, &value, &is_set);
  *flag = error == MPI_SUCCESS && is_set != 0 && value != nullptr && *value != 0;
  return error;
}

int CommRevoke(MpiHandle comm) { return optional.revoke(ToComm(comm)); }

int CommShrink(MpiHandle comm, MpiHandle* made) {
  MPI_Comm native = MPI_COMM_NULL;
  const int error = optional.shrink(ToComm(comm), &native);
  return Made(error, native, made);
}

int CommAgree(MpiHandle comm, int* flag) { return optional.agree(ToComm(comm), flag); }

MpiApi api = {
    MpiApi::kVersion,
    kFamily,
    LibraryVersion,
    ErrorString,
    IsProcessFailure,
    MPI_Initialized,
    MPI_Finalized,
    InitThread,
    QueryThread,
    MPI_Is_thread_main,
    MPI_Finalize,
    BeforeFinalize,
    CommWorld,
    CommNull,
    CommRank,
    CommSize,
    CommTestInter,
    CommCreateGroup,
    CommDup,
    CommIdup,
    CommReturnErrors,
    CommFree,
    WorldRanks,
    TagUpperBound,
    Ibcast,
    Iallgather,
    Isend,
    Irecv,
    Test,
    Cancel,
    RequestNull,
    IsFaultTolerant,
    // Set below if the library has them.
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiApi* SynclineMpiPlugin() {
  LookUp(&optional.isend_c, "MPI_Isend_c", nullptr);
  LookUp(&optional.irecv_c, "MPI_Irecv_c", nullptr);
  LookUp(&optional.get_elements, "MPI_Get_elements_c", "MPI_Get_elements_x");
  LookUp(&optional.revoke, "MPI_Comm_revoke", "MPIX_Comm_revoke");
  LookUp(&optional.shrink, "MPI_Comm_shrink", "MPIX_Comm_shrink");
  LookUp(&optional.agree, "MPI_Comm_agree", "MPIX_Comm_agree");
  if (optional.get_elements == nullptr) return nullptr;
  if (kHasUlfm) {
    if (optional.revoke != nullptr) api.comm_revoke = CommRevoke;
    if (optional.shrink != nullptr) api.comm_shrink = CommShrink;
    if (optional.agree != nullptr) api.comm_agree = CommAgree;
  }
  return &api;
}

}  // namespace syncline::mpi
