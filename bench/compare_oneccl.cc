/* compare_oneccl.cc - Intel oneCCL for CPUs in `make compare`: float sums, out of place (broadcast
 * in place).
 *
 * Started by Intel MPI's launcher when oneCCL is to run over MPI; without a launcher (-f) it forks
 * its ranks, which find each other through the address of rank 0's store in the control block.
 */
#include "compare_rank.h"

#include <oneapi/ccl.hpp>

namespace
{

/* Rank of a launched process; the launchers of MPICH's family all set this. */
int launchedRank()
{
    const char *text = getenv("PMI_RANK");
    return text ? atoi(text) : -1;
}

ccl::event start(ccl::communicator &comm, cmp_rank *r, int coll, size_t bytes)
{
    const size_t n = bytes / sizeof(float), part = n / (size_t)r->np;
    const auto type = ccl::datatype::float32;
    switch (coll) {
    case CMP_ALL_REDUCE:
        return ccl::allreduce(r->in, r->out, n, type, ccl::reduction::sum, comm);
    case CMP_REDUCE_SCATTER:
        return ccl::reduce_scatter(r->in, r->out, part, type, ccl::reduction::sum, comm);
    case CMP_ALL_GATHER:
        return ccl::allgather(r->in, r->out, part, type, comm);
    case CMP_ALL_TO_ALL:
        return ccl::alltoall(r->in, r->out, part, type, comm);
    case CMP_BROADCAST:
        return ccl::broadcast(r->rank ? r->out : r->in, n, type, 0, comm);
    case CMP_REDUCE:
        return ccl::reduce(r->in, r->out, n, type, ccl::reduction::sum, 0, comm);
    default:
        return ccl::barrier(comm);
    }
}

int onecclOp(void *ctx, cmp_rank *r, int coll, size_t bytes)
{
    try {
        start(*static_cast<ccl::communicator *>(ctx), r, coll, bytes).wait();
        return 0;
    } catch (const std::exception &e) {
        cmp_complain(r->ctl, r->rank, e.what());
        return 1;
    }
}

/* Rank 0 makes the store, the others find it. */
ccl::shared_ptr_class<ccl::kvs> meet(cmp_ctl *ctl, int rank)
{
    ccl::kvs::address_type address;
    static_assert(sizeof address <= sizeof ctl->blob, "an address fits into the control block");
    if (rank == 0) {
        auto store = ccl::create_main_kvs();
        address = store->get_address();
        memcpy(ctl->blob, address.data(), sizeof address);
        __atomic_store_n(&ctl->blob_ready, 1, __ATOMIC_RELEASE);
        cmp_futex_wake(&ctl->blob_ready);
        return store;
    }
    while (!__atomic_load_n(&ctl->blob_ready, __ATOMIC_ACQUIRE))
        cmp_futex_wait(&ctl->blob_ready, 0, 0);
    memcpy(address.data(), ctl->blob, sizeof address);
    return ccl::create_kvs(address);
}

int serve(cmp_ctl *ctl, cmp_rank *r)
{
    ccl::init();
    auto store = meet(ctl, r->rank);
    ccl::communicator comm = ccl::create_communicator(r->np, r->rank, store);
    cmp_pin(ctl, r->rank);
    r->in = cmp_malloc(ctl);
    r->out = cmp_malloc(ctl);
    cmp_fill(r);
    return cmp_serve(r, onecclOp, &comm);
}

int rankMain(cmp_ctl *ctl, int rank)
{
    cmp_rank r = {};
    r.ctl = ctl;
    r.rank = rank;
    r.np = ctl->np;
    r.wait = CMP_WAIT_CPU;
    try {
        return serve(ctl, &r);
    } catch (const std::exception &e) {
        cmp_complain(ctl, rank, e.what());
        return 1;
    }
}

} // namespace

int main(int argc, char **argv)
{
    cmp_ctl *ctl = cmp_attach();
    if (argc > 1 && strcmp(argv[1], "-f") == 0)
        return cmp_fork_ranks(ctl, rankMain);
    if (launchedRank() < 0) {
        fprintf(stderr, "%s: start it with mpiexec, or with -f\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return rankMain(ctl, launchedRank());
}
