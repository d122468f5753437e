/* compare_contender.c - start and stop the programs of `make compare`: each has a control block of
 * its own, a file beside the CSV, whose path its ranks find in the environment. */
#include "compare_run.h"

#include <errno.h>

static const double start_limit_s = 60, quit_limit_s = 10;

/* The launcher and what it started are a process group: none of them may outlive this, as it would
 * go on spinning beside the others. */
static void end_group(struct contender *c)
{
    kill(-c->pid, SIGTERM);
    for (double until = cmp_now() + 3; c->pid > 0 && cmp_now() < until;) {
        if (waitpid(c->pid, NULL, WNOHANG) == c->pid)
            break;
        usleep(20000);
    }
    kill(-c->pid, SIGKILL);
    waitpid(c->pid, NULL, 0);
}

void contender_retire(struct run *run, struct contender *c, const char *why)
{
    const char *text = c->ctl->text[0] ? c->ctl->text : "no message";
    note(run, "died: %s np=%d: %s (%s)", c->name, run->np, why, text);
    run->failed = 1;
    if (c->pid > 0)
        end_group(c);
    c->pid = 0;
}

const char *contender_await(struct contender *c, uint32_t *word, uint32_t want, double limit_s)
{
    static char why[64];
    const double until = cmp_now() + limit_s;
    for (;;) {
        int status = 0;
        uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if (seen == want)
            return NULL;
        if (waitpid(c->pid, &status, WNOHANG) != 0) {
            const int is_killed = WIFSIGNALED(status);
            kill(-c->pid, SIGKILL);
            c->pid = 0;
            snprintf(why, sizeof why, "ended by itself, %s %d", is_killed ? "signal" : "status",
                     is_killed ? WTERMSIG(status) : WEXITSTATUS(status));
            return why;
        }
        if (cmp_now() > until)
            return "no answer in time";
        cmp_futex_wait(word, seen, 0.02);
    }
}

int contender_launch(struct run *run, struct contender *c)
{
    if (c->ctl)
        munmap(c->ctl, sizeof *c->ctl);
    snprintf(c->path, sizeof c->path, "%s.ctl-%s-%d", run->out_path, c->name, run->np);
    unlink(c->path);
    c->ctl = cmp_map(c->path, 1);
    if (!c->ctl) {
        fprintf(stderr, "cannot create %s: %s\n", c->path, strerror(errno));
        return 1;
    }
    c->ctl->np = run->np;
    c->ctl->ncpus = run->ncpus;
    memcpy(c->ctl->cpus, run->cpus, sizeof run->cpus);
    c->ctl->max_bytes = run->max_bytes;
    fflush(NULL);
    c->pid = fork();
    if (c->pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setenv(CMP_ENV, c->path, 1);
        unsetenv(CMP_LOCK_ENV); /* not for Kolo, which knows its own variables only */
        execl("/bin/sh", "sh", "-c", c->command, (char *)NULL);
        _exit(127);
    }
    const char *why = "cannot fork";
    if (c->pid > 0) {
        setpgid(c->pid, c->pid); /* whoever of the two comes first */
        why = contender_await(c, &c->ctl->ready, (uint32_t)run->np, start_limit_s);
    }
    if (why)
        contender_retire(run, c, why);
    else
        c->is_able = 1;
    return 0;
}

void contender_dismiss(struct run *run, struct contender *c)
{
    if (c->pid > 0) {
        c->ctl->quit = 1;
        __atomic_add_fetch(&c->ctl->turn, 1, __ATOMIC_RELEASE);
        cmp_futex_wake(&c->ctl->turn);
        int status = 0;
        pid_t gone = 0;
        for (double until = cmp_now() + quit_limit_s; gone == 0 && cmp_now() < until;) {
            gone = waitpid(c->pid, &status, WNOHANG);
            if (gone == 0)
                usleep(10000);
        }
        if (gone == 0) {
            contender_retire(run, c, "did not quit in time");
        } else {
            c->pid = 0;
            if (status != 0)
                contender_retire(run, c, "failed while it quit");
        }
    }
    if (c->ctl)
        munmap(c->ctl, sizeof *c->ctl);
    c->ctl = NULL;
    unlink(c->path);
}
