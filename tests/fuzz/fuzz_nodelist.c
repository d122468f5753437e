/* fuzz_nodelist.c - Slurm's lists and the options' small languages, with any text. */
#include "boot_env.h"
#include "boot_net.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512], host[64];
    int lo, hi;
    if (size < 2 || size >= sizeof(text))
        return 0;
    const size_t room = 1 + data[0] % sizeof(host);
    const int node = (int8_t)data[1];
    memcpy(text, data + 2, size - 2);
    text[size - 2] = '\0';
    if (nodelist_first(text, host, room)) {
        if (strlen(host) == 0 || strlen(host) >= room || strpbrk(host, "[], ") != NULL)
            __builtin_trap();
    }
    if (nodelist_tasks(text, node) < -1)
        __builtin_trap();
    if (net_port_range(text, &lo, &hi) && (lo < 1 || lo > hi || hi > 65535))
        __builtin_trap();
    (void)net_ifname_allowed(text, "eth0");
    return 0;
}
