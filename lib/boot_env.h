/* boot_env.h - between finding the launcher (boot_env.c) and making an id its way (boot_env_id.c,
 * boot_pmi.c, boot_pmix.c), and the small languages of launchers (boot_nodelist.c). */
#ifndef BOOT_ENV_H
#define BOOT_ENV_H

#include "boot.h"

enum { ENV_SHARE_BYTES = 320 }; /* an id in hex, or an error text, with terminator */

/* The value of a variable; NULL when it is not set or empty. */
const char *env_get(const char *name);
/* A number in lo..hi; ARG with name and value for anything else.  The variable must be set. */
enum kolo_status env_int(const char *name, int lo, int hi, int *out);

/* Whether PMI_RANK and PMI_FD are of Slurm's own plug-in (srun --mpi=pmi2).  It takes one init in
 * the life of a process, which is left to the MPI library; Slurm's variables tell enough. */
bool env_is_slurm_pmi(void);

/* Give rank 0's text to all ranks of the job through the key-value store of the process manager. */
enum kolo_status boot_pmi_share(int rank, char text[ENV_SHARE_BYTES], uint64_t deadline);
enum kolo_status boot_pmix_share(int rank, char text[ENV_SHARE_BYTES], uint64_t deadline);
/* Rank and size, where PMI_PORT is set and PMI_RANK is not (mpiexec -pmi-port). */
enum kolo_status boot_pmi_job(int *rank, int *size);
/* What only the PMIx server knows; -1 for what it does not know. */
enum kolo_status boot_pmix_job(int *size, int *local_rank, int *local_size);

/* The first host of a Slurm node list such as "n[001,007-015],x2": "n001".  False for what is no
 * list, or when it does not fit. */
bool nodelist_first(const char *list, char *host, size_t size);
/* Tasks on node number `node` by SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1"; -1: not told. */
int nodelist_tasks(const char *list, int node);

#endif
