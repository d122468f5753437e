/* boot_root.h - the server of one rendezvous. */
#ifndef BOOT_ROOT_H
#define BOOT_ROOT_H

#include "boot_wire.h"

/* Serve one rendezvous at `listener` on a detached thread with memory of its own, until all ranks
 * have their answers or `timeout_ms` have passed.  Owns the listener on success. */
enum kolo_status root_start(int listener, const unsigned char secret[WIRE_SECRET_BYTES],
                            int64_t timeout_ms);

/* "3, 7-9": the ranks below n for which is_there[rank] is 0. */
void root_missing_print(const int *is_there, int n, struct text *out);

#endif
