/* overlap.c - communication behind computation, as a training step does it.
 *
 * A layer's gradients are summed over the ranks on a stream while the next layer is computed:
 *
 *     compute 0 | compute 1    | compute 2    | ...          this thread
 *               | all_reduce 0 | all_reduce 1 | all_reduce 2 the stream
 *
 * Prints the time with and without overlap.  It pays when ranks have CPUs to spare for it.
 *
 *     mpirun -n 2 build/release/examples/overlap
 */
#include "kolo.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LAYERS = 8, COUNT = 1 << 18, PASSES = 5 };

/* Gradients live in memory that all ranks of a machine reach. */
struct model {
    float *gradient[LAYERS];
    struct kolo_comm *comm;
    struct kolo_stream *stream;
};

static void check(enum kolo_status status, const char *call, const struct kolo_comm *comm)
{
    if (status == KOLO_OK)
        return;
    fprintf(stderr, "%s: %s\n", call, kolo_last_error(comm));
    exit(1);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Stands for a layer's backward pass: after it, gradient[i] = value + i % 2. */
static void compute(float *gradient, float value)
{
    for (int pass = 1; pass <= PASSES; pass++) {
        for (int i = 0; i < COUNT; i++)
            gradient[i] = (value + (float)(i % 2)) * (float)pass / PASSES;
    }
}

/* One step; milliseconds it took.  With a stream each all-reduce returns at once, without one
 * (NULL) when it is done. */
static double step(struct model *m, struct kolo_stream *stream)
{
    const double start = now_ms();
    const float value = (float)(kolo_comm_rank(m->comm) + 1);
    for (int k = 0; k < LAYERS; k++) {
        compute(m->gradient[k], value);
        check(kolo_all_reduce(m->gradient[k], m->gradient[k], COUNT, KOLO_F32, KOLO_SUM, m->comm,
                              stream),
              "kolo_all_reduce", m->comm);
    }
    if (stream)
        check(kolo_stream_synchronize(stream), "kolo_stream_synchronize", m->comm);
    return now_ms() - start;
}

static int count_wrong(const struct model *m)
{
    const int size = kolo_comm_size(m->comm);
    int nwrong = 0;
    for (int k = 0; k < LAYERS; k++) {
        for (int i = 0; i < COUNT; i++)
            nwrong += m->gradient[k][i] != (float)(size * (size + 1) / 2 + size * (i % 2));
    }
    return nwrong;
}

int main(void)
{
    struct model m;
    int nwrong = 0;
    check(kolo_comm_create_env(NULL, &m.comm), "kolo_comm_create_env", NULL);
    check(kolo_stream_create(&m.stream), "kolo_stream_create", NULL);
    for (int k = 0; k < LAYERS; k++) {
        void *memory;
        check(kolo_mem_alloc(&memory, COUNT * sizeof(float)), "kolo_mem_alloc", NULL);
        m.gradient[k] = memory;
    }

    step(&m, NULL); /* the first step pays for first touches of memory */
    const double blocking_ms = step(&m, NULL);
    nwrong += count_wrong(&m);
    const double overlapped_ms = step(&m, m.stream);
    nwrong += count_wrong(&m);
    if (kolo_comm_rank(m.comm) == 0)
        printf("blocking %.2f ms, overlapped %.2f ms\n", blocking_ms, overlapped_ms);
    if (nwrong)
        fprintf(stderr, "rank %d: %d values wrong\n", kolo_comm_rank(m.comm), nwrong);

    kolo_stream_destroy(m.stream);
    kolo_comm_destroy(m.comm);
    for (int k = 0; k < LAYERS; k++)
        check(kolo_mem_free(m.gradient[k]), "kolo_mem_free", NULL);
    return nwrong != 0;
}
