// For LD_PRELOAD: MPI that any thread may call becomes one that only the thread which initialises
// it may, as in a library with less than MPI_THREAD_MULTIPLE. A tool of PMPI's kind. Not for the
// standard ABI, whose thread levels have other values.
#include <dlfcn.h>

extern "C" int MPI_Init_thread(int* argc, char*** argv, int, int* provided) {
  constexpr int kFunneled = 1;
  using InitThread = int (*)(int*, char***, int, int*);
  const auto next = reinterpret_cast<InitThread>(dlsym(RTLD_DEFAULT, "PMPI_Init_thread"));
  const int error = next(argc, argv, kFunneled, provided);
  *provided = kFunneled;
  return error;
}
