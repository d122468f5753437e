/* test_boot_env.c - who started this process: every launcher's variables, nonsense in them,
 * launchers that disagree, and the real launchers of this machine where there are some. */
#include "support/test.h"

#include "boot.h"
#include "boot_env.h"
#include "cfg.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Everything that a launcher above the tests may have set. */
static void forget_launchers(void)
{
    static const char *const names[] = {"KOLO_RANK",
                                        "KOLO_SIZE",
                                        "KOLO_LOCAL_RANK",
                                        "KOLO_ADDR",
                                        "KOLO_LAUNCHER",
                                        "KOLO_SECRET",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_FD",
                                        "PMI_PORT",
                                        "PMI_ID",
                                        "MPI_LOCALRANKID",
                                        "MPI_LOCALNRANKS",
                                        "PALS_RANKID",
                                        "PALS_SIZE",
                                        "PALS_LOCAL_RANKID",
                                        "PALS_LOCAL_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NODEID",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "JAX_PROCESS_ID",
                                        "JAX_NUM_PROCESSES",
                                        "JAX_COORDINATOR_ADDRESS",
                                        "JOB_COMPLETION_INDEX",
                                        "JOBSET_NAME",
                                        "JOB_NAME"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    cfg_reset();
}

/* Nothing but these: "A=1 B=x". */
static void set_only(const char *variables)
{
    char text[512], *at = text;
    forget_launchers();
    cr_assert_lt(strlen(variables), sizeof(text));
    memcpy(text, variables, strlen(variables) + 1);
    while (*at != '\0') {
        char *end = at + strcspn(at, " ");
        char *value = strchr(at, '=');
        const bool is_last = *end == '\0';
        *end = '\0';
        *value = '\0';
        setenv(at, value + 1, 1);
        at = is_last ? end : end + 1;
    }
    cfg_reset();
}

#define TORCH                                                                                      \
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h TORCHELASTIC_RUN_ID=j"
#define OMPI                                                                                       \
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=2 "                  \
    "OMPI_COMM_WORLD_LOCAL_SIZE=3"
#define HYDRA "PMI_RANK=1 PMI_SIZE=4 PMI_FD=6 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2"
#define SLURM                                                                                      \
    "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=6 SLURM_LOCALID=1 SLURM_NODEID=1 "                        \
    "SLURM_STEP_TASKS_PER_NODE=2(x2),1"

Test(boot_env, finds_each_launcher)
{
    static const struct {
        const char *variables;
        struct boot_env want;
    } cases[] = {
        {"", {"single", 0, 1, 0, 1}},
        {"KOLO_RANK=1 KOLO_SIZE=2", {"kolo", 1, 2, -1, -1}},
        {"KOLO_RANK=1 KOLO_SIZE=2 KOLO_LOCAL_RANK=0", {"kolo", 1, 2, 0, -1}},
        {TORCH, {"torchrun", 5, 8, 1, 4}},
        {"PMIX_RANK=2 PMIX_NAMESPACE=7 " OMPI, {"pmix", 2, 3, 2, 3}},
        {OMPI, {"ompi", 2, 3, 2, 3}},
        {HYDRA, {"pmi", 1, 4, 0, 2}},
        {"PALS_RANKID=0 PALS_SIZE=9 PALS_LOCAL_RANKID=0", {"pals", 0, 9, 0, -1}},
        {SLURM, {"slurm", 3, 6, 1, 2}},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", {"env", 0, 2, -1, -1}},
        {"JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=h:1", {"jax", 1, 2, -1, -1}},
        {"JOB_COMPLETION_INDEX=3 KOLO_SIZE=4", {"k8s", 3, 4, -1, -1}},
        /* KOLO_SIZE belongs to KOLO_RANK; the index of the pod is then no rank. */
        {"JOB_COMPLETION_INDEX=3 KOLO_SIZE=8 KOLO_RANK=7", {"kolo", 7, 8, -1, -1}},
        /* A batch script is in no step; half a pair of names that anybody may use is nothing. */
        {"SLURM_PROCID=0 SLURM_NTASKS=16", {"single", 0, 1, 0, 1}},
        {"RANK=3", {"single", 0, 1, 0, 1}},
        {"RANK=3 WORLD_SIZE=4", {"single", 0, 1, 0, 1}},
        {"WORLD_SIZE=4 MASTER_ADDR=h", {"single", 0, 1, 0, 1}},
        {"RANK= WORLD_SIZE= MASTER_ADDR=", {"single", 0, 1, 0, 1}},
        /* Daemons above leak. */
        {TORCH " SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", {"torchrun", 5, 8, 1, 4}},
        {TORCH " " OMPI, {"torchrun", 5, 8, 1, 4}},
        {TORCH " JOB_COMPLETION_INDEX=1 SLURM_PROCID=junk SLURM_STEP_NUM_TASKS=1",
         {"torchrun", 5, 8, 1, 4}},
        {HYDRA " SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", {"pmi", 1, 4, 0, 2}},
        {OMPI " SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1", {"ompi", 2, 3, 2, 3}},
        /* Others agree, and complete each other. */
        {"KOLO_RANK=3 KOLO_SIZE=6 " SLURM, {"kolo", 3, 6, 1, 2}},
        {"PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.1.0 " SLURM, {"pmix", 3, 6, 1, 2}},
        {"PMI_RANK=3 PMI_SIZE=6 PMI_FD=9 " SLURM, {"pmi", 3, 6, 1, 2}},
        /* Chosen: the others are not even read. */
        {"KOLO_LAUNCHER=single " OMPI, {"single", 0, 1, 0, 1}},
        {"KOLO_LAUNCHER=slurm RANK=x WORLD_SIZE=2 MASTER_ADDR=h " SLURM, {"slurm", 3, 6, 1, 2}},
        {"KOLO_LAUNCHER=env " TORCH, {"env", 5, 8, 1, 4}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct boot_env *want = &cases[i].want;
        struct boot_env env;
        set_only(cases[i].variables);
        cr_assert_eq(boot_env_find(&env), KOLO_OK, "%s: %s", cases[i].variables, fail_text());
        cr_assert_str_eq(env.launcher, want->launcher, "%s: %s", cases[i].variables, env.launcher);
        cr_assert(env.rank == want->rank && env.size == want->size, "%s: %d of %d",
                  cases[i].variables, env.rank, env.size);
        cr_assert(env.local_rank == want->local_rank && env.local_size == want->local_size,
                  "%s: local %d of %d", cases[i].variables, env.local_rank, env.local_size);
    }
    forget_launchers();
}

Test(boot_env, nonsense_and_disagreement_are_errors)
{
    static const struct {
        const char *variables;
        enum kolo_status status;
        const char *words[2];
    } cases[] = {
        {"KOLO_RANK=abc KOLO_SIZE=2", KOLO_ERR_ARG, {"KOLO_RANK=abc", ""}},
        {"KOLO_RANK=1x KOLO_SIZE=2", KOLO_ERR_ARG, {"KOLO_RANK=1x", ""}},
        {"KOLO_RANK=-1 KOLO_SIZE=2", KOLO_ERR_ARG, {"KOLO_RANK=-1", ""}},
        {"KOLO_RANK=2 KOLO_SIZE=2", KOLO_ERR_ARG, {"KOLO_RANK=2", "KOLO_SIZE=2"}},
        {"KOLO_RANK=0 KOLO_SIZE=0", KOLO_ERR_ARG, {"KOLO_SIZE=0", ""}},
        {"KOLO_RANK=0 KOLO_SIZE=99999999999999999999", KOLO_ERR_ARG, {"KOLO_SIZE=9999", ""}},
        {"KOLO_RANK=0", KOLO_ERR_ARG, {"KOLO_RANK=0", "KOLO_SIZE"}},
        {"KOLO_SIZE=4", KOLO_ERR_ARG, {"KOLO_SIZE=4", "KOLO_RANK"}},
        {"RANK=0x1 WORLD_SIZE=4 MASTER_ADDR=h", KOLO_ERR_ARG, {"RANK=0x1", ""}},
        {"RANK=1 MASTER_ADDR=h", KOLO_ERR_ARG, {"RANK=1", "WORLD_SIZE"}},
        {"PMI_RANK=1", KOLO_ERR_ARG, {"PMI_RANK=1", "PMI_SIZE"}},
        {"OMPI_COMM_WORLD_RANK=1", KOLO_ERR_ARG, {"OMPI_COMM_WORLD_SIZE", ""}},
        {"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=2 "
         "OMPI_COMM_WORLD_LOCAL_SIZE=2",
         KOLO_ERR_ARG,
         {"LOCAL_RANK=2", "LOCAL_SIZE=2"}},
        {"JOB_COMPLETION_INDEX=0", KOLO_ERR_ARG, {"KOLO_SIZE", "KOLO_LAUNCHER=single"}},
        {"KOLO_LAUNCHER=mpirun", KOLO_ERR_ARG, {"KOLO_LAUNCHER=mpirun", "torchrun"}},
        {"KOLO_LAUNCHER=slurm SLURM_PROCID=0", KOLO_ERR_ARG, {"SLURM_STEP_NUM_TASKS", ""}},
        {"RANK=0 WORLD_SIZE=3 MASTER_ADDR=h " OMPI, KOLO_ERR_SETUP, {"ompi says 2", "env says 0"}},
        {"RANK=2 WORLD_SIZE=4 MASTER_ADDR=h " OMPI, KOLO_ERR_SETUP, {"ompi says 3", "env says 4"}},
        {"KOLO_RANK=0 KOLO_SIZE=8 " TORCH, KOLO_ERR_SETUP, {"kolo says 0", "torchrun says 5"}},
        {"PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.1.0 " SLURM,
         KOLO_ERR_SETUP,
         {"pmix says 2", "slurm says 3"}},
        {"PMIX_RANK=2 PMIX_NAMESPACE=7 RANK=2 WORLD_SIZE=9 MASTER_ADDR=h " OMPI,
         KOLO_ERR_SETUP,
         {"ompi says 3", "env says 9"}},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct boot_env env = {.launcher = "untouched"};
        set_only(cases[i].variables);
        const enum kolo_status status = boot_env_find(&env);
        cr_assert_eq(status, cases[i].status, "%s: %d %s", cases[i].variables, status, fail_text());
        for (int k = 0; k < 2; k++)
            cr_assert(strstr(fail_text(), cases[i].words[k]) != NULL, "%s: no '%s' in: %s",
                      cases[i].variables, cases[i].words[k], fail_text());
        cr_assert_str_eq(env.launcher, "untouched", "%s", cases[i].variables);
    }
    forget_launchers();
}

Test(boot_env, wrong_addresses_are_errors)
{
    static const char *const cases[][2] = {
        {"KOLO_RANK=0 KOLO_SIZE=2", "KOLO_ADDR"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=host", "KOLO_ADDR=host"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=:5", "KOLO_ADDR=:5"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=h:0", "KOLO_ADDR=h:0"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=h:5x", "KOLO_ADDR=h:5x"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=[::1", "KOLO_ADDR=[::1"},
        {"KOLO_RANK=0 KOLO_SIZE=2 KOLO_ADDR=h:65536", "KOLO_ADDR=h:65536"},
        {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=x", "MASTER_PORT=x"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST"},
        {"SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=n[1", "n[1"},
        {"JOB_COMPLETION_INDEX=77777 KOLO_SIZE=88888", "<job>-77777"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct boot *b = NULL;
        struct boot_env env;
        set_only(cases[i][0]);
        cr_assert_eq(boot_create_env(300, &env, &b), KOLO_ERR_ARG, "%s: %s", cases[i][0],
                     fail_text());
        cr_assert(strstr(fail_text(), cases[i][1]) != NULL, "%s: no '%s' in: %s", cases[i][0],
                  cases[i][1], fail_text());
        cr_assert_null(b);
    }
    forget_launchers();
}

Test(boot_env, one_rank_needs_no_launcher)
{
    static const char *const cases[] = {"", "KOLO_RANK=0 KOLO_SIZE=1",
                                        "RANK=0 WORLD_SIZE=1 MASTER_ADDR=nowhere.invalid"};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct boot *b;
        struct boot_env env;
        set_only(cases[i]);
        cr_assert_eq(boot_create_env(300, &env, &b), KOLO_OK, "%s: %s", cases[i], fail_text());
        cr_assert(env.size == 1 && boot_size(b) == 1);
        boot_destroy(b);
    }
    forget_launchers();
}

Test(boot_env, prints_what_it_saw)
{
    char buffer[1024];
    struct text t;
    set_only(TORCH " SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2");
    text_init(&t, buffer, sizeof(buffer));
    boot_env_print(&t);
    cr_assert(strstr(buffer, "torchrun: rank 5 of 8") != NULL, "%s", buffer);
    cr_assert(strstr(buffer, "SLURM_PROCID=0") != NULL && strstr(buffer, "not asked") != NULL, "%s",
              buffer);
    set_only("KOLO_RANK=junk KOLO_SIZE=2");
    text_init(&t, buffer, sizeof(buffer));
    boot_env_print(&t);
    cr_assert(strstr(buffer, "unknown: KOLO_RANK=junk") != NULL, "%s", buffer);
    forget_launchers();
}

Test(boot_env, node_lists_expand)
{
    static const char *const good[][2] = {
        {"n1", "n1"},
        {"n[001,007-015],x2", "n001"},
        {"n[7-15]-ib", "n7-ib"},
        {"a.b-c_d,e", "a.b-c_d"},
        {"r[1-2]n[03-04]", "r1n03"},
        {"n[5]", "n5"},
        {"10", "10"},
    };
    static const char *const bad[] = {"",    ",n1",    "n[", "n[]", "n[a]",
                                      "n[1", "n[1;2]", "n]", "n 1", "n\n"};
    char host[32];
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        cr_assert(nodelist_first(good[i][0], host, sizeof(host)), "%s", good[i][0]);
        cr_assert_str_eq(host, good[i][1], "%s gave %s", good[i][0], host);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        cr_assert_not(nodelist_first(bad[i], host, sizeof(host)), "'%s'", bad[i]);
    cr_assert_not(nodelist_first("n123456", host, 7), "does not fit");
    cr_assert(nodelist_first("n12345", host, 7), "fits");
}

Test(boot_env, task_lists_expand)
{
    static const struct {
        const char *list;
        int node, tasks;
    } cases[] = {
        {"3", 0, 3},
        {"3", 1, -1},
        {"2(x3),1", 0, 2},
        {"2(x3),1", 2, 2},
        {"2(x3),1", 3, 1},
        {"2(x3),1", 4, -1},
        {"2(x3),1", -1, -1},
        {"", 0, -1},
        {"x", 0, -1},
        {"2(x", 0, -1},
        {"2(x3", 0, -1},
        {"2;3", 1, -1},
        {"99999999999", 0, -1},
        {"1(x2147483647),2(x2147483647),3", INT32_MAX, 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        cr_assert_eq(nodelist_tasks(cases[i].list, cases[i].node), cases[i].tasks,
                     "%s node %d gave %d", cases[i].list, cases[i].node,
                     nodelist_tasks(cases[i].list, cases[i].node));
}

/* ---- the real ones ---- */

enum { TASKS = 3, TIMES = 2 };

static bool have(const char *tool)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "PATH=$PATH:/usr/sbin command -v %s >/dev/null 2>&1",
                   tool);
    return system(command) == 0;
}

static bool have_hello(void)
{
    return access(TEST_BUILD_DIR "/boot_hello", X_OK) == 0;
}

/* Run a command; how many lines say that a rank of `size` is well; -1 for exit status 77. */
static int count_good(const char *command, int size, const char *via, char *output, size_t bytes)
{
    FILE *f = popen(command, "r");
    cr_assert_not_null(f);
    const size_t n = fread(output, 1, bytes - 1, f);
    const int rc = pclose(f);
    output[n] = '\0';
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 77)
        return -1;
    int good = 0;
    for (int r = 0; r < size; r++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "rank %d of %d via %s ok", r, size, via);
        for (const char *at = output; (at = strstr(at, line)) != NULL; at++)
            good++;
    }
    return rc == 0 ? good : 0;
}

/* `tool` is what must be there, `before` comes before the program in the command. */
static void launch(const char *tool, const char *before, const char *via)
{
    char command[1024], output[8192];
    forget_launchers();
    if (!have(tool) || !have_hello())
        cr_skip_test("no %s here", have_hello() ? tool : TEST_BUILD_DIR "/boot_hello");
    (void)snprintf(command, sizeof(command), "%s %s/boot_hello %d 2>&1", before, TEST_BUILD_DIR,
                   TIMES);
    const int good = count_good(command, TASKS, via, output, sizeof(output));
    if (good < 0)
        cr_skip_test("%s cannot run here: %.200s", tool, output);
    cr_assert_eq(good, TASKS * TIMES, "%s\n%s", command, output);
}

Test(boot_env, launched_by_open_mpi)
{
    launch("mpirun.openmpi",
           /* libpmix leaks a few bytes of its own. */
           "ASAN_OPTIONS=detect_leaks=0 OMPI_ALLOW_RUN_AS_ROOT=1 "
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun.openmpi "
           "--oversubscribe -n 3",
           "pmix");
}

Test(boot_env, launched_by_hydra)
{
    launch("mpiexec.hydra", "timeout 60 mpiexec.hydra -n 3", "pmi");
}

Test(boot_env, launched_by_hydra_over_a_port)
{
    launch("mpiexec.hydra", "timeout 60 mpiexec.hydra -pmi-port -n 3", "pmi");
}

/* What torchrun and a person at the command line do: variables and one process for each rank. */
static void launch_by_hand(const char *variables, const char *via)
{
    char before[512];
    (void)snprintf(before, sizeof(before),
                   "go() { for r in 0 1 2; do env %s \"$@\" & pids=\"$pids $!\"; done; "
                   "for p in $pids; do wait $p || exit 1; done; }; go",
                   variables);
    launch("env", before, via);
}

Test(boot_env, launched_as_torchrun_does)
{
    char variables[256];
    (void)snprintf(variables, sizeof(variables),
                   "RANK=$r WORLD_SIZE=3 LOCAL_RANK=$r LOCAL_WORLD_SIZE=3 MASTER_ADDR=localhost "
                   "MASTER_PORT=29500 TORCHELASTIC_RUN_ID=test%d TORCHELASTIC_RESTART_COUNT=0",
                   (int)getpid());
    launch_by_hand(variables, "torchrun");
}

Test(boot_env, launched_by_hand)
{
    char variables[256];
    (void)snprintf(variables, sizeof(variables),
                   "KOLO_RANK=$r KOLO_SIZE=3 KOLO_ADDR=127.0.0.1:%d KOLO_SECRET=s%d",
                   10000 + (int)getpid() % 20000, (int)getpid());
    launch_by_hand(variables, "kolo");
}

/* SLURM_TEST=1 asks for it: it starts daemons and needs root. */
Test(boot_env, launched_by_slurm)
{
    if (getenv("SLURM_TEST") == NULL)
        cr_skip_test("set SLURM_TEST=1 to run it");
    if (access("tests/slurm_one_host.sh", X_OK) != 0)
        cr_skip_test("not in the root of the repository");
    static const char *const kinds[][2] = {{"none", "slurm"}, {"pmi2", "pmi"}, {"pmix", "pmix"}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        char before[128];
        (void)snprintf(before, sizeof(before),
                       "ASAN_OPTIONS=detect_leaks=0 timeout 100 "
                       "tests/slurm_one_host.sh -n 3 --mpi=%s",
                       kinds[i][0]);
        launch("srun", before, kinds[i][1]);
    }
}
