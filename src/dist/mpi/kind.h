/* kind.h: which MPI a compiler wrapper is for: the build preprocesses this file and reads the last line. */
#include <mpi.h>
#if defined(OPEN_MPI)
"openmpi"
#elif defined(MPICH)
"mpich"
#endif
