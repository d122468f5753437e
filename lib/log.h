/* log.h - the log sink: off unless KOLO_LOG asks.  fail() logs errors by itself; the rest of the
 * library logs a few facts at info and debug.  Nothing logs between start and completion. */
#ifndef LOG_H
#define LOG_H

#include "base.h"

enum log_level { LOG_NONE, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG, LOG_TRACE };

/* module: "comm", "boot", "shm", ...  Lower case, value after a space, no newline. */
__attribute__((format(printf, 3, 4))) void log_write(enum log_level level, const char *module,
                                                     const char *format, ...);
bool log_enabled(enum log_level level, const char *module);
/* KOLO_OK, or KOLO_ERR_ARG with a text when KOLO_LOG cannot be read (then nothing is logged). */
enum kolo_status log_check(void);
/* Forget what was read from the options and close the file; called by cfg_reset(). */
void log_reset(void);
/* The rank that this thread speaks for in the prefix; -1 none. */
void log_set_rank(int rank);

#define LOG(level, module, ...)                                                                    \
    do {                                                                                           \
        if (log_enabled(level, module))                                                            \
            log_write(level, module, __VA_ARGS__);                                                 \
    } while (0)

#endif
