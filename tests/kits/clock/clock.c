/*
 * What time a program sees: the latency of a chain of pointers by clock_gettime, and whether the TSC or the clock ever runs backwards
 * from one processor to the next.
 *
 *   clock chase KIB LOADS   the chain visits each page of KIB KiB once in each round, in random order, each at another line
 *   clock warp N LOOPS      N threads, each on a processor of its own
 *   clock touch PAGES       no time: PAGES page faults, and how many the guest kit has counted meanwhile
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define THREADS 16

static uint64_t tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

/* The other instruction, which also tells the processor. */
static uint64_t tscp(void)
{
    uint32_t low, high, aux;
    __asm__ volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(aux) : : "memory");
    return (uint64_t)high << 32 | low;
}

static uint64_t nanos(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int chase(size_t kib, uint64_t loads)
{
    size_t pages = kib * 1024 / PAGE;
    char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t *order = malloc(pages * sizeof *order);
    if (memory == MAP_FAILED || !order || pages == 0)
        return 2;
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t i = 0; i < pages; i++)
        order[i] = i;
    for (size_t i = pages - 1; i > 0; i--) {
        size_t j = next_random() % (i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    /* Lines differ from page to page, or all would share a few sets of the caches. */
    void **at = NULL;
    for (size_t i = 0; i < pages; i++) {
        size_t page = order[(i + 1) % pages], here = order[i];
        void **to = (void **)(memory + page * PAGE + page * 64 % PAGE);
        void **from = (void **)(memory + here * PAGE + here * 64 % PAGE);
        *from = to;
        at = to;
    }
    for (size_t i = 0; i < 2 * pages; i++)
        at = (void **)*at;
    uint64_t time = nanos(), ticks = tsc();
    for (uint64_t i = 0; i < loads; i++) {
        at = (void **)*at;
        __asm__ volatile("" : "+r"(at));
    }
    ticks = tsc() - ticks;
    time = nanos() - time;
    printf("chase kib=%zu ps=%llu millicycles=%llu\n", kib, (unsigned long long)(time * 1000 / loads),
           (unsigned long long)(ticks * 1000 / loads));
    return 0;
}

static struct {
    _Alignas(64) volatile int lock;
    uint64_t tsc, nanos;
    uint64_t backwards, seen;
    _Alignas(64) long loops;
} shared;

static void *reader(void *argument)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((long)argument, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        perror("sched_setaffinity");
    for (long i = 0; i < shared.loops; i++) {
        while (__atomic_exchange_n(&shared.lock, 1, __ATOMIC_ACQUIRE))
            sched_yield();
        uint64_t ticks = i & 1 ? tscp() : tsc(), time = nanos();
        shared.backwards += ticks < shared.tsc || time < shared.nanos;
        shared.tsc = ticks;
        shared.nanos = time;
        shared.seen++;
        __atomic_store_n(&shared.lock, 0, __ATOMIC_RELEASE);
        /* Different loads, so that the processors' cycles part. */
        for (volatile long spin = 0; spin < 50 * (long)argument; spin++)
            ;
        if (i % 64 == 0)
            usleep(100 * (1 + (long)argument));
    }
    return NULL;
}

static int warp(long threads, long loops)
{
    pthread_t all[THREADS];
    if (threads < 1 || threads > THREADS)
        return 2;
    shared.loops = loops;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&all[i], NULL, reader, (void *)i))
            return 2;
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    printf("warp readings=%llu backwards=%llu\n", (unsigned long long)shared.seen, (unsigned long long)shared.backwards);
    return shared.backwards != 0;
}

/* The guest kit's count, of programs; -1 where its module is not loaded. */
static long long counted(void)
{
    long long count = -1;
    FILE *file = fopen("/sys/kernel/palimpsest/page_faults_user", "r");
    if (file) {
        if (fscanf(file, "%lld", &count) != 1)
            count = -1;
        fclose(file);
    }
    return count;
}

static int touch(size_t pages)
{
    volatile char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    madvise((void *)memory, pages * PAGE, MADV_NOHUGEPAGE);
    long long before = counted();
    for (size_t i = 0; i < pages; i++)
        memory[i * PAGE] = 1;
    printf("touch pages=%zu counted=%lld\n", pages, before < 0 ? before : counted() - before);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "chase"))
        return chase(strtoul(argv[2], NULL, 0), strtoull(argv[3], NULL, 0));
    if (argc == 4 && !strcmp(argv[1], "warp"))
        return warp(strtol(argv[2], NULL, 0), strtol(argv[3], NULL, 0));
    if (argc == 3 && !strcmp(argv[1], "touch"))
        return touch(strtoul(argv[2], NULL, 0));
    fprintf(stderr, "clock chase KIB LOADS | clock warp THREADS LOOPS | clock touch PAGES\n");
    return 2;
}
