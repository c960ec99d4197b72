/*
 * A program whose memory is two regions: memlat of the memory-region thesis, section 2.3.1, with the
 * time of a visit for its length.
 *
 *   memlat PAGES VISIT_US VISITS    two regions of PAGES pages each, which are used by turns for about
 *                                   VISIT_US microseconds, VISITS times in all
 *
 * The loop looks at no clock and at no other memory: the length of a visit is measured once, before it
 * begins. At the end it checks that each page holds how often it was visited.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))

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

int main(int argc, char **argv)
{
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
    /* The best of some attempts: others have the processor at times. */
    uint64_t trial = 200, best = UINT64_MAX, count[2] = {0, 0};
    for (int n = 0; n < 20; n++) {
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
