/* boot_addr.c - addresses: which ones this machine has, which ones the options allow, looking names
 * up, and the compact form in which they travel.
 *
 *     packed: [4 a b c d] [6 sixteen bytes] ... zeros                 NET_PACKED_BYTES in all
 */
#include "boot_net.h"
#include "cfg.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOKUP_PAUSE_MS = 200 };

static size_t addr_bytes(const struct net_addr *a)
{
    return a->family == 4 ? 4 : 16;
}

/* IPv4 in IPv6 clothes becomes IPv4, so that equal addresses are equal bytes. */
static bool addr_from_sockaddr(const struct sockaddr *sa, struct net_addr *out)
{
    struct net_addr a = {0};
    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof(in));
        a.family = 4;
        memcpy(a.bytes, &in.sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        const bool is_mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
        a.family = is_mapped ? 4 : 6;
        memcpy(a.bytes, in6.sin6_addr.s6_addr + (is_mapped ? 12 : 0), is_mapped ? 4 : 16);
    } else {
        return false;
    }
    *out = a;
    return true;
}

static bool addr_is_link_local(const struct net_addr *a)
{
    return a->family == 6 && a->bytes[0] == 0xfe && (a->bytes[1] & 0xc0) == 0x80;
}

static void addrs_add(struct net_addrs *addrs, const struct net_addr *a)
{
    for (int i = 0; i < addrs->n; i++) {
        if (memcmp(&addrs->at[i], a, sizeof(*a)) == 0)
            return;
    }
    if (addrs->n < NET_MAX_ADDRS)
        addrs->at[addrs->n++] = *a;
}

bool net_ifname_allowed(const char *filter, const char *name)
{
    const bool is_exclusion = filter[0] == '^';
    const char *at = filter + is_exclusion;
    bool any = false;
    while (*at != '\0') {
        const size_t len = strcspn(at, ",");
        if (len > 0) {
            any = true;
            if (strncmp(at, name, len) == 0)
                return !is_exclusion;
        }
        at += len + (at[len] == ',');
    }
    return is_exclusion || !any;
}

bool net_port_range(const char *range, int *lo, int *hi)
{
    char *end;
    if (range[0] < '0' || range[0] > '9')
        return false;
    const unsigned long first = strtoul(range, &end, 10);
    unsigned long last = first;
    if (*end == '-') {
        const char *second = end + 1;
        if (*second < '0' || *second > '9')
            return false;
        last = strtoul(second, &end, 10);
    }
    if (*end != '\0' || first < 1 || last > 65535 || first > last)
        return false;
    *lo = (int)first;
    *hi = (int)last;
    return true;
}

/* Three passes order the addresses: other hosts can use IPv4, IPv6, and only this one loopback. */
static int pass_of(const struct ifaddrs *it, const struct net_addr *a)
{
    if (it->ifa_flags & IFF_LOOPBACK)
        return 2;
    return a->family == 4 ? 0 : 1;
}

static void add_interfaces(const struct ifaddrs *list, const char *filter, struct net_addrs *out)
{
    for (int pass = 0; pass < 3; pass++) {
        for (const struct ifaddrs *it = list; it != NULL; it = it->ifa_next) {
            struct net_addr a;
            if (it->ifa_addr == NULL || !(it->ifa_flags & IFF_UP) ||
                !net_ifname_allowed(filter, it->ifa_name) ||
                !addr_from_sockaddr(it->ifa_addr, &a) || addr_is_link_local(&a) ||
                pass_of(it, &a) != pass)
                continue;
            addrs_add(out, &a);
        }
    }
}

static enum kolo_status fail_no_interface(const struct ifaddrs *list, const char *filter)
{
    char names[256];
    struct text t;
    text_init(&t, names, sizeof(names));
    const char *last = "";
    for (const struct ifaddrs *it = list; it != NULL; it = it->ifa_next) {
        if (it->ifa_addr == NULL || strcmp(it->ifa_name, last) == 0 ||
            (it->ifa_addr->sa_family != AF_INET && it->ifa_addr->sa_family != AF_INET6))
            continue;
        last = it->ifa_name;
        text_add(&t, "%s%s", t.used > 0 ? ", " : "", last);
    }
    if (filter[0] == '\0')
        return fail(KOLO_ERR_SYSTEM, "no network interface is up, not even loopback; bring one up");
    return fail(KOLO_ERR_ARG, "KOLO_SOCKET_IFNAME=%s leaves no interface that is up; there are: %s",
                filter, names);
}

enum kolo_status net_addrs_local(uint16_t port, struct net_addrs *out)
{
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return fail(errno == ENOMEM ? KOLO_ERR_NOMEM : KOLO_ERR_SYSTEM,
                    "cannot list the network interfaces: %s", strerror(errno));
    const char *filter = cfg_str(CFG_SOCKET_IFNAME);
    struct net_addrs found = {.port = port};
    add_interfaces(list, filter, &found);
    const enum kolo_status status = found.n > 0 ? KOLO_OK : fail_no_interface(list, filter);
    freeifaddrs(list);
    if (status == KOLO_OK)
        *out = found;
    return status;
}

bool net_local_end_allowed(int fd)
{
    if (cfg_str(CFG_SOCKET_IFNAME)[0] == '\0')
        return true;
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    struct net_addr mine;
    struct net_addrs allowed;
    if (getsockname(fd, (struct sockaddr *)&ss, &len) != 0 ||
        !addr_from_sockaddr((const struct sockaddr *)&ss, &mine) ||
        net_addrs_local(0, &allowed) != KOLO_OK)
        return false;
    for (int i = 0; i < allowed.n; i++) {
        if (memcmp(&allowed.at[i], &mine, sizeof(mine)) == 0)
            return true;
    }
    return false;
}

/* Containers often lack /etc/hosts: this machine is known without a resolver. */
static bool is_this_machine(const char *host)
{
    char own[256] = "";
    if (strcmp(host, "localhost") == 0)
        return true;
    return gethostname(own, sizeof(own) - 1) == 0 && own[0] != 0 && strcmp(host, own) == 0;
}

static void add_loopback(struct net_addrs *addrs)
{
    const struct net_addr four = {.family = 4, .bytes = {127, 0, 0, 1}};
    const struct net_addr six = {.family = 6, .bytes = {[15] = 1}};
    addrs_add(addrs, &four);
    addrs_add(addrs, &six);
}

/* What the resolver says of `host` now; its code. */
static int resolve_once(const char *host, struct net_addrs *found)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list;
    const int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return rc;
    for (struct addrinfo *it = list; it != NULL; it = it->ai_next) {
        struct net_addr a;
        if (addr_from_sockaddr(it->ai_addr, &a))
            addrs_add(found, &a);
    }
    freeaddrinfo(list);
    return 0;
}

enum kolo_status net_addrs_lookup(const char *host, int port, uint64_t deadline,
                                  struct net_addrs *out)
{
    if (port < 1 || port > 65535)
        return fail(KOLO_ERR_ARG, "port %d of host %s is not in 1..65535", port, host);
    for (;;) {
        struct net_addrs found = {.port = (uint16_t)port};
        const int rc = resolve_once(host, &found);
        if (rc == EAI_MEMORY)
            return fail(KOLO_ERR_NOMEM, "no memory to look up host %s", host);
        if (found.n == 0 && is_this_machine(host))
            add_loopback(&found);
        if (found.n > 0) {
            *out = found;
            return KOLO_OK;
        }
        const int64_t left = net_left_ms(deadline);
        if (left == 0)
            return fail(KOLO_ERR_TIMEOUT, "host %s, where rank 0 should listen, has no address: %s",
                        host, rc != 0 ? gai_strerror(rc) : "neither IPv4 nor IPv6");
        (void)poll(NULL, 0, left < LOOKUP_PAUSE_MS ? (int)left : LOOKUP_PAUSE_MS);
    }
}

void net_addrs_pack(const struct net_addrs *addrs, uint8_t packed[NET_PACKED_BYTES])
{
    size_t used = 0;
    memset(packed, 0, NET_PACKED_BYTES);
    for (int i = 0; i < addrs->n; i++) {
        const size_t bytes = addr_bytes(&addrs->at[i]);
        if (used + 1 + bytes > NET_PACKED_BYTES)
            continue;
        packed[used] = addrs->at[i].family;
        memcpy(packed + used + 1, addrs->at[i].bytes, bytes);
        used += 1 + bytes;
    }
}

bool net_addrs_unpack(const uint8_t packed[NET_PACKED_BYTES], uint16_t port, struct net_addrs *out)
{
    struct net_addrs found = {.port = port};
    size_t used = 0;
    while (used < NET_PACKED_BYTES && packed[used] != 0) {
        struct net_addr a = {.family = packed[used]};
        if (a.family != 4 && a.family != 6)
            return false;
        const size_t bytes = addr_bytes(&a);
        if (used + 1 + bytes > NET_PACKED_BYTES || found.n == NET_MAX_ADDRS)
            return false;
        memcpy(a.bytes, packed + used + 1, bytes);
        addrs_add(&found, &a);
        used += 1 + bytes;
    }
    for (; used < NET_PACKED_BYTES; used++) {
        if (packed[used] != 0)
            return false;
    }
    if (found.n == 0 || port == 0)
        return false;
    *out = found;
    return true;
}

void net_addr_print(const struct net_addr *addr, uint16_t port, struct text *out)
{
    char name[INET6_ADDRSTRLEN] = "?";
    (void)inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->bytes, name, sizeof(name));
    text_add(out, addr->family == 4 ? "%s:%u" : "[%s]:%u", name, port);
}

void net_host_name(char host[NET_HOST_BYTES])
{
    memset(host, 0, NET_HOST_BYTES);
    if (gethostname(host, NET_HOST_BYTES - 1) != 0 && host[0] == '\0')
        memcpy(host, "unknown", sizeof("unknown"));
}
