// An MPI program: every rank adds all ranks' numbers and hears from its neighbour. With an argument rank 1 aborts.
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv) {
  int rank, size, sum = 0, from = -1, length;
  char name[MPI_MAX_PROCESSOR_NAME];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 1 && rank == 1) {
    MPI_Abort(MPI_COMM_WORLD, 5);
  }
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &from, 1, MPI_INT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Get_processor_name(name, &length);
  printf("rank %d of %d on %s: sum %d, from %d\n", rank, size, name, sum, from);
  MPI_Finalize();
  return 0;
}
