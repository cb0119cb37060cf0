// A library for mpi_library_test: an MPI of version FAKE_MPI_VERSION as far as one can tell without
// calling more of it, or no MPI if that is not defined.
#include <cstring>

#ifdef FAKE_MPI_VERSION
extern "C" int MPI_Get_library_version(char* version, int* length) {
  std::strcpy(version, FAKE_MPI_VERSION);
  *length = static_cast<int>(std::strlen(version));
  return 0;
}
#else
extern "C" int Nothing() { return 0; }
#endif
