/*
 * Memlat of the memory-region thesis.
 *
 *   memlat PAGES VISIT_US VISITS    a program whose memory is two regions (section 2.3.1): PAGES pages each,
 *                                   which are used by turns for about VISIT_US microseconds, VISITS times
 *                                   in all
 *   memlat latency MIB MS [TIMES]   the latency of memory (section 4.3.3): MIB MiB are accessed at random
 *                                   for MS milliseconds; cycles of an access, ten TIMES in all
 *
 *   memlat lookups MIB MS TIMES THREADS LINES
 *                                   a store that is asked for as much as its processors can do (section
 *                                   4.4.2): each of THREADS threads has its part of MIB MiB, and reads
 *                                   values of LINES lines at random, of which it changes every eighth;
 *                                   cycles of a lookup, of all threads, TIMES times in MS milliseconds, each
 *                                   marked for a lab machine, as region 0 and so on
 *
 *   memlat load MS MIB...           a store whose size changes (section 4.4): of each MIB MiB in turn all is
 *                                   accessed at random for MS milliseconds; cycles of an access of each, and
 *                                   at the end all accesses
 *   memlat turns MS TIMES MIB STORES
 *                                   such stores of MIB MiB each, which are used by turns, TIMES times in all,
 *                                   eight accesses in a page at a time; the same is said
 *
 *   memlat chase KIB ACCESSES WARM_MS MS
 *                                   two regions of KIB KiB each, whose lines are read in a random order:
 *                                   ACCESSES loads of one, each at the address that the one before has
 *                                   read, then ACCESSES of the other. After WARM_MS milliseconds it
 *                                   counts accesses for MS milliseconds.
 *   memlat beats KIB ACCESSES WARM_MS MS REST_MS
 *                                   one such region for these milliseconds in all; in the second part
 *                                   it executes CPUID after each ACCESSES loads. CPUID exits, and the
 *                                   hypervisor's samples count exits beside the cycles of the VCPU: so
 *                                   they have the program's progress and what it took, whatever clocks
 *                                   say. What others do at that time is the same before and after.
 *   memlat pollute KIB MS           reads KIB KiB line by line for MS milliseconds, as fast as prefetching
 *                                   allows: a cache that is no larger holds nothing else
 *
 * The loops look at no clock and at no other memory: in the first form the length of a visit is measured
 * once, before it begins. At the end the program checks that memory holds what it has written.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define LINE 64

static uint64_t nanos(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Adds one to a word of each page, at another line in each, `loops` times. */
static void __attribute__((noinline)) visit(volatile uint64_t *region, uint64_t pages, uint64_t loops)
{
    for (; loops; loops--)
        for (uint64_t n = 0; n < pages; n++)
            region[n * WORDS + n % 64 * 8]++;
}

static uint64_t ticks(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

/* Reads `count` lines of memory at random, and adds one to every eighth. Each address depends on what was read before. */
static uint64_t __attribute__((noinline)) wander(volatile uint64_t *memory, uint64_t lines, uint64_t count, uint64_t seed)
{
    for (; count; count--) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        volatile uint64_t *line = memory + (seed >> 33) % lines * 8;
        if (count % 8)
            seed ^= line[1];
        else
            ++*line;
    }
    return seed;
}

/*
 * The same with eight lines of a page at a time, in no order that a prefetcher knows, of which one is written. Walks are few: an emulator
 * takes longer for them than for all else.
 */
static uint64_t __attribute__((noinline)) roam(volatile uint64_t *memory, uint64_t lines, uint64_t count, uint64_t seed)
{
    static const uint8_t others[] = {23, 46, 5, 57, 34, 12, 51};
    for (; count >= 8; count -= 8) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        volatile uint64_t *page = memory + (seed >> 33) % (lines / 64) * WORDS;
        uint64_t line = seed >> 20 & 63;
        ++page[line * 8];
        for (unsigned n = 0; n < sizeof others; n++)
            seed ^= page[(line ^ others[n]) * 8 + 1];
    }
    return seed;
}

/* Adds the first words of lines, which hold the stores; whether the words after them are as they were. */
static int add_up(const volatile uint64_t *memory, uint64_t lines, uint64_t *sum)
{
    for (uint64_t n = 0; n < lines; n++) {
        *sum += memory[n * 8];
        if (memory[n * 8 + 1])
            return 0;
    }
    return 1;
}

/* Whether no store was lost; says if one was. */
static int are_there(uint64_t sum, uint64_t written)
{
    if (sum != written)
        printf("memlat: %lu of %lu stores are there\n", (unsigned long)sum, (unsigned long)written);
    return sum == written;
}

static int latency(uint64_t mib, uint64_t ms, uint64_t times)
{
    if (!times)
        return 2;
    uint64_t bytes = mib << 20, lines = bytes / 64, seed = 1, written = 0, each = ms * 1000000 / times, sum = 0;
    volatile uint64_t *memory =
        mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    uint64_t begin = nanos();
    for (uint64_t n = 0; n < times; n++) {
        uint64_t accesses = 0, cycles = 0;
        while (nanos() < begin + (n + 1) * each) {
            uint64_t before = ticks();
            seed = wander(memory, lines, 8000, seed);
            cycles += ticks() - before;
            accesses += 8000;
            written += 1000;
        }
        printf("memlat: %lu ms: %lu cycles\n", (unsigned long)((n + 1) * each / 1000000),
               (unsigned long)(cycles / (accesses ? accesses : 1)));
        fflush(stdout);
    }
    if (!add_up(memory, lines, &sum) || !are_there(sum, written))
        return 1;
    printf("memlat: %lu stores, right\n", (unsigned long)written);
    return 0;
}

/* A thread of `lookups`, with its part of the memory. */
struct reader {
    volatile uint64_t *memory;
    uint64_t values, lines, seed, begin, each, times, written;
    pthread_barrier_t *all;
    struct reader *first;
    unsigned threads;
    /* Of this interval. */
    uint64_t lookups, cycles;
};

/* Reads `count` values at random, and adds one to every eighth. Each address depends on what was read before. */
static uint64_t __attribute__((noinline)) look_up(const struct reader *of, uint64_t count, uint64_t seed)
{
    for (; count; count--) {
        seed = seed * 6364136223846793005 + 1442695040888963407;
        volatile uint64_t *value = of->memory + (seed >> 33) % of->values * of->lines * 8;
        if (count % 8 == 0)
            ++*value;
        for (uint64_t n = count % 8 == 0; n < of->lines; n++)
            seed ^= value[n * 8 + 1];
    }
    return seed;
}

/* Marks for a lab machine, which counts what lies between them (abi/src/lab.rs); no-ops. */
static void begin(uint64_t region)
{
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x1ab00b61" : : "a"(region));
}

static void end(uint64_t region)
{
    __asm__ volatile(".byte 0x0f, 0x1f, 0x84, 0x00; .long 0x1ab00e4d" : : "a"(region));
}

static void *read_values(void *argument)
{
    struct reader *own = argument;
    for (uint64_t n = 1; n <= own->times; n++) {
        own->lookups = own->cycles = 0;
        begin(n - 1);
        do {
            uint64_t before = ticks();
            own->seed = look_up(own, 2000, own->seed);
            own->cycles += ticks() - before;
            own->lookups += 2000;
            own->written += 250;
        } while (nanos() < own->begin + n * own->each);
        end(n - 1);
        pthread_barrier_wait(own->all);
        if (own == own->first) {
            uint64_t lookups = 0, cycles = 0;
            for (unsigned t = 0; t < own->threads; t++) {
                lookups += own[t].lookups;
                cycles += own[t].cycles;
            }
            printf("memlat: %lu ms: %lu cycles\n", (unsigned long)(n * own->each / 1000000),
                   (unsigned long)(cycles / lookups));
            fflush(stdout);
        }
        pthread_barrier_wait(own->all);
    }
    return 0;
}

static int lookups(uint64_t mib, uint64_t ms, uint64_t times, uint64_t threads, uint64_t lines)
{
    enum { MOST = 64 };
    if (!times || !threads || threads > MOST || !lines || (mib << 20) / threads / LINE < lines)
        return 2;
    uint64_t bytes = mib << 20, part = bytes / threads / LINE / lines * lines * LINE, written = 0, sum = 0;
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    pthread_barrier_t all;
    pthread_t thread[MOST];
    struct reader readers[MOST];
    pthread_barrier_init(&all, 0, threads);
    for (uint64_t t = 0, begin = nanos(); t < threads; t++)
        readers[t] = (struct reader){.memory = (volatile uint64_t *)(memory + t * part), .values = part / LINE / lines,
                                     .lines = lines, .seed = t + 1, .begin = begin, .each = ms * 1000000 / times,
                                     .times = times, .all = &all, .first = readers, .threads = threads};
    for (uint64_t t = 1; t < threads; t++)
        if (pthread_create(&thread[t], 0, read_values, &readers[t]))
            return 3;
    read_values(&readers[0]);
    for (uint64_t t = 1; t < threads; t++)
        pthread_join(thread[t], 0);
    for (uint64_t t = 0; t < threads; t++) {
        written += readers[t].written;
        if (!add_up(readers[t].memory, part / LINE, &sum))
            return 1;
    }
    if (!are_there(sum, written))
        return 1;
    printf("memlat: %lu stores, right\n", (unsigned long)written);
    return 0;
}

/* A part of the memory, in MiB. */
struct part {
    uint64_t from, mib;
};

typedef uint64_t walk(volatile uint64_t *memory, uint64_t lines, uint64_t count, uint64_t seed);

/* Accesses each part at random for `ms` milliseconds. */
static int load(uint64_t ms, uint64_t count, const struct part *parts, walk *walk)
{
    uint64_t most = 0, seed = 1, written = 0, all = 0, sum = 0;
    for (uint64_t n = 0; n < count; n++) {
        if (!parts[n].mib)
            return 2;
        most = parts[n].from + parts[n].mib > most ? parts[n].from + parts[n].mib : most;
    }
    volatile uint64_t *memory =
        mmap(0, most << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED)
        return 3;
    uint64_t begin = nanos();
    for (uint64_t n = 0; n < count; n++) {
        uint64_t mib = parts[n].mib, accesses = 0, cycles = 0, end = begin + (n + 1) * ms * 1000000;
        volatile uint64_t *part = memory + (parts[n].from << 20) / sizeof *memory;
        while (nanos() < end) {
            uint64_t before = ticks();
            seed = walk(part, (mib << 20) / LINE, 8000, seed);
            cycles += ticks() - before;
            accesses += 8000;
            written += 1000;
        }
        all += accesses;
        printf("memlat: %lu MiB: %lu cycles\n", (unsigned long)mib, (unsigned long)(cycles / (accesses ? accesses : 1)));
        fflush(stdout);
    }
    if (!add_up(memory, (most << 20) / LINE, &sum) || !are_there(sum, written))
        return 1;
    printf("memlat: %lu accesses, right\n", (unsigned long)all);
    return 0;
}

/* Private memory in small pages; 0 if there is none. */
static void *memory(uint64_t bytes)
{
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 0;
    madvise(at, bytes, MADV_NOHUGEPAGE);
    memset(at, 0, bytes);
    return at;
}

/* The lines of a region as one cycle in a random order (Sattolo's algorithm): each holds the address of the next. */
static void **cycle(uint64_t lines)
{
    char *at = memory(lines * LINE);
    uint32_t *order = malloc(lines * sizeof *order);
    if (!at || !order)
        return 0;
    for (uint64_t n = 0; n < lines; n++)
        order[n] = n;
    uint64_t random = 88172645463325252;
    for (uint64_t n = lines - 1; n; n--) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint64_t other = random % n;
        uint32_t own = order[n];
        order[n] = order[other];
        order[other] = own;
    }
    for (uint64_t n = 0; n < lines; n++)
        *(void **)(at + order[n] * LINE) = at + order[(n + 1) % lines] * LINE;
    free(order);
    return (void **)at;
}

static void **__attribute__((noinline)) follow(void **at, uint64_t accesses)
{
    for (; accesses; accesses--)
        at = *(void ***)at;
    return at;
}

static int chase(uint64_t kib, uint64_t accesses, uint64_t warm_ms, uint64_t ms)
{
    uint64_t lines = kib * 1024 / LINE;
    if (lines < 2 || !accesses)
        return 2;
    void **at[2], **first[2];
    for (int n = 0; n < 2; n++)
        if (!(first[n] = at[n] = cycle(lines)))
            return 3;
    /* The clock is looked at now and then: that is an exit on some machines. */
    uint64_t visits = 0, some = 200000 / accesses + 1, before = 0, took[2] = {0, 0}, wanted[2] = {warm_ms, ms};
    for (int part = 0; part < 2; part++) {
        uint64_t begin = nanos();
        before = visits;
        do {
            for (uint64_t n = 0; n < some; n++, visits++)
                at[visits % 2] = follow(at[visits % 2], accesses);
            took[part] = nanos() - begin;
        } while (took[part] < wanted[part] * 1000000);
    }
    /* Where it has come to is where that many accesses lead. */
    for (int n = 0; n < 2; n++) {
        uint64_t own = (visits + 1 - n) / 2 % lines * (accesses % lines) % lines;
        if (follow(first[n], own) != at[n]) {
            printf("memlat: region %d is wrong\n", n);
            return 1;
        }
    }
    printf("memlat: kib=%lu accesses=%lu warm_ns=%lu visits=%lu measured=%lu ns=%lu right\n", (unsigned long)kib,
           (unsigned long)accesses, (unsigned long)took[0], (unsigned long)(visits - before),
           (unsigned long)((visits - before) * accesses), (unsigned long)took[1]);
    return 0;
}

/* An instruction that programs may execute and that always exits; the kernel hardly ever does. */
static void beat(void)
{
    uint32_t a = 0, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
}

static int beats(uint64_t kib, uint64_t accesses, const uint64_t ms[3])
{
    uint64_t lines = kib * 1024 / LINE, visits = 0, count = 0;
    void **first = lines > 1 && accesses ? cycle(lines) : 0, **at = first;
    if (!first)
        return 3;
    for (int part = 0; part < 3; part++)
        for (uint64_t begin = nanos(); nanos() - begin < ms[part] * 1000000; visits++) {
            at = follow(at, accesses);
            if (part == 1) {
                beat();
                count++;
            }
        }
    if (follow(first, visits % lines * (accesses % lines) % lines) != at) {
        printf("memlat: the region is wrong\n");
        return 1;
    }
    printf("memlat: kib=%lu accesses=%lu beats=%lu right\n", (unsigned long)kib, (unsigned long)accesses,
           (unsigned long)count);
    return 0;
}

static void __attribute__((noinline)) sweep(const volatile char *at, uint64_t bytes)
{
    for (const volatile char *end = at + bytes; at < end; at += 8 * LINE) {
        at[0 * LINE], at[1 * LINE], at[2 * LINE], at[3 * LINE];
        at[4 * LINE], at[5 * LINE], at[6 * LINE], at[7 * LINE];
    }
}

static int pollute(uint64_t kib, uint64_t ms)
{
    uint64_t bytes = kib / 4 * PAGE;
    const char *at = bytes ? memory(bytes) : 0;
    if (!at)
        return 3;
    uint64_t begin = nanos();
    while (nanos() - begin < ms * 1000000)
        sweep(at, bytes);
    printf("memlat: polluted\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "chase"))
        return chase(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10),
                     strtoull(argv[5], 0, 10));
    if (argc == 7 && !strcmp(argv[1], "beats")) {
        const uint64_t ms[3] = {strtoull(argv[4], 0, 10), strtoull(argv[5], 0, 10), strtoull(argv[6], 0, 10)};
        return beats(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10), ms);
    }
    if (argc == 4 && !strcmp(argv[1], "pollute"))
        return pollute(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10));
    if (argc >= 4 && !strcmp(argv[1], "load")) {
        struct part parts[argc - 3];
        for (int n = 0; n < argc - 3; n++)
            parts[n] = (struct part){0, strtoull(argv[n + 3], 0, 10)};
        return load(strtoull(argv[2], 0, 10), argc - 3, parts, wander);
    }
    if (argc == 6 && !strcmp(argv[1], "turns")) {
        uint64_t times = strtoull(argv[3], 0, 10), mib = strtoull(argv[4], 0, 10), stores = strtoull(argv[5], 0, 10);
        struct part *parts = times && stores ? calloc(times, sizeof *parts) : 0;
        if (!parts)
            return 2;
        for (uint64_t n = 0; n < times; n++)
            parts[n] = (struct part){n % stores * mib, mib};
        return load(strtoull(argv[2], 0, 10), times, parts, roam);
    }
    if ((argc == 4 || argc == 5) && !strcmp(argv[1], "latency"))
        return latency(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10), argc == 5 ? strtoull(argv[4], 0, 10) : 10);
    if (argc == 7 && !strcmp(argv[1], "lookups"))
        return lookups(strtoull(argv[2], 0, 10), strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10),
                       strtoull(argv[5], 0, 10), strtoull(argv[6], 0, 10));
    if (argc != 4)
        return 2;
    uint64_t pages = strtoull(argv[1], 0, 10), us = strtoull(argv[2], 0, 10), visits = strtoull(argv[3], 0, 10);
    volatile uint64_t *region[2];
    for (int n = 0; n < 2; n++) {
        void *at = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (at == MAP_FAILED)
            return 3;
        madvise(at, pages * PAGE, MADV_NOHUGEPAGE);
        region[n] = at;
    }
    /*
     * The best of all attempts in a tenth of a second. An emulator's processor can be half as fast for some
     * milliseconds: visits that were measured then would be half as long as they should be.
     */
    uint64_t trial = 200, best = UINT64_MAX, count[2] = {0, 0}, start = nanos();
    for (int n = 0; nanos() - start < 100 * 1000000ull; n++) {
        uint64_t begin = nanos();
        visit(region[n % 2], pages, trial);
        uint64_t took = nanos() - begin;
        best = took < best ? took : best;
        count[n % 2] += trial;
    }
    uint64_t loops = us * 1000 * trial / (best ? best : 1) + 1;
    uint64_t begin = nanos();
    for (uint64_t n = 0; n < visits; n++) {
        visit(region[n % 2], pages, loops);
        count[n % 2] += loops;
    }
    uint64_t took = nanos() - begin;
    for (int r = 0; r < 2; r++)
        for (uint64_t n = 0; n < pages; n++)
            if (region[r][n * WORDS + n % 64 * 8] != count[r]) {
                printf("memlat: page %lu of region %d is wrong\n", (unsigned long)n, r);
                return 1;
            }
    printf("memlat: %lu visits of %lu loops, %lu ns for a visit, right\n", (unsigned long)visits, (unsigned long)loops,
           (unsigned long)(took / (visits ? visits : 1)));
    return 0;
}
