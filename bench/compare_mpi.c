/* compare_mpi.c - Open MPI and MPICH in `make compare`: float sums, out of place (the root of a
 * broadcast in place), MPI_COMM_WORLD.  Started by the launcher of the MPI it was compiled for. */
#include "compare_rank.h"

#include <mpi.h>

static int mpi_op(void *ctx, struct cmp_rank *r, int coll, size_t bytes)
{
    const int n = (int)(bytes / sizeof(float)), part = n / r->np;
    const MPI_Comm comm = MPI_COMM_WORLD;
    (void)ctx;
    switch (coll) {
    case CMP_ALL_REDUCE:
        return MPI_Allreduce(r->in, r->out, n, MPI_FLOAT, MPI_SUM, comm);
    case CMP_REDUCE_SCATTER:
        return MPI_Reduce_scatter_block(r->in, r->out, part, MPI_FLOAT, MPI_SUM, comm);
    case CMP_ALL_GATHER:
        return MPI_Allgather(r->in, part, MPI_FLOAT, r->out, part, MPI_FLOAT, comm);
    case CMP_ALL_TO_ALL:
        return MPI_Alltoall(r->in, part, MPI_FLOAT, r->out, part, MPI_FLOAT, comm);
    case CMP_BROADCAST:
        return MPI_Bcast(r->rank ? r->out : r->in, n, MPI_FLOAT, 0, comm);
    case CMP_REDUCE:
        return MPI_Reduce(r->in, r->out, n, MPI_FLOAT, MPI_SUM, 0, comm);
    default:
        return MPI_Barrier(comm);
    }
}

int main(int argc, char **argv)
{
    struct cmp_rank r = {.ctl = cmp_attach(), .wait = CMP_WAIT_CPU};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.np);
    if (r.np != r.ctl->np) {
        fprintf(stderr, "%d ranks were started instead of %d\n", r.np, r.ctl->np);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    cmp_pin(r.ctl, r.rank);
    r.in = cmp_malloc(r.ctl);
    r.out = cmp_malloc(r.ctl);
    cmp_fill(&r);
    if (cmp_serve(&r, mpi_op, NULL)) {
        cmp_complain(r.ctl, r.rank, "an MPI call failed");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    free(r.in);
    free(r.out);
    return 0;
}
