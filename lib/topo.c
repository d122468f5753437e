/* topo.c - the machine as the kernel shows it: /proc and /sys, nothing else is needed. */
#include "topo.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

int topo_ncpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    return max_int(CPU_COUNT(&set), 1);
}

/* First line of a small file, without its end; false when it cannot be read. */
static bool read_line(const char *path, char *out, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, out, size - 1);
    close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
    return n > 0;
}

static void print_cpu_model(struct text *out)
{
    char all[4096];
    const int fd = open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd >= 0 ? read(fd, all, sizeof all - 1) : 0;
    if (fd >= 0)
        close(fd);
    all[n > 0 ? n : 0] = 0;
    const char *at = strstr(all, "model name");
    at = at ? strchr(at, ':') : NULL;
    if (at)
        text_add(out, "cpu: %.*s\n", (int)strcspn(at + 2, "\n"), at + 2);
}

static void print_caches(struct text *out)
{
    for (int i = 0; i < 8; i++) {
        char path[128], level[16], kind[32], size[32], shared[64];
        static const char dir[] = "/sys/devices/system/cpu/cpu0/cache/index";
        snprintf(path, sizeof path, "%s%d/level", dir, i);
        if (!read_line(path, level, sizeof level))
            return;
        snprintf(path, sizeof path, "%s%d/type", dir, i);
        if (!read_line(path, kind, sizeof kind) || strcmp(kind, "Instruction") == 0)
            continue;
        snprintf(path, sizeof path, "%s%d/size", dir, i);
        if (!read_line(path, size, sizeof size))
            continue;
        snprintf(path, sizeof path, "%s%d/shared_cpu_list", dir, i);
        if (!read_line(path, shared, sizeof shared))
            shared[0] = 0;
        text_add(out, "L%s cache of cpu 0: %s, shared by cpus %s\n", level, size, shared);
    }
}

void topo_print_cpu(struct text *out)
{
    print_cpu_model(out);
    print_caches(out);
}

void topo_print(struct text *out)
{
    struct utsname name;
    char line[128];
    if (uname(&name) == 0)
        text_add(out, "host: %s, %s %s\n", name.nodename, name.sysname, name.release);
    print_cpu_model(out);
    text_add(out, "cpus: %ld online, this process may use %d\n", sysconf(_SC_NPROCESSORS_ONLN),
             topo_ncpus());
    print_caches(out);
    if (read_line("/sys/devices/system/node/online", line, sizeof line))
        text_add(out, "memory nodes: %s\n", line);
    text_add(out, "memory: %.1f GiB\n",
             (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / (1 << 30));
}
