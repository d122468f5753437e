/* kolo_bench - how fast collectives are here, and whether they are right.
 *
 * One subcommand a collective; options, columns and formulas are those of nccl-tests, so that
 * scripts written for it work.  Parts: bench.h.
 */
#include "bench.h"

const struct bench_command bench_commands[] = {
    {"all_reduce", "every rank gets the reduction of all buffers", BENCH_ALL_REDUCE, true, false,
     false, true, BENCH_FACTOR_ALL_REDUCE},
    {"all_gather", "every rank gets all buffers, one after the other", BENCH_ALL_GATHER, false,
     false, true, true, BENCH_FACTOR_PART},
    {"reduce_scatter", "every rank gets its part of the reduction", BENCH_REDUCE_SCATTER, true,
     false, true, true, BENCH_FACTOR_PART},
    {"all_to_all", "every rank sends a block to every rank", BENCH_ALL_TO_ALL, false, false, true,
     true, BENCH_FACTOR_PART},
    {"all_to_all_v", "the same with uneven blocks, some of them empty", BENCH_ALL_TO_ALL_V, false,
     false, true, true, BENCH_FACTOR_PART},
    {"broadcast", "every rank gets the buffer of the root", BENCH_BROADCAST, false, true, false,
     true, BENCH_FACTOR_ONE},
    {"reduce", "the root gets the reduction of all buffers", BENCH_REDUCE, true, true, false, true,
     BENCH_FACTOR_ONE},
    {"gather", "the root gets all buffers, one after the other", BENCH_GATHER, false, true, true,
     true, BENCH_FACTOR_PART},
    {"scatter", "every rank gets its part of the root's buffer", BENCH_SCATTER, false, true, true,
     true, BENCH_FACTOR_PART},
    {"sendrecv", "every rank sends to the next and receives from the one before", BENCH_SENDRECV,
     false, false, false, false, BENCH_FACTOR_ONE},
    {"barrier", "no rank leaves before all have entered", BENCH_BARRIER, false, false, false, false,
     BENCH_FACTOR_ONE},
};

int main(int argc, char **argv)
{
    struct bench_options options;
    int code;
    if (bench_options_parse(argc, argv, &options, &code))
        return code;
    return bench_ranks_run(&options, argv);
}
