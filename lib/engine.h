/* engine.h - the machine that runs plans: one engine per communicator and rank.
 *
 *   job  = a plan bound to buffers: layouts, piece size, rounds, signature (job.c)
 *   run  = engine_run_job, engine_run_all: advance every lane of every job whose next operands are
 *          ready (exec.c); when nothing moves, wait (wait.c), and see errors, aborts, deadlines
 *
 * Thread rule: an engine is driven by one thread at a time (the caller's, or the worker while the
 * caller keeps out).  engine_abort and the sticky status may be touched from any thread. */
#ifndef ENGINE_H
#define ENGINE_H

#include "board.h"
#include "plan.h"
#include "record.h"
#include "reduce.h"
#include "transport.h"

struct engine;
struct job;

/* A plan with its links resolved; owned by whoever compiled it, used by many jobs. */
struct program {
    const struct plan *plan; /* owned */
    struct link **links;     /* per operand of the plan; NULL where it is not a link */
    bool is_cut;             /* runs in rounds: some rank's messages carry chunks */
    int max_span;            /* most chunks in one message of any rank: all cut alike */
    int naims;               /* peers that this rank sends to */
    unsigned window_needs;   /* PLAN_READS_PEERS, PLAN_WRITES_PEERS: of any rank's plan */
    uint8_t *shouts; /* per step: 1 + the channel on which it tells all peers the same; 0: no */
};

/* How chunks lie in a buffer, in elements: chunk c at c * block, the last ones cut off at total;
 * or, when counts is set, counts[c] at displs[c]. */
struct layout {
    size_t block;
    size_t total;
    const size_t *counts;
    const size_t *displs;
};

struct lane_state {
    const struct plan_step *at; /* next step */
    const struct plan_step *end;
    const struct plan_step *begin;
    uint64_t round;
    bool is_done;
    const struct link *blocked; /* what the next step waits for */
    uint64_t wanted;            /* messages that its consumer must have taken; 0: one to arrive */
};

/* The pointers of a move stand in e->dst and e->src. */
struct move {
    int ndst;
    int nsrc;
    int from_in;     /* the source that is this rank's own input; -1: none */
    bool may_stream; /* all destinations are user buffers */
    uint64_t stream; /* messages to far peers among them, as in reduce_args */
    bool is_final;   /* the result is the complete reduction */
};

/* What a step comes to for the shape of its job, whatever the addresses. */
struct ready_step {
    size_t len;     /* elements of its stretch, of all rounds */
    size_t most;    /* ... of which so many in a round */
    bool is_simple; /* one stretch of memory for each operand; else only this is set, and len in
                       fused jobs */
    struct move move;
};

/* Where an operand that is not a link starts: *base + offset + element * per_element. */
struct ready_operand {
    unsigned char **base;
    size_t offset;
    size_t per_element; /* bytes; 0 for scratch, which holds one round */
};

/* How private buffers travelled, see exec_choice.c. */
enum way_kind { WAY_NONE, WAY_STAGED, WAY_REMOTE };
enum { WAY_CLASSES = 20 }; /* octaves of bytes, from 128 KiB on */

/* What this rank has measured for one collective and class of size; 0: nothing yet. */
struct way {
    float staged_ns;
    float remote_ns;
    /* Equal on all ranks: */
    uint32_t tries;      /* of staging, before the first trial of the other */
    uint32_t decisions;  /* since the loser's last trial */
    uint32_t retry;      /* decisions until its next; 0: it has not had one yet */
    uint32_t skip;       /* calls that stage without asking */
    uint32_t trial_left; /* tries in a row still to make, with the one under way */
    enum way_kind trial_kind;
    enum way_kind best;
    /* Of this one: */
    uint32_t odd;      /* times in a row that were far from what is known */
    bool is_unsettled; /* so many that nothing known holds any more */
};

enum job_phase {
    JOB_ANNOUNCE_SEND,
    JOB_ANNOUNCE_RECEIVE,
    JOB_RUN,
    JOB_DONE,
    JOB_DECLINED, /* a fused job: its operations are to run one by one */
};

/* What the operation is, in the API's terms; for signatures, records and messages. */
struct call {
    enum kolo_coll coll;
    int type;
    int op;       /* enum kolo_op, or a custom handle */
    int root;     /* rooted collectives; the peer for send and recv; fused: -operations; else 0 */
    size_t count; /* the API's count; for v-variants and fused the sum or a hash that ranks share */
};

/* Where a buffer is, for peers: kind and place of its window_ref in one word. */
struct fused_place {
    uint64_t in;
    uint64_t out;
};
enum { PLACE_KIND_BIT = 60 };

/* What a job of several all_reduces needs beyond a job.  fuse.c owns and fills it, exec_fuse.c
 * brings the ranks to one decision.  Chunks are operations, or parts of them. */
struct fused {
    int nops;
    int nchunks;
    size_t *op_bytes;
    int *chunk_op;
    size_t *chunk_from;          /* bytes into its operation */
    struct program *staged;      /* packs chunks into messages */
    struct program *direct;      /* between the buffers; NULL without windows */
    struct ready_step *ready[2]; /* elements per step of each of both */
    int share_first;             /* the operations in the direct program of this rank */
    int share_end;               /* one behind the last */
    bool may_fuse;               /* this rank's buffers allow it */
    bool is_shared;              /* they are windows, and `places` says where */
    bool all_may, all_shared;    /* as far as cards have come */
    struct fused_place *places;
    void **peer_at[2]; /* inputs, outputs: per peer, per operation of the share */
    /* All have agreed to run the operations one by one: bind them, and link their jobs. */
    enum kolo_status (*split)(struct fused *f, struct job **first, struct job **last);
};

/* Of an operation of the share, in peer_at. */
static inline size_t fused_index(const struct fused *f, int peer, int op)
{
    return (size_t)peer * (size_t)(f->share_end - f->share_first) + (size_t)(op - f->share_first);
}

/* Owned by the communicator; recycled.  Fields above the line are set by the binder. */
struct job {
    struct call call;
    struct program *program;
    struct fused *fused;      /* several operations in one; NULL: one */
    struct program *fallback; /* when the windows turn out not to be usable; NULL without windows */
    unsigned char *base[2];   /* PLAN_IN, PLAN_OUT */
    struct layout layout[2];
    size_t in_bytes, out_bytes; /* whole buffers, for windows */
    const void *pre;            /* scalar of a pre-multiplied sum, or NULL */
    bool is_v;                  /* chunks have their own lengths */
    bool may_choose;            /* staging and the kernel give the same bits: take the faster */
    bool refuses_windows;       /* in place, with an algorithm that cannot do that over windows */
    bool signs_length;          /* each link message signs its own chunk's length (to_all_v, p2p) */
    uint64_t timeout_ns;
    /* ---- */
    enum job_phase phase;
    int announced;
    bool windows_ok;
    bool saw_private; /* some rank's buffer was out of reach */
    bool has_remote;  /* some operand must be read or written through the kernel */
    struct way *way;  /* NULL: no choice */
    enum way_kind way_taken;
    float staged_ns, remote_ns; /* largest that any rank has announced */
    bool is_unsettled;          /* some rank has announced that its times do not hold any more */
    uint64_t way_began_ns;
    const struct program *shaped; /* what the fields below were computed for; NULL: nothing */
    size_t type_bytes;
    size_t piece; /* elements of a chunk per round */
    struct ring_use ring;
    size_t tmp_stride; /* bytes between chunks of scratch */
    uint64_t rounds;
    struct ready_step *ready;             /* per step of the plan */
    struct ready_operand *ready_operands; /* per operand */
    int ready_room, ready_operands_room;
    uint64_t hash; /* call_hash of the call */
    uint32_t signature;
    uint64_t seq;
    uint64_t recorded; /* number of its event in the recorder */
    uint64_t began_ns; /* first look at the clock while it waited; 0: not yet */
    reduce_fn reduce;
    double post_div;
    bool stream;
    int nlanes;
    int lanes_left;
    int lanes_room;
    struct lane_state *lanes;
    struct job *next; /* of the same engine in a group; or in the free list */
};

/* Messages of this rank to all its peers on one channel, each written once. */
struct outbox {
    unsigned char *at;           /* NULL: the transport has none */
    uint64_t used[OUTBOX_KINDS]; /* entries so far */
};

/* Values of KOLO_STREAM. */
enum streaming { STREAM_AUTO, STREAM_ALWAYS, STREAM_NEVER };

enum wait_mode { WAIT_AUTO, WAIT_SPIN, WAIT_YIELD, WAIT_SLEEP };

struct wait_policy {
    uint64_t spin_ns;  /* pause and poll */
    uint64_t yield_ns; /* then give the CPU away between polls */
    bool may_sleep;    /* then sleep on the bell */
};

struct engine_counters {
    uint64_t operations[KOLO_NCOLLS];
    uint64_t bytes[KOLO_NCOLLS];
    uint64_t yields;
    uint64_t sleeps;
    uint64_t window_operations;
    uint64_t window_misses;
    uint64_t fused_operations;
};

struct engine {
    int rank;
    int nranks;
    struct transport *transport; /* owned */
    struct board *board;         /* own */
    struct board **boards;       /* of all ranks */
    _Atomic uint32_t *bell;      /* own */
    struct link *links;          /* [direction][channel][peer]; direction 0 sends */
    struct outbox outboxes[LINK_CHANNELS];
    const struct reduce_table *reduce;
    struct wait_policy wait;
    bool has_remote;    /* agreed by all ranks: private memory can be read and written */
    bool always_remote; /* KOLO_CMA=always */
    size_t slot_bytes;
    int per_cpu;         /* ranks that share a CPU */
    size_t ring_share;   /* bytes of messages that should come to a rank before lines are reused */
    size_t ring_to_root; /* ... on each link, when all send to one rank */
    size_t stream_bytes; /* operations that touch more than this use streaming stores */
    enum streaming streaming;
    uint64_t began_ns, began_ticks; /* when it was made, by both clocks */
    uint64_t far_ticks;             /* a line that takes longer comes from far; 0: not known yet */
    uint64_t seq;                   /* collectives started */
    uint32_t window_skip;           /* operations that will not try windows (see job_start) */
    uint32_t window_backoff;
    /* scratch of the running step: pointers of its operands; nranks + 2 each */
    void **dst;
    const void **src;
    size_t pointers;         /* room in dst and src */
    unsigned char **peer_in; /* windows of the running job, by rank */
    unsigned char **peer_out;
    bool *in_is_remote; /* their addresses are of the peer's process */
    bool *out_is_remote;
    void **remote_at;      /* operands of a move by tiles; like dst and src together */
    unsigned char *bounce; /* tiles of remote operands, see exec_remote.c */
    size_t bounce_tiles;
    size_t tile_bytes;
    unsigned char *tmp;
    size_t tmp_bytes;
    struct way ways[KOLO_NCOLLS][WAY_CLASSES];
    struct engine_counters counters;
    struct record record;

    _Atomic int status;    /* sticky enum kolo_status; text is valid once it is set */
    _Atomic int text_lock; /* spin lock of text: writers are rare */
    char text[ERROR_TEXT_BYTES];
};

enum kolo_status engine_create(struct transport *t, int rank, int nranks, size_t slot_bytes,
                               struct engine **out);
/* Also closes the transport (on success of create).  Says goodbye to the peers, unless quietly
 * (in a forked child, whose parent goes on).  Takes NULL. */
void engine_destroy(struct engine *e, bool quietly);

struct link *engine_link(struct engine *e, bool is_producer, int peer, int channel);

/* plan is owned by the program on success. */
enum kolo_status program_compile(struct engine *e, struct plan *plan, struct program **out);
void program_destroy(struct program *p); /* takes NULL */

/* Make a job ready to start; sizes lanes and scratch.  Errors: NOMEM; nothing is changed then. */
enum kolo_status job_prepare(struct engine *e, struct job *j);

/* The part of it that depends on type, reduction and sizes alone. */
void job_set_arithmetic(struct engine *e, struct job *j);

/* Free what a job holds, not the job. */
void job_release(struct job *j);

/* One engine's part of a run: its jobs.  Collectives run in list order, one at a time; sends and
 * receives of the list all at the same time, those of one link in order. */
struct engine_run {
    struct engine *engine;
    struct job *collectives; /* linked by next */
    struct job *p2p;
    enum kolo_status status;
};

/* Run one prepared job to its end. */
enum kolo_status engine_run_job(struct engine *e, struct job *j);
/* Run all jobs of several engines together in this thread; statuses per engine, the first error is
 * returned. */
enum kolo_status engine_run_all(struct engine_run *runs, size_t n);

/* ---- failing ---- */

/* The engine is broken from now on: keep `status` with the thread's fail_text(), tell the peers.
 * The first one wins.  Returns the sticky status. */
enum kolo_status engine_break(struct engine *e, enum kolo_status status);
enum kolo_status engine_status(const struct engine *e);
/* A copy of the sticky text. */
void engine_text(const struct engine *e, char *out, size_t size);
/* Remember the text of a failed call (not sticky). */
void engine_note(struct engine *e);
void engine_abort(struct engine *e);

/* Text of a call: "all_reduce(count 4, f32, sum) as operation 7". */
void call_text(const struct call *c, uint64_t seq, char *out, size_t size);

/* ---- inside the engine: exec.c, wait.c ---- */

enum wait_phase { PHASE_SPIN, PHASE_YIELD, PHASE_SLEEP };

/* State of one call of engine_run_*, on its stack. */
struct wait {
    uint64_t passes;     /* without progress */
    uint64_t stalled_ns; /* when this stall was first timed; 0: not yet */
    uint64_t next_check_ns;
    uint64_t next_alive_ns;
    enum wait_phase phase;
    bool is_armed; /* the bell is set: poll once more, then sleep */
};

/* The engine's own error, or one that it adopts from a peer's board; KOLO_OK when there is none. */
enum kolo_status check_failed(struct engine *e);
/* By ranks and CPUs of this machine, and the options KOLO_WAIT and KOLO_SPIN_US. */
struct wait_policy wait_policy_choose(int nranks_here, int ncpus, bool shares_cpu);
/* How long an idle worker polls before it sleeps: each rank must have a CPU for it and one for its
 * caller.  Option KOLO_POLL_US. */
uint64_t poll_ns_choose(int nranks_here, int ncpus, bool shares_cpu);
/* Once per process, before the first engine: lets sleepers order themselves against wakers. */
void wait_init(void);
/* Nothing moved in a pass over the jobs of `runs`: give time away, and look for reasons to end.
 * An error has broken the engine that it concerns, and is in its run's status. */
void wait_step(struct wait *w, struct engine_run *runs, size_t n);
void wait_disarm(struct wait *w, struct engine *e);
/* Something moved. */
static inline void wait_reset(struct wait *w, struct engine *e)
{
    w->passes = 0;
    w->stalled_ns = 0;
    if (UNLIKELY(w->is_armed))
        wait_disarm(w, e);
}

/* For job->ring, with messages of up to `most` bytes. */
struct ring_use job_ring(const struct engine *e, const struct job *j, size_t most);
/* Piece size, rounds and scratch of the program that the job runs now. */
void job_shape(struct engine *e, struct job *j);
/* What a call contributes to its signature; and the signature: any change of any field changes it
 * with probability 1 - 2^-32. */
uint64_t call_hash(const struct call *c);
static inline uint32_t call_signature(uint64_t hash, uint64_t seq)
{
    const uint64_t h = hash ^ (seq + 1) * 0xd6e8feb86659fd93u;
    return (uint32_t)(h ^ (h >> 32));
}
/* Whether two ranks' calls of one sequence number are the same operation. */
bool call_matches(const struct call *a, const struct call *b);
/* The call that a board shows for a sequence number; false when it shows none (not yet, or no
 * longer). */
bool board_find(const struct board *b, uint64_t seq, struct call *out);
void board_publish(struct board *b, uint64_t seq, const struct call *c);

/* exec_move.c: elements of a step that is not simple, in the round that starts at element `from` of
 * each chunk. */
size_t step_len(const struct job *j, const struct plan_step *s, size_t from);
/* Move the data of a step whose links are ready.  shared: where its message is written once for all
 * peers; NULL: to each.  false: a peer's memory could not be reached, *status says so. */
bool step_move(struct engine *e, struct job *j, const struct plan_step *s,
               const struct ready_step *r, size_t from, size_t len, unsigned char *shared,
               enum kolo_status *status);
/* The arithmetic of a move of `len` elements; the pointers may be moved on. */
void move_local(struct engine *e, const struct job *j, const struct move *m, size_t len);
/* Fill in ready and ready_operands of a job whose layouts and piece are set. */
void job_make_ready(struct engine *e, struct job *j);

/* exec_remote.c: a move of which some pointers are addresses of other processes; 0 or an errno with
 * *peer. */
int move_remote(struct engine *e, const struct job *j, const struct plan_step *s,
                const struct move *m, size_t len, int *peer);
/* The larger of the job's buffers, in bytes. */
static inline size_t job_bytes(const struct job *j)
{
    return j->in_bytes > j->out_bytes ? j->in_bytes : j->out_bytes;
}

/* The job is over: tell the recorder.  has_waited: its end is worth a look at the clock. */
void job_end(struct engine *e, const struct job *j, bool has_waited, enum kolo_status status);
/* Peer `peer` started `other` under the job's number: an error that names both calls. */
enum kolo_status job_differs(struct engine *e, const struct job *j, int peer,
                             const struct call *other);
/* exec.c: the message that has arrived does not belong to this call; breaks the engine. */
enum kolo_status job_mismatch(struct engine *e, struct job *j, const struct link *l, size_t bytes);
/* exec_window.c: true when something moved; the job's phase tells how far it is. */
bool announce_send(struct engine *e, struct job *j);
bool announce_receive(struct engine *e, struct job *j, enum kolo_status *status);
/* exec_fuse.c: the same for a fused job. */
bool fused_send(struct engine *e, struct job *j);
bool fused_receive(struct engine *e, struct job *j, enum kolo_status *status);
/* exec_far.c: which links are streamed to. */
void far_init(struct engine *e);
/* Consumer: time the probe of the message that has arrived. */
void far_learn(struct engine *e, struct link *l);
/* One probe came late, or in time: changes what the producer is told when enough have. */
void far_judge(struct link *l, bool is_late);
/* Producer: most peers of the links among n operands are far. */
bool far_are_most(struct link *const *links, int n);
/* exec_choice.c */
struct way *way_find(struct engine *e, const struct job *j);
bool way_skips(struct way *w);
/* is_unsettled: of any rank. */
enum way_kind way_choose(struct way *w, float staged_ns, float remote_ns, bool is_unsettled);
void way_learn(struct way *w, enum way_kind kind, uint64_t ns);
/* After a failure was shown: wait, bounded, until no peer is in this rank's private memory. */
void remote_drain(struct engine *e);
/* One pass over a job; true when something moved.  Sets *status on a mismatch. */
bool job_progress(struct engine *e, struct job *j, enum kolo_status *status);
/* The next job of the engine; then, before it waits, show it to the peers and the recorder: after
 * its first messages, which others wait for. */
void job_start(struct engine *e, struct job *j);
void job_show(struct engine *e, struct job *j);

#endif
