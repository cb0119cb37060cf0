// The plug-ins, as data of the library that loads them: whoever has the library, be it in a wheel,
// in a jar or linked into a program, has them too, and no file has to be found.
#ifndef SYNCLINE_BACKENDS_MPI_EMBEDDED_PLUGINS_H_
#define SYNCLINE_BACKENDS_MPI_EMBEDDED_PLUGINS_H_

#include <cstddef>

#include "absl/types/span.h"

namespace syncline::mpi {

// The contents of a shared library.
struct EmbeddedPlugin {
  const char* name;  // "libsyncline_mpi_mpich.so"
  const unsigned char* data;
  size_t size;
};

// Made by embed_plugins.py. A build without access to the wheel of MPICH 5 lacks that of the
// standard ABI.
absl::Span<const EmbeddedPlugin> EmbeddedPlugins();

}  // namespace syncline::mpi

#endif  // SYNCLINE_BACKENDS_MPI_EMBEDDED_PLUGINS_H_
