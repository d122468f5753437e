/* topo.h - what is known of this machine: CPUs, caches, memory. */
#ifndef TOPO_H
#define TOPO_H

#include "base.h"

/* CPUs that this process may use; at least 1. */
int topo_ncpus(void);
/* Model of the CPU, and its caches. */
void topo_print_cpu(struct text *out);
/* Text for kolo_describe(KOLO_TOPIC_TOPOLOGY). */
void topo_print(struct text *out);

#endif
