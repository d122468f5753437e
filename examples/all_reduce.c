/* all_reduce.c - the smallest complete program: every rank contributes its number, all get the sum.
 *
 *     mpirun -n 4 build/release/examples/all_reduce      (or srun, torchrun --no-python, or alone)
 */
#include "kolo.h"

#include <stdio.h>

static int failed(const char *call, const struct kolo_comm *comm)
{
    fprintf(stderr, "%s: %s\n", call, kolo_last_error(comm));
    return 1;
}

int main(void)
{
    enum { COUNT = 1000 };
    float mine[COUNT], sum[COUNT];
    struct kolo_comm *comm;
    if (kolo_comm_create_env(NULL, &comm) != KOLO_OK)
        return failed("kolo_comm_create_env", NULL);

    const int rank = kolo_comm_rank(comm), size = kolo_comm_size(comm);
    for (int i = 0; i < COUNT; i++)
        mine[i] = (float)(rank + i);
    if (kolo_all_reduce(mine, sum, COUNT, KOLO_F32, KOLO_SUM, comm, NULL) != KOLO_OK)
        return failed("kolo_all_reduce", comm);

    int nwrong = 0;
    for (int i = 0; i < COUNT; i++)
        nwrong += sum[i] != (float)(size * i + size * (size - 1) / 2);
    printf("rank %d of %d: sum[0] = %g, %d values wrong\n", rank, size, (double)sum[0], nwrong);
    kolo_comm_destroy(comm);
    return nwrong != 0;
}
