// What the parts of the stress program share. It runs on Linux without a C library: every system call is raw.
#pragma once

#include <stdarg.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef uintptr_t word;

enum { PAGE = 4096, PAGE_WORDS = PAGE / 4 };
enum { NONE = 0, READ = 1, WRITE = 2, EXEC = 4 };
enum { EFAULT = 14, ENOMEM = 12 };

// ---- arch64.s, arch32.s

long system_call(long number, word a, word b, word c, word d, word e, word f);
// Starts the program `path` in a child by vfork; returns its process id.
long vfork_exec(const char *path, char **arguments, char **environment);
// Calls `run(argument)` in a process that shares this one's memory; returns its process id.
long clone_vm(void *stack_end, int (*run)(word), word argument);
// Each tries one access and returns 1, or 0 if it faulted; `probe_faults` holds the fault then.
int try_load(const volatile u32 *at, u32 *value);
int try_store(volatile u32 *at, u32 value);
int try_call(const void *at, u32 *result);
// The instructions in them that may fault, and where they go on then.
extern const u8 load_at[], load_failed[], store_at[], store_failed[], call_failed[];
void signal_return(void);

// ---- system.c: system calls, text, failures

extern u32 seed;
extern const char *step; // what is being done, for messages
extern u32 depth;        // generations below the first process

void *memset(void *to, int value, word size);
void *memcpy(void *to, const void *from, word size);

void *map(void *at, word size, int protection, int flags, int file, word offset);
enum { PRIVATE = 2, SHARED = 1, FIXED = 0x10, ANONYMOUS = 0x20 };
long protect(const void *at, word size, int protection);
long unmap(const void *at, word size);
long move(const void *from, word size, const void *to);
enum { DONTNEED = 4, HUGEPAGE = 14 };
long advise(const void *at, word size, int advice);
long fork(void);
long open_file(const char *path);
long read_at(long file, void *buffer, word size, word offset);
void close_file(long file);
void make_pipe(int ends[2]); // where to read, and where to write
void read_all(int file, void *buffer, word size);
void write_all(int file, const void *buffer, word size);
void futex_wait(volatile u32 *word, u32 value); // unless it is another by now
void futex_wake(volatile u32 *word);
enum { SIGUSR1 = 10 };
void send_signal(long process, int signal);
// A file that exists in memory only.
long create_file(word size);
void yield(void);
_Noreturn void leave(int status);
// Waits for a child; its exit status, or 256 and the signal that killed it.
u32 wait_for(long child);
// The same for a child that must return this status: anything else is this process' end.
void expect_exit(long child, u32 status);

void say(const char *format, ...); // %u %x %s %p, one line in one write
_Noreturn void fail(const char *format, ...);
#define CHECK(condition, ...)                                                                                        \
    do {                                                                                                           \
        if (!(condition))                                                                                          \
            fail(__VA_ARGS__);                                                                                     \
    } while (0)

// Memory that all processes share.
struct shared {
    volatile u32 operations; // of processes that have ended
    volatile u32 failed;     // a process has reported the cause
    volatile u32 total;      // each process adds what it will tell its parent about
    volatile u32 sums[4096]; // by children, in places that their parents chose
    volatile u32 used;       // of `sums`
};
extern struct shared *shared;
extern u32 operations; // of this process
static inline u32 add_shared(volatile u32 *to, u32 value) { return __sync_fetch_and_add(to, value); }

// ---- random numbers: every process has its own sequence

extern u32 random_state;
u32 draw(void);
static inline u32 below(u32 limit) { return (u32)((u64)draw() * limit >> 32); }
static inline u32 mix(u32 value) {
    value = (value ^ value >> 16) * 0x45d9f3bu;
    value = (value ^ value >> 15) * 0x2c1b3c6du;
    return value ^ value >> 16;
}
static inline u32 fold(u32 sum, u32 value) { return (sum << 5 | sum >> 27) ^ value; }

// ---- fault.c: SIGSEGV

struct fault {
    word address;
    u32 count; // of probes that faulted
    u32 code;  // 1: nothing is mapped, 2: forbidden
    u32 error; // the processor's error code
};
extern struct fault probe_fault;
// A page may be repaired while `repairs` points to its counters: a fault makes it writable and is counted.
extern volatile u32 *repairs;
extern word repairs_begin, repairs_end;
extern int no_execute; // the processor can forbid fetches
void catch_faults(void);
void catch_signal(int signal, void (*handler)(int, const u8 *info, u8 *context));
// `try_call` with its fault caught.
int try_probe_call(const void *at, u32 *result);

// ---- the tests

u32 pages_test(u32 budget);      // pages.c: a model of every page, random operations, a tree of processes
u32 areas_test(u32 mebibytes);   // areas.c: large areas, huge pages, moved page tables, deep stacks
u32 sharing_test(u32 rounds);    // sharing.c: processes in one address space, shared files
void exec_test(u32 number);      // exec.c: the program starts itself
// processors.c: `alone` on each processor, then all of them in one address space
u32 processors_test(u32 processors, u32 rounds, u32 (*alone)(u32 rounds, u32 processors));
int exec_main(int count, char **arguments, char **environment);
