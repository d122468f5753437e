/* test_base.c - checked sizes, error texts, growing texts, SipHash against its reference, and the
 * tables of names in kolo.h. */
#include "support/test.h"

#include "base.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

Test(base, size_arithmetic_finds_overflow)
{
    static const struct {
        size_t a;
        size_t b;
        bool mul_fits;
        bool add_fits;
    } cases[] = {
        {0, SIZE_MAX, true, true},
        {1, SIZE_MAX, true, false},
        {2, SIZE_MAX / 2, true, true},
        {2, SIZE_MAX / 2 + 1, false, true},
        {(size_t)1 << 32, (size_t)1 << 32, false, true},
        {((size_t)1 << 32) - 1, ((size_t)1 << 32) + 1, true, true},
        {SIZE_MAX, SIZE_MAX, false, false},
        {SIZE_MAX / 2, SIZE_MAX / 2 + 1, false, true},
        {SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1, false, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        for (int swap = 0; swap < 2; swap++) {
            const size_t a = swap ? cases[i].b : cases[i].a;
            const size_t b = swap ? cases[i].a : cases[i].b;
            size_t out = 77;
            cr_assert_eq(size_mul(a, b, &out), cases[i].mul_fits, "case %zu", i);
            cr_assert_eq(out, cases[i].mul_fits ? a * b : 77, "case %zu", i);
            out = 77;
            cr_assert_eq(size_add(a, b, &out), cases[i].add_fits, "case %zu", i);
            cr_assert_eq(out, cases[i].add_fits ? a + b : 77, "case %zu", i);
        }
    }
}

Test(base, round_up)
{
    cr_assert_eq(round_up(0, 64), 0);
    cr_assert_eq(round_up(1, 64), 64);
    cr_assert_eq(round_up(64, 64), 64);
    cr_assert_eq(round_up(65, 64), 128);
    cr_assert_eq(round_up(7, 3), 9);
    cr_assert_eq(round_up(5, 1), 5);
}

Test(base, min_and_max)
{
    cr_assert_eq(min_int(-1, 2), -1);
    cr_assert_eq(min_int(2, -1), -1);
    cr_assert_eq(max_int(-1, 2), 2);
    cr_assert_eq(max_int(2, -1), 2);
}

Test(base, fail_keeps_status_text_and_errno)
{
    errno = ENOENT;
    cr_assert_eq(fail(KOLO_ERR_TIMEOUT, "rank %d: %m", 3), KOLO_ERR_TIMEOUT);
    cr_assert_eq(errno, ENOENT);
    cr_assert_str_eq(fail_text(), "rank 3: No such file or directory");
    fail_prefix("host %s, ", "a");
    cr_assert_eq(errno, ENOENT);
    cr_assert_str_eq(fail_text(), "host a, rank 3: No such file or directory");
    cr_assert_eq(fail(KOLO_ERR_ARG, "%s; again", fail_text()), KOLO_ERR_ARG);
    cr_assert_str_eq(fail_text(), "host a, rank 3: No such file or directory; again");
    (void)fail(KOLO_ERR_ARG, "%s", "");
    cr_assert_str_eq(fail_text(), "");
}

Test(base, fail_again_takes_any_text)
{
    char whole[2 * ERROR_TEXT_BYTES];
    memset(whole, 'x', sizeof(whole));
    whole[sizeof(whole) - 1] = '\0';
    cr_assert_eq(fail_again(KOLO_ERR_PEER_LOST, "rank 1 died"), KOLO_ERR_PEER_LOST);
    cr_assert_str_eq(fail_text(), "rank 1 died");
    cr_assert_eq(fail_again(KOLO_ERR_ABORTED, fail_text() + 5), KOLO_ERR_ABORTED);
    cr_assert_str_eq(fail_text(), "1 died");
    (void)fail_again(KOLO_ERR_ABORTED, whole);
    cr_assert_eq(strlen(fail_text()), ERROR_TEXT_BYTES - 1);
    cr_assert_eq(fail_again(KOLO_OK, NULL), KOLO_OK);
    cr_assert_str_eq(fail_text(), "");
}

/* Lengths around the size of the buffer: whole up to its size, then cut and marked as cut. */
Test(base, long_texts_are_cut_and_marked)
{
    char word[ERROR_TEXT_BYTES + 8];
    for (size_t n = ERROR_TEXT_BYTES - 4; n < ERROR_TEXT_BYTES + 4; n++) {
        memset(word, 'a', n);
        word[n] = '\0';
        (void)fail(KOLO_ERR_ARG, "%s", word);
        const size_t kept = n < ERROR_TEXT_BYTES ? n : ERROR_TEXT_BYTES - 1;
        const char *const end = n < ERROR_TEXT_BYTES ? "aaa" : "...";
        cr_assert_eq(strlen(fail_text()), kept, "n %zu", n);
        cr_assert_str_eq(fail_text() + kept - 3, end, "n %zu", n);

        (void)fail(KOLO_ERR_ARG, "b");
        word[n - 1] = '\0'; /* together n bytes again */
        fail_prefix("%s", word);
        cr_assert_eq(strlen(fail_text()), kept, "n %zu", n);
        cr_assert_str_eq(fail_text() + kept - 3, n < ERROR_TEXT_BYTES ? "aab" : "...", "n %zu", n);
        cr_assert_eq(fail_text()[0], 'a', "n %zu", n);
    }
}

static void *fail_elsewhere(void *before)
{
    *(bool *)before = fail_text()[0] == '\0';
    (void)fail(KOLO_ERR_SYSTEM, "of the other thread");
    return NULL;
}

Test(base, each_thread_has_its_own_text)
{
    pthread_t thread;
    bool was_empty = false;
    (void)fail(KOLO_ERR_ARG, "of this thread");
    cr_assert_eq(pthread_create(&thread, NULL, fail_elsewhere, &was_empty), 0);
    pthread_join(thread, NULL);
    cr_assert(was_empty);
    cr_assert_str_eq(fail_text(), "of this thread");
}

Test(base, text_writes_what_fits_and_counts_all)
{
    static const char whole[] = "one 22 three 4444";
    for (size_t size = 0; size <= sizeof(whole) + 2; size++) {
        char buffer[sizeof(whole) + 4];
        memset(buffer, '#', sizeof(buffer));
        struct text t;
        text_init(&t, buffer, size);
        text_add(&t, "one %d", 22);
        text_add(&t, "%s", "");
        text_add(&t, " %s %d", "three", 4444);
        cr_assert_eq(t.used, sizeof(whole) - 1, "size %zu", size);
        for (size_t i = size; i < sizeof(buffer); i++)
            cr_assert_eq(buffer[i], '#', "size %zu wrote at %zu", size, i);
        if (size == 0)
            continue;
        const size_t kept = size < sizeof(whole) ? size - 1 : sizeof(whole) - 1;
        cr_assert_eq(strlen(buffer), kept, "size %zu", size);
        cr_assert_eq(memcmp(buffer, whole, kept), 0, "size %zu", size);
    }
}

Test(base, text_without_a_buffer_only_counts)
{
    struct text t;
    text_init(&t, NULL, 0);
    text_add(&t, "%0*d", 100000, 7);
    text_add(&t, "x");
    cr_assert_eq(t.used, 100001);
}

Test(base, text_starts_empty)
{
    char buffer[4] = "abc";
    struct text t;
    text_init(&t, buffer, sizeof(buffer));
    cr_assert_str_eq(buffer, "");
}

/* The vectors of the reference implementation: key 00 01 .. 0f, message 00 01 .. of n bytes. */
Test(base, siphash_matches_the_reference)
{
    static const uint64_t expected[] = {
        0x726fdb47dd0e0e31, 0x74f839c593dc67fd, 0x0d6c8009d9a94f5a, 0x85676696d7fb7e2d,
        0xcf2794e0277187b7, 0x18765564cd99a68d, 0xcbc9466e58fee3ce, 0xab0200f58b01d137,
        0x93f5f5799a932462, 0x9e0082df0ba9e4b0, 0x7a5dbbc594ddb9f3, 0xf4b32f46226bada7,
        0x751e8fbc860ee5fb, 0x14ea5627c0843d90, 0xf723ca908e7af2ee, 0xa129ca6149be45e5,
    };
    unsigned char key[16];
    unsigned char message[64];
    for (size_t i = 0; i < sizeof(message); i++)
        message[i] = (unsigned char)i;
    memcpy(key, message, sizeof(key));
    for (size_t n = 0; n < ARRAY_LEN(expected); n++)
        cr_assert_eq(siphash(key, message, n), expected[n], "%zu bytes", n);
    cr_assert_eq(siphash(key, message, 63), 0x958a324ceb064572);
    cr_assert_eq(siphash(key, NULL, 0), expected[0]);
}

Test(base, siphash_does_not_care_for_alignment)
{
    unsigned char key[17] = "-0123456789abcdef";
    unsigned char message[64 + 8];
    uint64_t first = 0;
    for (size_t shift = 0; shift < 8; shift++) {
        for (size_t i = 0; i < 64; i++)
            message[shift + i] = (unsigned char)(i * 7);
        const uint64_t h = siphash(key + 1, message + shift, 61);
        first = shift == 0 ? h : first;
        cr_assert_eq(h, first, "shift %zu", shift);
    }
    key[16] ^= 1;
    cr_assert_neq(siphash(key + 1, message + 7, 61), first);
}

Test(base, time_goes_on)
{
    const uint64_t start = now_ns();
    cr_assert_gt(start, 0);
    while (now_ns() == start)
        ;
    cr_assert_gt(now_ns(), start);
}

Test(base, type_sizes)
{
    static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1, 2, 2};
    _Static_assert(ARRAY_LEN(bytes) == KOLO_NTYPES, "one size for each type");
    for (int i = 0; i < KOLO_NTYPES; i++)
        cr_assert_eq(kolo_type_size(i), bytes[i], "type %d", i);
    static const int wrong[] = {-1, KOLO_NTYPES, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        cr_assert_eq(kolo_type_size(wrong[i]), 0, "type %d", wrong[i]);
}

Test(base, coll_names_go_both_ways)
{
    for (int i = 0; i < KOLO_NCOLLS; i++) {
        cr_assert_not_null(kolo_coll_name(i), "collective %d", i);
        cr_assert_eq(kolo_coll_find(kolo_coll_name(i)), i, "%s", kolo_coll_name(i));
    }
    cr_assert_str_eq(kolo_coll_name(KOLO_COLL_ALL_TO_ALL_V), "all_to_all_v");
    cr_assert_str_eq(kolo_coll_name(KOLO_COLL_ALL_REDUCE), "all_reduce");
    cr_assert_null(kolo_coll_name(-1));
    cr_assert_null(kolo_coll_name(KOLO_NCOLLS));
    static const char *const wrong[] = {NULL, "", "all_reduce ", "ALL_REDUCE", "all_reduc", "x"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        cr_assert_eq(kolo_coll_find(wrong[i]), -1, "name %zu", i);
}

Test(base, each_status_has_its_own_sentence)
{
    static const int all[] = {KOLO_OK,
                              KOLO_IN_PROGRESS,
                              KOLO_ERR_ARG,
                              KOLO_ERR_USAGE,
                              KOLO_ERR_NOMEM,
                              KOLO_ERR_UNSUPPORTED,
                              KOLO_ERR_TIMEOUT,
                              KOLO_ERR_SETUP,
                              KOLO_ERR_MISMATCH,
                              KOLO_ERR_ABORTED,
                              KOLO_ERR_PEER_LOST,
                              KOLO_ERR_SYSTEM,
                              KOLO_ERR_INTERNAL,
                              12345 /* no status */};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        cr_assert_not_null(kolo_status_string(all[i]), "status %d", all[i]);
        for (size_t k = 0; k < i; k++)
            cr_assert_neq(strcmp(kolo_status_string(all[i]), kolo_status_string(all[k])), 0,
                          "status %d and %d", all[i], all[k]);
    }
    cr_assert_str_eq(kolo_status_string(-2), kolo_status_string(KOLO_ERR_USAGE));
    cr_assert_str_eq(kolo_status_string(INT32_MIN), kolo_status_string(12345));
}

Test(base, version)
{
    cr_assert_eq(kolo_version(), KOLO_VERSION);
    cr_assert_gt(KOLO_VERSION, 0);
}
