/*
 * Stand-ins of SPEC CPU2006, with which the memory-region thesis shows what unification gains (figure 33). SPEC is licensed and
 * absent. Each of these has the way in which a program of it uses memory, with sizes relative to a last-level cache:
 *
 *   standins sphinx CACHE_KIB WARM_MS MS     482.sphinx3: Gaussians are scored for a frame of speech, then the lattice is searched:
 *                                            two parts of 6/8 of a cache each, used by turns
 *   standins namd CACHE_KIB WARM_MS MS       444.namd: pairs of atoms within a patch, patch after patch: 12 patches of an eighth
 *   standins h264 CACHE_KIB WARM_MS MS       464.h264ref: motion is searched in a reference picture, then the slice is
 *                                            filtered in the new one: two pictures of 5/8 each, a slice at a time
 *   standins omnetpp CACHE_KIB WARM_MS MS    471.omnetpp: events at modules all over 12/8 of a cache, in no order
 *   standins libquantum CACHE_KIB WARM_MS MS 462.libquantum: gates over a register of four caches
 *   standins povray CACHE_KIB WARM_MS MS     453.povray: rays through a scene of an eighth
 *
 * After WARM_MS milliseconds it counts its units of work for MS milliseconds. At the end it checks what must hold of its memory,
 * such as that forces add up to zero.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define LINE 64

static uint64_t nanos(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t seed = 88172645463325252;

static uint64_t random_below(uint64_t most)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 20) % most;
}

/* A line of memory: what a senone, a node, an atom, a module or a part of a picture is made of. */
struct line {
    int16_t values[16];
    int64_t sum;
    int64_t count;
    uint64_t spare[2];
};
_Static_assert(sizeof(struct line) == LINE, "a line");

/* Lines of memory and how often they were counted. */
struct part {
    struct line *lines;
    uint64_t count;
    int64_t counted;
};

/* Memory of its own, in small pages. */
static struct part part(uint64_t kib)
{
    struct part part = {0, kib * 1024 / LINE, 0};
    uint64_t bytes = part.count * LINE;
    part.lines = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (part.lines == MAP_FAILED || part.count < 1024)
        exit(3);
    madvise(part.lines, bytes, MADV_NOHUGEPAGE);
    for (uint64_t n = 0; n < part.count; n++)
        for (int at = 0; at < 16; at++)
            part.lines[n].values[at] = (int16_t)(n * 31 + at * 7);
    return part;
}

/* Whether each line's count is there, and sums add up to `expected`. */
static int is_right(const struct part *part, int64_t expected)
{
    int64_t count = 0, sum = 0;
    for (uint64_t n = 0; n < part->count; n++) {
        count += part->lines[n].count;
        sum += part->lines[n].sum;
        for (int at = 0; at < 16; at++)
            if (part->lines[n].values[at] != (int16_t)(n * 31 + at * 7))
                return 0;
    }
    return count == part->counted && sum == expected;
}

/* Distance of a line's values from some others. */
static int64_t distance(const struct line *line, int64_t from)
{
    int64_t sum = 0;
    for (int n = 0; n < 16; n += 4) {
        int64_t difference = line->values[n] - (from + n);
        sum += difference * difference;
    }
    return sum;
}

/* Reads `lines` lines of a window at random, and counts at the best of each eight. */
static void search(struct part *part, uint64_t first, uint64_t window, uint64_t lines)
{
    for (uint64_t n = 0; n < lines; n += 8) {
        struct line *best = 0;
        int64_t least = INT64_MAX;
        for (int at = 0; at < 8; at++) {
            struct line *line = &part->lines[(first + random_below(window)) % part->count];
            int64_t far = distance(line, (int64_t)n);
            if (far < least) {
                least = far;
                best = line;
            }
        }
        best->count++;
        part->counted++;
    }
}

/* Parts of a program, and what it does with them for a unit of work. */
static struct part parts[12];
static int used;
static uint64_t units;

static void sphinx(void)
{
    search(&parts[0], 0, parts[0].count, 16384);
    search(&parts[1], 0, parts[1].count, 16384);
}

/* A force on one atom is that on the other, the other way round. */
static void namd(void)
{
    struct part *patch = &parts[units % used];
    for (int n = 0; n < 8192; n++) {
        struct line *one = &patch->lines[random_below(patch->count)], *other = &patch->lines[random_below(patch->count)];
        int64_t force = one->values[n % 16] - other->values[n % 16];
        one->sum += force;
        other->sum -= force;
        one->count++;
    }
    patch->counted += 8192;
}

/* A slice is a quarter of a picture; what is searched for it is a half. */
static void h264(void)
{
    uint64_t quarter = parts[0].count / 4, first = units % 4 * quarter;
    search(&parts[0], first, 2 * quarter, 16384);
    search(&parts[1], first, quarter, 16384);
}

/* An event's module says where the next one is. */
static void omnetpp(void)
{
    static uint64_t at;
    for (int n = 0; n < 16384; n++) {
        struct line *module = &parts[0].lines[at];
        module->count++;
        at = ((uint64_t)module->values[0] * 2654435761 + random_below(parts[0].count)) % parts[0].count;
    }
    parts[0].counted += 16384;
}

/* A controlled NOT exchanges amplitudes: an eighth of the register in a unit. */
static void libquantum(void)
{
    uint64_t eighth = parts[0].count / 8, first = units % 8 * eighth;
    for (uint64_t n = first; n + 1 < first + eighth; n += 2) {
        struct line *one = &parts[0].lines[n], *other = one + 1;
        int64_t amplitude = one->sum;
        one->sum = other->sum + 1;
        other->sum = amplitude - 1;
        one->count++;
        parts[0].counted++;
    }
}

static void povray(void)
{
    search(&parts[0], 0, parts[0].count, 65536);
}

static const struct {
    const char *name;
    void (*unit)(void);
    /* Parts, and the size of each in eighths of a cache. */
    int parts, eighths;
} programs[] = {
    {"sphinx", sphinx, 2, 6}, {"namd", namd, 12, 1},            {"h264", h264, 2, 5},
    {"omnetpp", omnetpp, 1, 12}, {"libquantum", libquantum, 1, 32}, {"povray", povray, 1, 1},
};

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    uint64_t kib = strtoull(argv[2], 0, 10), wanted[2] = {strtoull(argv[3], 0, 10), strtoull(argv[4], 0, 10)};
    for (unsigned n = 0; n < sizeof programs / sizeof *programs; n++) {
        if (strcmp(argv[1], programs[n].name))
            continue;
        for (used = 0; used < programs[n].parts; used++)
            parts[used] = part(kib * programs[n].eighths / 8);
        uint64_t took[2], before = 0;
        for (int half = 0; half < 2; half++) {
            uint64_t begin = nanos();
            before = units;
            do {
                programs[n].unit();
                units++;
            } while ((took[half] = nanos() - begin) < wanted[half] * 1000000);
        }
        for (int each = 0; each < used; each++)
            if (!is_right(&parts[each], 0)) {
                printf("standins: part %d is wrong\n", each);
                return 1;
            }
        printf("standins: name=%s warm_ns=%lu measured=%lu ns=%lu right\n", argv[1], (unsigned long)took[0],
               (unsigned long)(units - before), (unsigned long)took[1]);
        return 0;
    }
    return 2;
}
