// Libraries for nccl_library_test, which unlike the stand-in for NCCL can be unloaded: an NCCL with
// all functions (STUB_NCCL_FUNCTIONS), one without but its version, or none at all (NO_NCCL). The
// functions do nothing; FAKE_NCCL_VERSION is the version, as of the stand-in.
#include <cstdlib>

extern "C" {

#ifdef NO_NCCL
int Nothing() { return 0; }
#else
int ncclGetVersion(int* version) {
  const char* const text = std::getenv("FAKE_NCCL_VERSION");
  *version = text == nullptr ? 22005 : std::atoi(text);
  return 0;
}
#endif

#ifdef STUB_NCCL_FUNCTIONS
#define STUB(name) \
  int name() { return 0; }
STUB(ncclGetErrorString)
STUB(ncclGetLastError)
STUB(ncclGetUniqueId)
STUB(ncclCommInitRank)
STUB(ncclCommInitRankConfig)
STUB(ncclCommFinalize)
STUB(ncclCommDestroy)
STUB(ncclCommAbort)
STUB(ncclCommSplit)
STUB(ncclCommGetAsyncError)
STUB(ncclRedOpCreatePreMulSum)
STUB(ncclRedOpDestroy)
STUB(ncclReduce)
STUB(ncclBroadcast)
STUB(ncclAllReduce)
STUB(ncclReduceScatter)
STUB(ncclAllGather)
STUB(ncclSend)
STUB(ncclRecv)
STUB(ncclGroupStart)
STUB(ncclGroupEnd)
STUB(ncclMemAlloc)
STUB(ncclMemFree)
STUB(ncclCommRegister)
STUB(ncclCommDeregister)
#endif

}  // extern "C"
