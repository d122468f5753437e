/* compare_run.c - the coordinator of `make compare` (compare.h has the picture, compare_run.h its
 * files).  Starts every contender for one number of ranks and gives them the points of the
 * sweep in turn, one burst at a time, so that whatever the host does meanwhile hits all alike.
 * Appends one CSV line per burst, and notes as # lines.
 *
 * usage: compare_run -n RANKS -s BYTES,... -c COLL,... -o FILE [-r ROUNDS] [-x EXTRA] [-t SECONDS]
 *                    [-m SECONDS] [-l BYTES] [-F] NAME=COMMAND ...
 * A NAME that starts with ~ takes part in every second size only; names of Kolo start with kolo,
 * those of bare algorithms with floor.  -l: larger sizes are run with one contender in memory.
 * Exit status: 0; 1 when a contender died, did not answer, or gave a wrong value; 2 usage.
 */
#include "compare_run.h"

#include <errno.h>
#include <stdarg.h>
#include <sys/file.h>

void note(struct run *run, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(run->out, "# %s\n", text);
    fflush(run->out);
    fprintf(stderr, "%s\n", text);
}

void take_machine(struct run *run)
{
    const double slice_s = 40, asked_at = cmp_now();
    if (run->lock_fd < 0 || (run->locked_at > 0 && asked_at - run->locked_at < slice_s))
        return;
    flock(run->lock_fd, LOCK_UN);
    while (flock(run->lock_fd, LOCK_EX) != 0 && errno == EINTR)
        continue;
    run->locked_at = cmp_now();
    run->start += run->locked_at - asked_at;
}

static int parse_sizes(struct run *run, char *list)
{
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        if (run->nsizes == MAX_SIZES)
            return 1;
        run->sizes[run->nsizes] = strtoull(at, NULL, 10) / sizeof(float) * sizeof(float);
        if (run->sizes[run->nsizes++] == 0)
            return 1;
    }
    return 0;
}

static int parse_colls(struct run *run, char *list)
{
    for (char *at = strtok(list, ","); at; at = strtok(NULL, ",")) {
        int coll = 0;
        while (coll < CMP_NCOLLS && strcmp(cmp_coll_name(coll), at) != 0)
            coll++;
        if (coll == CMP_NCOLLS || run->ncolls == CMP_NCOLLS)
            return 1;
        run->colls[run->ncolls++] = coll;
    }
    return 0;
}

static int parse_contender(struct run *run, const char *spec)
{
    const char *equal = strchr(spec, '=');
    if (!equal || run->ncontenders == MAX_CONTENDERS)
        return 1;
    struct contender *c = &run->contenders[run->ncontenders++];
    c->is_sparse = spec[0] == '~';
    if (c->is_sparse)
        spec++;
    snprintf(c->name, sizeof c->name, "%.*s", (int)(equal - spec), spec);
    c->is_peer = strncmp(c->name, "kolo", 4) != 0 && strncmp(c->name, "floor", 5) != 0;
    c->command = equal + 1;
    return 0;
}

static int parse(struct run *run, int argc, char **argv)
{
    int option, bad = 0;
    while ((option = getopt(argc, argv, "n:s:c:o:r:x:t:m:l:F")) != -1) {
        switch (option) {
        case 'n':
            run->np = atoi(optarg);
            break;
        case 's':
            bad |= parse_sizes(run, optarg);
            break;
        case 'c':
            bad |= parse_colls(run, optarg);
            break;
        case 'o':
            run->out_path = optarg;
            break;
        case 'r':
            run->rounds = atoi(optarg);
            break;
        case 'x':
            run->extra = atoi(optarg);
            break;
        case 't':
            run->burst_s = atof(optarg);
            break;
        case 'm':
            run->limit_s = atof(optarg);
            break;
        case 'l':
            run->solo_above = strtoull(optarg, NULL, 10);
            break;
        case 'F':
            run->is_fresh = 1;
            break;
        default:
            bad = 1;
        }
    }
    for (int i = optind; i < argc; i++)
        bad |= parse_contender(run, argv[i]);
    bad |= run->np < 1 || run->np > CMP_MAX_RANKS || run->nsizes == 0 || run->ncolls == 0;
    bad |= run->rounds < 1 || run->extra < 0 || run->rounds + run->extra > MAX_ROUNDS;
    return bad || !run->out_path || run->ncontenders == 0;
}

static void find_cpus(struct run *run)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        CPU_SET(0, &set);
    for (int i = 0; i < CMP_MAX_CPUS && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, &set))
            run->cpus[run->ncpus++] = i;
    }
}

static void open_lock(struct run *run)
{
    const char *path = getenv(CMP_LOCK_ENV);
    if (!path)
        return;
    run->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->lock_fd < 0)
        note(run, "cannot open the lock %s: %s; going on without it", path, strerror(errno));
}

int main(int argc, char **argv)
{
    static struct run run = {.rounds = 3,
                             .extra = 2,
                             .burst_s = 0.015,
                             .limit_s = 1e9,
                             .solo_above = SIZE_MAX,
                             .lock_fd = -1};
    if (parse(&run, argc, argv)) {
        fprintf(stderr, "usage: compare_run -n RANKS -s BYTES,... -c COLL,... -o FILE [-r ROUNDS] "
                        "[-x EXTRA] [-t SECONDS] [-m SECONDS] [-l BYTES] [-F] "
                        "NAME=COMMAND ...\n");
        return 2;
    }
    run.out = fopen(run.out_path, "a");
    if (!run.out) {
        fprintf(stderr, "cannot open %s: %s\n", run.out_path, strerror(errno));
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    run.start = cmp_now();
    find_cpus(&run);
    open_lock(&run);
    int status = sweep(&run);
    fclose(run.out);
    return status;
}
