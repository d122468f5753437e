/* fuzz_boot_id.c - any 128 bytes are an id or an error; what is an id encodes to the same bytes. */
#include "boot_wire.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Nearly all inputs fail at the check sum: make it right, so that what is behind it is seen too. */
static void mend(struct kolo_unique_id *id)
{
    static const unsigned char key[16] = "kolo id check 1";
    const uint64_t check = siphash(key, id->bytes, sizeof(id->bytes) - sizeof(check));
    memcpy(id->bytes + sizeof(id->bytes) - sizeof(check), &check, sizeof(check));
    memcpy(id->bytes, "Kiid\1\0", 6);
}

static void try_id(const struct kolo_unique_id *id)
{
    struct wire_id found;
    struct kolo_unique_id again;
    if (wire_id_decode(id, &found) != KOLO_OK)
        return;
    if (found.addrs.n < 1 || found.addrs.n > NET_MAX_ADDRS || found.addrs.port == 0)
        __builtin_trap();
    wire_id_encode(&found, &again);
    struct wire_id same;
    if (wire_id_decode(&again, &same) != KOLO_OK || memcmp(&same, &found, sizeof(same)) != 0)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kolo_unique_id id = {{0}};
    memcpy(id.bytes, data, size < sizeof(id.bytes) ? size : sizeof(id.bytes));
    try_id(&id);
    mend(&id);
    mend(&id); /* the sum over the mended head */
    try_id(&id);
    return 0;
}
