/* mem.h - the library's only door to malloc, with a hook that makes the Nth allocation fail.
 * Nothing on the data path allocates; tests prove it with mem_count(). */
#ifndef MEM_H
#define MEM_H

#include <stddef.h>
#include <stdint.h>

/* NULL when memory runs out or n * size overflows.  Zeroed. */
void *mem_calloc(size_t n, size_t size);
/* As realloc of n * size bytes; new bytes are not zeroed; on NULL the old block still stands. */
void *mem_resize(void *p, size_t n, size_t size);
/* Zeroed, aligned to `align` (a power of two, at least 16). */
void *mem_aligned(size_t align, size_t bytes);
char *mem_strdup(const char *s);
/* Frees what any of the above returned; takes NULL. */
void mem_free(void *p);

/* Test hooks, process-wide: the nth allocation from now fails (1 = the next; 0 = none), and how
 * many allocations there were in all. */
void mem_fail_at(uint64_t nth);
uint64_t mem_count(void);
/* Allocations minus frees, for leak tests. */
int64_t mem_live(void);

#endif
