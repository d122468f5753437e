/* record.c - the flight recorder as text. */
#include "record.h"

#include <inttypes.h>

void record_end(struct record *r, uint64_t at, enum record_kind kind, int32_t result)
{
    struct record_event *ev = &r->events[at % RECORD_EVENTS];
    if (r->next - at > RECORD_EVENTS)
        return;
    ev->result = result;
    ev->kind = (uint8_t)kind;
}

void record_print(const struct record *r, struct text *out)
{
    static const char *const kinds[] = {"running", "done", "failed", "split"};
    const uint64_t n = r->next < RECORD_EVENTS ? r->next : RECORD_EVENTS;
    uint64_t first = 0;
    for (uint64_t i = r->next - n; i < r->next; i++) {
        const struct record_event *ev = &r->events[i % RECORD_EVENTS];
        first = first ? first : ev->ticks;
        text_add(out, "+%" PRIu64 " ticks  %-7s  operation %u  %s  %" PRIu64 " bytes  root %d",
                 ev->ticks - first, kinds[ev->kind], ev->seq, kolo_coll_name(ev->coll), ev->bytes,
                 ev->root);
        if (ev->kind == RECORD_FAILED)
            text_add(out, "  %s", kolo_status_string(ev->result));
        else if (ev->kind == RECORD_DONE && ev->result > 0)
            text_add(out, "  took %d ticks", ev->result);
        text_add(out, "\n");
    }
}
