/* api_memory.c - shareable memory, registrations, and pre-multiplied sums. */
#include "comm.h"
#include "heap.h"
#include "mem.h"

#include <string.h>

enum kolo_status kolo_mem_alloc(void **ptr, size_t bytes)
{
    if (!ptr)
        return fail(KOLO_ERR_ARG, "mem_alloc: ptr is NULL");
    return heap_alloc(bytes, ptr);
}

enum kolo_status kolo_mem_free(void *ptr)
{
    return heap_free(ptr);
}

/* The text goes to the communicator too. */
static enum kolo_status note(struct kolo_comm *comm, enum kolo_status status)
{
    if (comm)
        engine_note(comm->engine);
    return status;
}

enum kolo_status kolo_comm_register(struct kolo_comm *comm, void *ptr, size_t bytes, void **handle)
{
    if (!comm || !handle || (!ptr && bytes))
        return note(comm, fail(KOLO_ERR_ARG, "comm_register: %s is NULL",
                               !comm     ? "comm"
                               : !handle ? "handle"
                                         : "ptr"));
    if (bytes > (size_t)PTRDIFF_MAX || (uintptr_t)ptr + bytes < (uintptr_t)ptr)
        return note(comm,
                    fail(KOLO_ERR_ARG, "comm_register: [%p, +%zu) wraps around the address space",
                         ptr, bytes));
    struct registration *r = mem_calloc(1, sizeof *r);
    if (!r)
        return note(comm, fail(KOLO_ERR_NOMEM, "comm_register: out of memory"));
    *r = (struct registration){ptr, bytes, comm->registered};
    comm->registered = r;
    *handle = r;
    return KOLO_OK;
}

enum kolo_status kolo_comm_deregister(struct kolo_comm *comm, void *handle)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "comm_deregister: comm is NULL");
    for (struct registration **at = &comm->registered; *at; at = &(*at)->next) {
        struct registration *r = *at;
        if (r != handle)
            continue;
        *at = r->next;
        mem_free(r);
        return KOLO_OK;
    }
    return note(comm, fail(KOLO_ERR_ARG, "comm_deregister: %p is not a handle of this communicator",
                           handle));
}

enum kolo_status kolo_op_create_premul_sum(const void *scalar, int type, struct kolo_comm *comm,
                                           int *op)
{
    if (!scalar || !comm || !op)
        return note(comm, fail(KOLO_ERR_ARG, "op_create_premul_sum: %s is NULL",
                               !scalar ? "scalar"
                               : !comm ? "comm"
                                       : "op"));
    const size_t size = kolo_type_size(type);
    if (size == 0)
        return note(comm, fail(KOLO_ERR_ARG,
                               "op_create_premul_sum: type is %d, not an enum kolo_type", type));
    int i = 0;
    while (i < comm->ncustom && comm->custom[i].is_used)
        i++;
    if (i == comm->ncustom) {
        struct custom_op *more = mem_resize(comm->custom, (size_t)i + 1, sizeof *more);
        if (!more)
            return note(comm, fail(KOLO_ERR_NOMEM, "op_create_premul_sum: out of memory"));
        comm->custom = more;
        comm->ncustom++;
    }
    comm->custom[i] = (struct custom_op){.is_used = true, .type = type};
    memcpy(comm->custom[i].scalar, scalar, size);
    *op = KOLO_OP_FIRST_CUSTOM + i;
    return KOLO_OK;
}

enum kolo_status kolo_op_destroy(int op, struct kolo_comm *comm)
{
    if (!comm)
        return fail(KOLO_ERR_ARG, "op_destroy: comm is NULL");
    const int i = op - KOLO_OP_FIRST_CUSTOM;
    if (i < 0 || i >= comm->ncustom || !comm->custom[i].is_used)
        return note(comm,
                    fail(KOLO_ERR_ARG, "op_destroy: %d is not a handle of this communicator", op));
    comm->custom[i].is_used = false;
    return KOLO_OK;
}
