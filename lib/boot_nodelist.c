/* boot_nodelist.c - Slurm's compact lists.
 *
 *     hosts   n[001,007-015],x2        names with ranges, of which the zeros in front are kept
 *     tasks   2(x3),1                  a number for each node, repeated */
#include "boot_env.h"

#include <limits.h>
#include <string.h>

/* Digits at *at as a number, at most INT_MAX; false when there are none. */
static bool read_number(const char **at, int *out)
{
    const char *p = *at;
    int64_t value = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        value = 10 * value + (*p - '0');
        if (value > INT_MAX)
            return false;
    }
    *out = (int)value;
    *at = p;
    return true;
}

static bool is_host_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
}

bool nodelist_first(const char *list, char *host, size_t size)
{
    struct text t;
    text_init(&t, host, size);
    const char *at = list;
    while (*at != '\0' && *at != ',') {
        if (*at == '[') {
            at++;
            const size_t digits = strspn(at, "0123456789");
            const char *end = strchr(at, ']');
            if (digits == 0 || digits > 32 || end == NULL || strchr(",-]", at[digits]) == NULL)
                return false;
            text_add(&t, "%.*s", (int)digits, at);
            at = end + 1;
        } else if (is_host_char(*at)) {
            text_add(&t, "%c", *at++);
        } else {
            return false;
        }
    }
    return t.used > 0 && t.used < size;
}

int nodelist_tasks(const char *list, int node)
{
    const char *at = list;
    int first = 0; /* number of the node that the entry at `at` begins with */
    while (*at != '\0') {
        int tasks, repeat = 1;
        if (!read_number(&at, &tasks))
            return -1;
        if (at[0] == '(' && at[1] == 'x') {
            at += 2;
            if (!read_number(&at, &repeat) || *at++ != ')')
                return -1;
        }
        if (node - first < repeat)
            return node < 0 ? -1 : tasks;
        first += repeat < INT_MAX - first ? repeat : INT_MAX - first;
        if (*at == ',')
            at++;
        else if (*at != '\0')
            return -1;
    }
    return -1;
}
