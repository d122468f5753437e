/* test_steady.c - what an operation that has been done before does not do: allocate, lock, fault a
 * page, call the system.
 *
 * System calls are kept from happening by a seccomp filter that a rank puts on after its warm-up
 * and dies with.  A late partner may cost sched_yield, and after 20 ms a look at its socket; ranks
 * that spin show that there is no more to an operation than that. */
#include "support/check.h"

#include "cfg.h"
#include "mem.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST = 1 << 20, /* bytes of the largest buffer */
    WARM = 150,     /* more than the messages in flight of any link, and the tries of each way */
    STEADY = 50,
    REMOTE = 16384, /* private buffers of this size may be copied by the kernel */
    NCASES = KOLO_COLL_SEND + 1,
};

static const size_t sizes[] = {8, 48, 2048, 4096, 65536, MOST};
enum { NSIZES = sizeof sizes / sizeof *sizes };

/* ---- counting ---- */

static _Thread_local uint64_t locks;

#ifndef KOLO_TEST_DRIVER
/* The sanitizers have their own. */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*_Atomic real)(pthread_mutex_t *);
    if (!real)
        real = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    locks++;
    return real(mutex);
}
#endif

struct counts {
    uint64_t allocations;
    uint64_t locks;
    uint64_t faults;
};

static struct counts count_now(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (struct counts){mem_count(), locks, (uint64_t)usage.ru_minflt};
}

/* ---- the operations ---- */

struct bench {
    struct kolo_comm *comm;
    unsigned char *send, *recv;
    int n, rank;
};

/* One operation whose largest buffer has `bytes`. */
static enum kolo_status operate(const struct bench *b, int coll, size_t bytes)
{
    const size_t all = bytes / sizeof(float), one = all / (size_t)b->n;
    const size_t counts[2] = {one, one};
    struct kolo_comm *comm = b->comm;
    const int type = KOLO_F32, op = KOLO_SUM;
    switch (coll) {
    case KOLO_COLL_ALL_REDUCE:
        return kolo_all_reduce(b->send, b->recv, all, type, op, comm, NULL);
    case KOLO_COLL_REDUCE_SCATTER:
        return kolo_reduce_scatter(b->send, b->recv, one, type, op, comm, NULL);
    case KOLO_COLL_ALL_GATHER:
        return kolo_all_gather(b->send, b->recv, one, type, comm, NULL);
    case KOLO_COLL_ALL_TO_ALL:
        return kolo_all_to_all(b->send, b->recv, one, type, comm, NULL);
    case KOLO_COLL_BROADCAST:
        return kolo_broadcast(b->send, b->recv, all, type, 0, comm, NULL);
    case KOLO_COLL_REDUCE:
        return kolo_reduce(b->send, b->recv, all, type, op, 0, comm, NULL);
    case KOLO_COLL_GATHER:
        return kolo_gather(b->send, b->recv, one, type, 0, comm, NULL);
    case KOLO_COLL_SCATTER:
        return kolo_scatter(b->send, b->recv, one, type, 0, comm, NULL);
    case KOLO_COLL_BARRIER:
        return kolo_barrier(comm, NULL);
    case KOLO_COLL_REDUCE_SCATTER_V:
        return kolo_reduce_scatter_v(b->send, b->recv, counts, type, op, comm, NULL);
    case KOLO_COLL_ALL_GATHER_V:
        return kolo_all_gather_v(b->send, b->recv, counts, NULL, type, comm, NULL);
    case KOLO_COLL_ALL_TO_ALL_V:
        return kolo_all_to_all_v(b->send, counts, NULL, b->recv, counts, NULL, type, comm, NULL);
    default: /* from rank 0 to 1 */
        if (b->n == 1)
            return KOLO_OK;
        return b->rank == 0 ? kolo_send(b->send, all, type, 1, comm, NULL)
                            : kolo_recv(b->recv, all, type, 0, comm, NULL);
    }
}

static const char *repeat(const struct bench *b, int coll, size_t bytes, int times)
{
    for (int i = 0; i < times; i++)
        if (operate(b, coll, bytes) != KOLO_OK)
            return ranks_text("%s: %s", kolo_coll_name(coll), kolo_last_error(b->comm));
    return NULL;
}

static const char *bench_open(struct bench *b, struct kolo_comm *comm, bool is_shared)
{
    void *memory[2];
    for (int i = 0; i < 2; i++) {
        if (is_shared && kolo_mem_alloc(&memory[i], MOST) != KOLO_OK)
            return kolo_last_error(NULL);
        if (!is_shared && !(memory[i] = malloc(MOST)))
            return "out of memory";
        memset(memory[i], 1, MOST);
    }
    *b = (struct bench){comm, memory[0], memory[1], kolo_comm_size(comm), kolo_comm_rank(comm)};
    return NULL;
}

/* Every operation and size once in steady state, so that nothing is new later. */
/* Calls after which every page is there: once around a link's ring of slots (2 MiB), of which a
 * call takes half its size at least, unless its messages need no slot. */
static int warm_calls(size_t bytes)
{
    enum { RING = 2 << 20, NO_SLOT = 1024 };
    const size_t around = bytes > NO_SLOT ? RING / (bytes / 2) : 0;
    return WARM + (int)around;
}

static const char *warm_up(const struct bench *b, size_t from, size_t to)
{
    for (size_t k = 0; k < NSIZES; k++)
        for (int coll = 0; coll < NCASES && sizes[k] >= from && sizes[k] <= to; coll++) {
            const char *wrong = repeat(b, coll, sizes[k], warm_calls(sizes[k]));
            if (wrong)
                return wrong;
        }
    return NULL;
}

/* ---- no allocation, no lock, no fault ---- */

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Three times, since code that runs only when a partner is late may be new to the page tables: what
 * an operation needs by itself, it needs each time. */
static const char *count_case(const struct bench *b, int coll, size_t bytes)
{
    struct counts c = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const char *wrong = repeat(b, coll, bytes, warm_calls(bytes));
    for (int tries = 0; !wrong && tries < 3; tries++) {
        const struct counts before = count_now();
        wrong = repeat(b, coll, bytes, STEADY);
        const struct counts after = count_now();
        c.allocations = least(c.allocations, after.allocations - before.allocations);
        c.locks = least(c.locks, after.locks - before.locks);
        c.faults = least(c.faults, after.faults - before.faults);
    }
    if (wrong || (c.allocations == 0 && c.locks == 0 && c.faults == 0))
        return wrong;
    return ranks_text("%d times %s of %zu bytes: %llu allocations, %llu locks, %llu faults", STEADY,
                      kolo_coll_name(coll), bytes, (unsigned long long)c.allocations,
                      (unsigned long long)c.locks, (unsigned long long)c.faults);
}

static const char *count_all(struct kolo_comm *comm, void *arg)
{
    struct bench b;
    const char *wrong = bench_open(&b, comm, arg != NULL);
    for (size_t k = 0; k < NSIZES; k++)
        for (int coll = 0; !wrong && coll < NCASES; coll++)
            wrong = count_case(&b, coll, sizes[k]);
    return wrong;
}

/* how: always or never copy private buffers through the kernel; else that changes with what is
 * measured, and each way has pages of its own. */
static void set_options(const char *wait, const char *how)
{
    setenv("KOLO_WAIT", wait, 1);
    setenv("KOLO_CMA", how, 1);
    cfg_reset();
}

static char is_shared;

Test(steady, one_rank_neither_allocates_nor_locks_nor_faults)
{
    set_options("yield", "auto");
    check(ranks_processes(1, NULL, count_all, NULL, -1));
    check(ranks_processes(1, NULL, count_all, &is_shared, -1));
}

Test(steady, two_ranks_with_private_buffers_neither_allocate_nor_lock_nor_fault)
{
    set_options("yield", "never");
    check(ranks_processes(2, NULL, count_all, NULL, -1));
    set_options("yield", "always");
    check(ranks_processes(2, NULL, count_all, NULL, -1));
}

Test(steady, two_ranks_with_shared_buffers_neither_allocate_nor_lock_nor_fault)
{
    set_options("yield", "auto");
    check(ranks_processes(2, NULL, count_all, &is_shared, -1));
}

/* ---- no system call ---- */

/* What a rank leaves behind when it ends itself. */
struct report {
    _Atomic int nfinished;
    _Atomic int call; /* number of the first system call that was not allowed; -1 */
    int coll;         /* of the rank that made it */
    size_t bytes;
};

static struct report *report;
static struct report now; /* of this process: the operation that is running */

static void on_call(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    int none = -1;
    if (__atomic_compare_exchange_n((int *)&report->call, &none, info->si_syscall, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        report->coll = now.coll;
        report->bytes = now.bytes;
    }
    syscall(SYS_exit_group, 1);
}

/* What poll() becomes. */
#ifdef SYS_poll
#define LOOK_CALL SYS_poll
#else
#define LOOK_CALL SYS_ppoll
#endif

#define ALLOW(number)                                                                              \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* From here on only looking at sockets and the end of the process, and if asked for giving the CPU
 * away and copying through the kernel.  false where the machine has no such filters. */
static bool forbid_calls(bool may_yield, bool may_copy)
{
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    sigaction(SIGSYS, &action, NULL);
    const unsigned yield_call = may_yield ? SYS_sched_yield : SYS_exit_group;
    const unsigned read_call = may_copy ? SYS_process_vm_readv : SYS_exit_group;
    const unsigned write_call = may_copy ? SYS_process_vm_writev : SYS_exit_group;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_exit_group),
        ALLOW(SYS_ppoll),
        ALLOW(LOOK_CALL),
        ALLOW(yield_call),
        ALLOW(read_call),
        ALLOW(write_call),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

struct silence {
    bool is_shared;
    size_t from, to; /* sizes */
    bool spins;      /* else yields */
};

static const char *silent(struct kolo_comm *comm, void *arg)
{
    const struct silence *s = arg;
    struct bench b;
    const char *wrong = bench_open(&b, comm, s->is_shared);
    if (!wrong)
        wrong = warm_up(&b, s->from, s->to);
    if (wrong)
        return wrong;
    if (!forbid_calls(!s->spins, !s->is_shared && s->from >= REMOTE))
        return ranks_text("seccomp: %s", strerror(errno));
    for (size_t k = 0; k < NSIZES; k++)
        for (int coll = 0; coll < NCASES && sizes[k] >= s->from && sizes[k] <= s->to; coll++) {
            now.coll = coll;
            now.bytes = sizes[k];
            if (repeat(&b, coll, sizes[k], STEADY))
                syscall(SYS_exit_group, 2);
        }
    report->nfinished++;
    syscall(SYS_exit_group, 0); /* nothing else is allowed any more */
    return NULL;
}

static void expect_silence(int n, struct silence s)
{
    set_options(s.spins ? "spin" : "yield", "auto");
    report = mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(report != MAP_FAILED);
    report->call = -1;
    const char *wrong = ranks_processes(n, NULL, silent, &s, -1);
    cr_assert_eq(report->call, -1, "%s of %zu bytes on %d ranks made system call %d",
                 kolo_coll_name(report->coll), report->bytes, n, report->call);
    check(wrong);
    cr_assert_eq(report->nfinished, n);
    munmap(report, sizeof *report);
}

Test(steady, one_rank_makes_no_system_call)
{
    expect_silence(1, (struct silence){false, 0, MOST, true});
    expect_silence(1, (struct silence){true, 0, MOST, true});
}

Test(steady, two_ranks_with_shared_buffers_only_wait)
{
    expect_silence(2, (struct silence){true, 0, MOST, false});
}

Test(steady, two_ranks_with_private_buffers_only_wait_or_copy)
{
    expect_silence(2, (struct silence){false, 0, REMOTE - 1, false});
    expect_silence(2, (struct silence){false, REMOTE, MOST, false});
}

Test(steady, two_ranks_that_spin_make_no_system_call)
{
    expect_silence(2, (struct silence){true, 0, 8, true});
    expect_silence(2, (struct silence){false, 0, 8, true});
}
