/* compare_gloo.cc - Gloo in `make compare`: TCP over loopback, its ring all_reduce, float sums.
 *
 * usage: compare_gloo DIRECTORY     where the ranks find each other
 * Ranks are not pinned, as each has a second thread that needs a CPU; for the same reason they
 * sleep in the harness' barrier.
 */
#include "compare_rank.h"

#include <sys/stat.h>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>
#include <string>
#include <vector>

namespace
{

std::string directory;

struct Gloo {
    /* The older class of reduce_scatter gets connections of its own: after it, a large all_reduce
     * over the same ones hangs (Gloo of 2022). */
    std::shared_ptr<gloo::rendezvous::Context> context, olderContext;
    /* built for one buffer and one size, kept while the size stays */
    std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduceScatter;
    size_t reduceScatterBytes = 0;
    uint32_t tag = 1;
};

void add(void *out, const void *x, const void *y, size_t n)
{
    gloo::sum<float>(out, x, y, n);
}

/* Works in place, so the input is copied first. */
void runReduceScatter(Gloo &g, cmp_rank *r, size_t bytes)
{
    const size_t n = bytes / sizeof(float);
    if (g.reduceScatterBytes != bytes) {
        const int part = (int)(n / (size_t)r->np);
        g.reduceScatter.reset(new gloo::ReduceScatterHalvingDoubling<float>(
            g.olderContext, std::vector<float *>{r->out}, (int)n,
            std::vector<int>((size_t)r->np, part)));
        g.reduceScatterBytes = bytes;
    }
    memcpy(r->out, r->in, bytes);
    g.reduceScatter->run();
}

template <class Options>
void runGather(Gloo &g, cmp_rank *r, size_t nin, size_t nout, void (*f)(Options &))
{
    Options o(g.context);
    o.setInput(r->in, nin);
    o.setOutput(r->out, nout);
    o.setTag(g.tag);
    f(o);
}

void run(Gloo &g, cmp_rank *r, int coll, size_t bytes)
{
    const size_t n = bytes / sizeof(float), part = n / (size_t)r->np;
    g.tag = (g.tag + 1) & 0xffff;
    if (coll == CMP_ALL_REDUCE) {
        gloo::AllreduceOptions o(g.context);
        o.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        o.setInput(r->in, n);
        o.setOutput(r->out, n);
        o.setReduceFunction(add);
        o.setTag(g.tag);
        gloo::allreduce(o);
    } else if (coll == CMP_REDUCE_SCATTER) {
        runReduceScatter(g, r, bytes);
    } else if (coll == CMP_ALL_GATHER) {
        runGather<gloo::AllgatherOptions>(g, r, part, n, gloo::allgather);
    } else if (coll == CMP_ALL_TO_ALL) {
        runGather<gloo::AlltoallOptions>(g, r, n, n, gloo::alltoall);
    } else if (coll == CMP_BROADCAST) {
        gloo::BroadcastOptions o(g.context);
        o.setOutput(r->rank ? r->out : r->in, n);
        o.setRoot(0);
        o.setTag(g.tag);
        gloo::broadcast(o);
    } else if (coll == CMP_REDUCE) {
        gloo::ReduceOptions o(g.context);
        o.setInput(r->in, n);
        o.setOutput(r->out, n);
        o.setRoot(0);
        o.setReduceFunction(add);
        o.setTag(g.tag);
        gloo::reduce(o);
    } else {
        gloo::BarrierOptions o(g.context);
        o.setTag(g.tag);
        gloo::barrier(o);
    }
}

int glooOp(void *ctx, cmp_rank *r, int coll, size_t bytes)
{
    try {
        run(*static_cast<Gloo *>(ctx), r, coll, bytes);
        return 0;
    } catch (const std::exception &e) {
        cmp_complain(r->ctl, r->rank, e.what());
        return 1;
    }
}

std::shared_ptr<gloo::rendezvous::Context> connect(int rank, int np, const std::string &where)
{
    gloo::transport::tcp::attr attr("127.0.0.1");
    auto device = gloo::transport::tcp::CreateDevice(attr);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, np);
    gloo::rendezvous::FileStore store(where);
    context->setTimeout(std::chrono::milliseconds(30000));
    context->connectFullMesh(store, device);
    return context;
}

int rankMain(cmp_ctl *ctl, int rank)
{
    cmp_rank r = {};
    r.ctl = ctl;
    r.rank = rank;
    r.np = ctl->np;
    r.wait = CMP_WAIT_SLEEP;
    Gloo g;
    try {
        g.context = connect(rank, ctl->np, directory + "/new");
        g.olderContext = connect(rank, ctl->np, directory + "/older");
    } catch (const std::exception &e) {
        cmp_complain(ctl, rank, e.what());
        return 1;
    }
    r.in = cmp_malloc(ctl);
    r.out = cmp_malloc(ctl);
    cmp_fill(&r);
    return cmp_serve(&r, glooOp, &g);
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    directory = std::string(argv[1]) + "/meet-XXXXXX"; /* a new one for each start */
    if (!mkdtemp(&directory[0]) || mkdir((directory + "/new").c_str(), 0700) != 0 ||
        mkdir((directory + "/older").c_str(), 0700) != 0) {
        perror(argv[1]);
        return 1;
    }
    return cmp_fork_ranks(cmp_attach(), rankMain);
}
