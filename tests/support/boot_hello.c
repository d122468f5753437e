/* boot_hello.c - the smallest program for launchers: meet all ranks, gather, say so.
 * `boot_hello N` meets N times, as a program with several communicators does. */
#include "boot.h"

#include <stdio.h>
#include <stdlib.h>

enum { HELLO_MAX_RANKS = 4096, HELLO_TIMEOUT_MS = 20000 };

static int gather(struct boot *b)
{
    static int all[HELLO_MAX_RANKS];
    const int rank = boot_rank(b), mine = 7 * rank + 1;
    if (boot_size(b) > HELLO_MAX_RANKS)
        return 1;
    if (boot_all_gather(b, &mine, sizeof(mine), all, HELLO_TIMEOUT_MS) != KOLO_OK)
        return 1;
    for (int r = 0; r < boot_size(b); r++) {
        if (all[r] != 7 * r + 1)
            return 1;
    }
    return 0;
}

static int meet(void)
{
    struct boot_env env;
    struct boot *b;
    if (boot_create_env(HELLO_TIMEOUT_MS, &env, &b) != KOLO_OK) {
        printf("failed: %s\n", fail_text());
        return 1;
    }
    const int bad = gather(b);
    printf(bad ? "rank %d of %d via %s bad\n" : "rank %d of %d via %s ok\n", env.rank, env.size,
           env.launcher);
    boot_destroy(b);
    return bad;
}

int main(int argc, char **argv)
{
    const int times = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = 0; i < times; i++) {
        if (meet() != 0)
            return 1;
    }
    return 0;
}
