/* heap.h - the shareable memory of this process (kolo_mem_alloc): one sparse memfd, mapped once
 * here and once in each peer process, so that an offset is all a peer needs to reach a buffer. */
#ifndef HEAP_H
#define HEAP_H

#include "base.h"

enum kolo_status heap_alloc(size_t bytes, void **out);
enum kolo_status heap_free(void *p);

/* Descriptor of the memfd (borrowed, -1 if the machine refuses), its size and a random id. */
int heap_fd(size_t *bytes, unsigned char id[16]);
/* Offset of [p, p + bytes) in the heap; false if it does not lie in it. */
bool heap_offset(const void *p, size_t bytes, uint64_t *offset);

/* A peer process's heap: mapped at most once per process, counted. */
struct heap_view {
    unsigned char *base;
    size_t bytes;
    unsigned char id[16];
    int users;
    struct heap_view *next;
};
/* `fd` is borrowed. */
enum kolo_status heap_view_open(int fd, size_t bytes, const unsigned char id[16],
                                struct heap_view **out);
void heap_view_close(struct heap_view *v); /* takes NULL */

#endif
