/* boot_split.c - a handle for some of the ranks of another.
 *
 * Every rank opens a new listener and gathers {color, key, card} from all; then each color connects
 * as if a root had introduced its members, under a secret of its own.  The child keeps nothing of
 * the parent. */
#include "boot_link.h"

#include "mem.h"

#include <string.h>

/* What each rank tells all others. */
struct split_blob {
    int32_t color;
    int32_t key;
    int32_t status; /* KOLO_OK, or why this rank cannot take part */
    char why[156];
    struct wire_card card;
};

/* The members of one color, in the order of their new ranks. */
struct split_member {
    int key;
    int rank; /* in the parent */
};

struct split {
    struct boot *parent;
    struct split_blob *all;
    struct split_member *members;
    int count;
    int listener; /* -1: this rank joins no color */
};

static bool is_before(struct split_member a, struct split_member b)
{
    return a.key != b.key ? a.key < b.key : a.rank < b.rank;
}

static void swap_members(struct split_member *a, struct split_member *b)
{
    const struct split_member t = *a;
    *a = *b;
    *b = t;
}

static void sift_down(struct split_member *at, int i, int n)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(at[child], at[child + 1]))
            child++;
        if (!is_before(at[i], at[child]))
            return;
        swap_members(&at[i], &at[child]);
    }
}

/* Heap sort: no recursion, no memory, no library function that may differ between hosts. */
static void sort_members(struct split_member *at, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--)
        sift_down(at, i, n);
    for (int end = n - 1; end > 0; end--) {
        swap_members(&at[0], &at[end]);
        sift_down(at, 0, end);
    }
}

static void find_members(struct split *s, int color)
{
    for (int r = 0; r < s->parent->size; r++) {
        if (s->all[r].color == color)
            s->members[s->count++] = (struct split_member){s->all[r].key, r};
    }
    sort_members(s->members, s->count);
}

/* When one member cannot take part, all of its color fail alike. */
static enum kolo_status check_members(const struct split *s)
{
    for (int i = 0; i < s->count; i++) {
        struct split_blob *it = &s->all[s->members[i].rank];
        if (it->status == KOLO_OK)
            continue;
        wire_text_clean(it->why, sizeof(it->why));
        return fail(it->status == KOLO_ERR_NOMEM ? KOLO_ERR_NOMEM : KOLO_ERR_SETUP,
                    "rank %d cannot take part in the split: %s", s->members[i].rank, it->why);
    }
    return KOLO_OK;
}

static int new_rank(const struct split *s)
{
    int r = 0;
    while (s->members[r].rank != s->parent->rank)
        r++;
    return r;
}

/* Connect the members.  Uses the listener up when it succeeds. */
static enum kolo_status make_child(struct split *s, uint64_t deadline, struct boot **out)
{
    struct wire_card cards[2 * WIRE_MAX_ROUNDS];
    unsigned char secret[WIRE_SECRET_BYTES];
    const int rank = new_rank(s), n = s->count;
    const uint32_t color = (uint32_t)s->all[s->parent->rank].color;
    struct boot *b;
    TRY(check_members(s));
    wire_secret_derive(s->parent->secret, "split", (uint64_t)s->parent->seq << 32 | color, secret);
    TRY(boot_alloc(rank, n, secret, &b));
    for (int k = 0; k < b->rounds; k++) {
        const int step = 1 << k;
        cards[2 * k] = s->all[s->members[(rank + step) % n].rank].card;
        cards[2 * k + 1] = s->all[s->members[(rank - step + n) % n].rank].card;
    }
    const enum kolo_status status = boot_connect(b, cards, s->listener, deadline);
    s->listener = -1;
    if (status != KOLO_OK) {
        boot_destroy(b);
        return status;
    }
    *out = b;
    return KOLO_OK;
}

static void fill_blob(struct split *s, int color, int key, struct split_blob *mine)
{
    mine->color = color;
    mine->key = key;
    if (color < 0)
        return;
    mine->status = boot_listen(s->parent->rank, &s->listener, &mine->card);
    if (mine->status != KOLO_OK)
        (void)strncpy(mine->why, fail_text(), sizeof(mine->why) - 1);
}

static enum kolo_status split(struct split *s, int color, int key, uint64_t deadline,
                              struct boot **out)
{
    struct split_blob mine = {0};
    fill_blob(s, color, key, &mine);
    TRY(boot_all_gather(s->parent, &mine, sizeof(mine), s->all, net_left_ms(deadline)));
    if (color < 0) {
        *out = NULL;
        return KOLO_OK;
    }
    find_members(s, color);
    return make_child(s, deadline, out);
}

enum kolo_status boot_split(struct boot *b, int color, int key, int64_t timeout_ms,
                            struct boot **out)
{
    struct split s = {.parent = b, .listener = -1};
    if (b == NULL || out == NULL)
        return fail(KOLO_ERR_ARG, "a NULL argument to a split with color %d", color);
    if (color < -1)
        return fail(KOLO_ERR_ARG, "color is %d, must be -1 (none) or at least 0", color);
    if (b->broken != KOLO_OK)
        return fail(b->broken,
                    "the bootstrap of rank %d of %d has failed before; make a new communicator",
                    b->rank, b->size);
    enum kolo_status status;
    s.all = mem_calloc((size_t)b->size, sizeof(*s.all));
    s.members = mem_calloc((size_t)b->size, sizeof(*s.members));
    if (s.all == NULL || s.members == NULL) {
        /* Without memory this rank cannot even take part in telling the others. */
        status = fail(KOLO_ERR_NOMEM, "no memory to split %d ranks", b->size);
        link_give_up(b, status);
    } else {
        status = split(&s, color, key, net_deadline(timeout_ms), out);
    }
    net_close(s.listener);
    mem_free(s.members);
    mem_free(s.all);
    return status;
}
