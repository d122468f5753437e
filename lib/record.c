/* record.c - the flight recorder as text. */
#include "record.h"

#include <inttypes.h>

void record_print(const struct record *r, struct text *out)
{
    static const char *const kinds[] = {"start", "end", "fail"};
    const uint64_t n = r->next < RECORD_EVENTS ? r->next : RECORD_EVENTS;
    uint64_t first = 0;
    for (uint64_t i = r->next - n; i < r->next; i++) {
        const struct record_event *ev = &r->events[i % RECORD_EVENTS];
        first = first ? first : ev->ticks;
        text_add(out, "+%" PRIu64 " ticks  %-5s  operation %u  %s  %" PRIu64 " bytes  root %d",
                 ev->ticks - first, kinds[ev->kind], ev->seq, kolo_coll_name(ev->coll), ev->bytes,
                 ev->root);
        if (ev->kind == RECORD_FAIL)
            text_add(out, "  %s", kolo_status_string(ev->status));
        text_add(out, "\n");
    }
}
