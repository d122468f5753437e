/* fuzz_tune.c - any text is a table or is refused; a table that is taken prints as a text that is
 * taken as an equal table.  Inputs get a right sum, so that the fuzzer comes past it. */
#include "tune.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned char sum_key[16] = "kolo tune table";
    static char text[16384], printed[16384];
    struct tune_table t, back;
    if (size + 32 > sizeof text)
        return 0;
    uint64_t key = 1;
    memcpy(text, data, size);
    text[size] = 0;
    (void)sscanf(text, "kolo tune 1\nkey %16" SCNx64, &key);
    (void)tune_table_parse(text, size, key, &t);
    const int more = snprintf(text + size, sizeof text - size, "sum %016" PRIx64 "\n",
                              siphash(sum_key, text, size));
    if (!tune_table_parse(text, size + (size_t)more, key, &t))
        return 0;
    struct text out;
    text_init(&out, printed, sizeof printed);
    tune_table_print(&t, 2, &out);
    if (!tune_table_parse(printed, out.used, key, &back) || memcmp(&t, &back, sizeof t) != 0)
        __builtin_trap();
    return 0;
}
