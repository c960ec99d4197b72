// System calls, text, and what happens at a failure.
#include "stress.h"

// The same calls have other numbers in the two architectures.
#ifdef __x86_64__
enum {
    SYS_READ = 0, SYS_PIPE = 22, SYS_KILL = 62, SYS_FUTEX = 202, SYS_WRITE = 1, SYS_OPEN = 2, SYS_CLOSE = 3, SYS_MMAP = 9, SYS_MPROTECT = 10, SYS_MUNMAP = 11, SYS_PREAD = 17,
    SYS_YIELD = 24, SYS_MREMAP = 25, SYS_MADVISE = 28, SYS_FORK = 57, SYS_WAIT4 = 61, SYS_FTRUNCATE = 77,
    SYS_EXIT_GROUP = 231, SYS_MEMFD = 319,
};
#else
enum {
    SYS_READ = 3, SYS_KILL = 37, SYS_PIPE = 42, SYS_FUTEX = 240, SYS_FORK = 2, SYS_WRITE = 4, SYS_OPEN = 5, SYS_CLOSE = 6, SYS_MUNMAP = 91, SYS_FTRUNCATE = 93,
    SYS_WAIT4 = 114, SYS_MPROTECT = 125, SYS_YIELD = 158, SYS_MREMAP = 163, SYS_PREAD = 180, SYS_MMAP = 192,
    SYS_MADVISE = 219, SYS_EXIT_GROUP = 252, SYS_MEMFD = 356,
};
#endif

u32 seed, depth, operations, random_state;
const char *step = "start";
struct shared *shared;

u32 draw(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state * 0x9e3779b1u;
}

// The compiler calls these.
void *memset(void *to, int value, word size) {
    for (u8 *at = to, *end = at + size; at < end; at++)
        *at = (u8)value;
    return to;
}

void *memcpy(void *to, const void *from, word size) {
    const u8 *next = from;
    for (u8 *at = to, *end = at + size; at < end; at++)
        *at = *next++;
    return to;
}

static int is_error(long result) { return result < 0 && result > -4096; }

void *map(void *at, word size, int protection, int flags, int file, word offset) {
#ifndef __x86_64__
    offset /= PAGE; // mmap2 counts pages
#endif
    long result = system_call(SYS_MMAP, (word)at, size, (word)protection, (word)flags, (word)file, offset);
    CHECK(!is_error(result), "mmap of %x bytes at %p: error %u", (u32)size, (word)at, (u32)-result);
    return (void *)result;
}

long protect(const void *at, word size, int protection) {
    return system_call(SYS_MPROTECT, (word)at, size, (word)protection, 0, 0, 0);
}
long unmap(const void *at, word size) { return system_call(SYS_MUNMAP, (word)at, size, 0, 0, 0, 0); }
long advise(const void *at, word size, int advice) {
    return system_call(SYS_MADVISE, (word)at, size, (word)advice, 0, 0, 0);
}
long move(const void *from, word size, const void *to) {
    enum { MAYMOVE = 1, TO_FIXED = 2 };
    return system_call(SYS_MREMAP, (word)from, size, size, MAYMOVE | TO_FIXED, (word)to, 0);
}

long fork(void) {
    long child = system_call(SYS_FORK, 0, 0, 0, 0, 0, 0);
    CHECK(!is_error(child), "fork: error %u", (u32)-child);
    return child;
}

long open_file(const char *path) {
    long file = system_call(SYS_OPEN, (word)path, 0, 0, 0, 0, 0);
    CHECK(!is_error(file), "open %s: error %u", path, (u32)-file);
    return file;
}
void close_file(long file) { system_call(SYS_CLOSE, (word)file, 0, 0, 0, 0, 0); }
long create_file(word size) {
    long file = system_call(SYS_MEMFD, (word) "stress", 0, 0, 0, 0, 0);
    CHECK(!is_error(file), "memfd_create: error %u", (u32)-file);
    long result = system_call(SYS_FTRUNCATE, (word)file, size, 0, 0, 0, 0);
    CHECK(result == 0, "ftruncate: error %u", (u32)-result);
    return file;
}
long read_at(long file, void *buffer, word size, word offset) {
    return system_call(SYS_PREAD, (word)file, (word)buffer, size, offset, 0, 0);
}
void make_pipe(int ends[2]) {
    long result = system_call(SYS_PIPE, (word)ends, 0, 0, 0, 0, 0);
    CHECK(result == 0, "pipe: error %u", (u32)-result);
}
// What is read and written here is too short to come in parts.
void read_all(int file, void *buffer, word size) {
    long result = system_call(SYS_READ, (word)file, (word)buffer, size, 0, 0, 0);
    CHECK(result == (long)size, "read: result %x", (u32)result);
}
void write_all(int file, const void *buffer, word size) {
    long result = system_call(SYS_WRITE, (word)file, (word)buffer, size, 0, 0, 0);
    CHECK(result == (long)size, "write: result %x", (u32)result);
}
void futex_wait(volatile u32 *at, u32 value) {
    enum { WAIT = 0, EAGAIN = 11, EINTR = 4 };
    long result = system_call(SYS_FUTEX, (word)at, WAIT, value, 0, 0, 0);
    CHECK(result == 0 || result == -EAGAIN || result == -EINTR, "futex: error %u", (u32)-result);
}
void futex_wake(volatile u32 *at) {
    enum { WAKE = 1 };
    system_call(SYS_FUTEX, (word)at, WAKE, 1, 0, 0, 0);
}
void send_signal(long process, int signal) {
    long result = system_call(SYS_KILL, (word)process, (word)signal, 0, 0, 0, 0);
    CHECK(result == 0, "kill: error %u", (u32)-result);
}
void yield(void) { system_call(SYS_YIELD, 0, 0, 0, 0, 0, 0); }

void leave(int status) {
    for (;;)
        system_call(SYS_EXIT_GROUP, (word)status, 0, 0, 0, 0, 0);
}

u32 wait_for(long child) {
    u32 status = 0;
    long result = system_call(SYS_WAIT4, (word)child, (word)&status, 0, 0, 0, 0);
    CHECK(result == child, "wait for process %u: result %x", (u32)child, (u32)result);
    return status & 0x7f ? 256 + (status & 0x7f) : status >> 8 & 0xff;
}

void expect_exit(long child, u32 expected) {
    u32 status = wait_for(child);
    if (status == expected)
        return;
    if (shared->failed)
        leave(1); // the child has said why
    if (status >= 256)
        fail("process %u was killed by signal %u", (u32)child, status - 256);
    fail("process %u: status %u, expected %u", (u32)child, status, expected);
}

struct line {
    char text[512];
    u32 used;
};

static void put(struct line *line, char letter) {
    if (line->used < sizeof line->text - 1)
        line->text[line->used++] = letter;
}

static void put_number(struct line *line, word value, u32 base, u32 digits) {
    // Only 32 bits are divided: there is no library for more.
    if (base == 16 && (digits > 8 || value >> 16 >> 16 != 0)) {
        put_number(line, value >> 16 >> 16, 16, 0);
        digits = 8;
    }
    char text[12];
    u32 rest = (u32)value, count = 0;
    do {
        text[count++] = "0123456789abcdef"[rest % base];
        rest /= base;
    } while (rest || count < digits);
    while (count)
        put(line, text[--count]);
}

static void format(struct line *line, const char *text, va_list arguments) {
    for (; *text; text++) {
        if (*text != '%') {
            put(line, *text);
            continue;
        }
        switch (*++text) {
        case 'u': put_number(line, va_arg(arguments, u32), 10, 0); break;
        case 'x': put_number(line, va_arg(arguments, u32), 16, 8); break;
        case 'p': put_number(line, va_arg(arguments, word), 16, 8); break;
        case 's':
            for (const char *part = va_arg(arguments, const char *); *part; part++)
                put(line, *part);
        }
    }
}

static void put_text(struct line *line, const char *text, ...) {
    va_list arguments;
    va_start(arguments, text);
    format(line, text, arguments);
    va_end(arguments);
}

static void finish(struct line *line) {
    line->text[line->used++] = '\n';
    system_call(SYS_WRITE, 1, (word)line->text, line->used, 0, 0, 0);
}

void say(const char *text, ...) {
    struct line line = {.used = 0};
    va_list arguments;
    va_start(arguments, text);
    format(&line, text, arguments);
    va_end(arguments);
    finish(&line);
}

void fail(const char *text, ...) {
    // Only the first failure is told: others follow from it.
    if (!shared || add_shared(&shared->failed, 1) == 0) {
        struct line line = {.used = 0};
        put_text(&line, "stress: seed %u, FAILED in %s, operation %u, generation %u: ", seed, step, operations, depth);
        va_list arguments;
        va_start(arguments, text);
        format(&line, text, arguments);
        va_end(arguments);
        finish(&line);
    }
    leave(1);
}
