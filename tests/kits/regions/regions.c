/*
 * What programs do to /dev/palimpsest that they should not, and what they may: each answer of the device is checked, with the number of
 * frames that are in regions afterwards. Runs as root in a guest with the guest kit, alone on the device.
 *
 *   regions           prints a line for what is not as expected, and the number of checks
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "palimpsest.h"

#define PAGE 4096ul
#define OTHER_USER 65534

static int checks, failures;

/* The device's answer: 0, or the number of an error. */
static int answer(long result)
{
    return result == -1 ? errno : 0;
}

static void check(const char *what, long found, long expected)
{
    checks++;
    if (found == expected)
        return;
    failures++;
    printf("%s: %ld, expected %ld\n", what, found, expected);
}

static int open_device(void)
{
    return open(PALIMPSEST_KIT_PATH, O_RDWR | O_CLOEXEC);
}

static struct palimpsest_kit_info info(int file)
{
    struct palimpsest_kit_info info = { 0 };

    ioctl(file, PALIMPSEST_KIT_INFO, &info);
    return info;
}

static long frames_of_all(void)
{
    int file = open_device();
    long frames = info(file).frames_all;

    close(file);
    return frames;
}

static uint32_t create(int file)
{
    struct palimpsest_kit_region region = { 0 };

    check("create", answer(ioctl(file, PALIMPSEST_KIT_CREATE, &region)), 0);
    return region.number;
}

static int delete(int file, uint32_t number)
{
    struct palimpsest_kit_region region = { .number = number };

    return answer(ioctl(file, PALIMPSEST_KIT_DELETE, &region));
}

static int target(int file, uint32_t per_mille, uint32_t flags)
{
    struct palimpsest_kit_target target = { .per_mille = per_mille, .flags = flags };

    return answer(ioctl(file, PALIMPSEST_KIT_TARGET, &target));
}

/* Frames of a region; -1: the file has no such one. */
static long frames(int file, uint32_t number)
{
    struct palimpsest_kit_region region = { .number = number };

    return ioctl(file, PALIMPSEST_KIT_QUERY, &region) ? -1 : (long)region.frames;
}

static char *map_at(int file, uint32_t number, size_t bytes, void *at, int flags)
{
    return mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file, (off_t)number * PALIMPSEST_KIT_OFFSET_UNIT);
}

static char *map(int file, uint32_t number, size_t bytes)
{
    return map_at(file, number, bytes, NULL, MAP_SHARED);
}

static int map_answer(int file, uint32_t number, size_t bytes)
{
    return answer((long)map(file, number, bytes));
}

static int status_of(pid_t child)
{
    int status = -1;

    waitpid(child, &status, 0);
    return status;
}

static void bad_arguments(int file)
{
    struct palimpsest_kit_region region = { .flags = 1 };

    check("version", info(file).version, PALIMPSEST_KIT_VERSION);
    check("unknown flags", answer(ioctl(file, PALIMPSEST_KIT_CREATE, &region)), PALIMPSEST_KIT_EINVAL);
    check("no argument", answer(ioctl(file, PALIMPSEST_KIT_CREATE, NULL)), PALIMPSEST_KIT_EFAULT);
    check("no place", answer(ioctl(file, PALIMPSEST_KIT_INFO, (void *)1)), PALIMPSEST_KIT_EFAULT);
    check("the kernel's memory", answer(ioctl(file, PALIMPSEST_KIT_CREATE, (void *)-PAGE)), PALIMPSEST_KIT_EFAULT);
    check("unknown ioctl", answer(ioctl(file, PALIMPSEST_KIT_QUERY + 1, &region)), PALIMPSEST_KIT_ENOTTY);
    check("a target without fast memory", target(file, 500, 0), PALIMPSEST_KIT_ENODEV);
    check("no target without fast memory", target(file, 0, 0), PALIMPSEST_KIT_ENODEV);
    check("a target that is too large", target(file, 1001, 0), PALIMPSEST_KIT_EINVAL);
    check("a target with flags", target(file, 500, 1), PALIMPSEST_KIT_EINVAL);
    check("no target", answer(ioctl(file, PALIMPSEST_KIT_TARGET, NULL)), PALIMPSEST_KIT_EFAULT);
    check("unknown region", delete(file, 77), PALIMPSEST_KIT_ENOENT);
    check("region 0", delete(file, 0), PALIMPSEST_KIT_ENOENT);
    check("nothing was made", info(file).regions, 0);
}

static void bad_mappings(int file, uint32_t number)
{
    off_t offset = (off_t)number * PALIMPSEST_KIT_OFFSET_UNIT;
    size_t most = info(file).frames_max * PAGE;
    int reader = open(PALIMPSEST_KIT_PATH, O_RDONLY);

    check("private", answer((long)map_at(file, number, PAGE, NULL, MAP_PRIVATE)), PALIMPSEST_KIT_EINVAL);
    check("executable", answer((long)mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_SHARED, file, offset)),
          PALIMPSEST_KIT_EACCES);
    check("unaligned offset", answer((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, offset + 8)), EINVAL);
    check("no length", map_answer(file, number, 0), EINVAL);
    check("too long", map_answer(file, number, most + PAGE), PALIMPSEST_KIT_EDQUOT);
    check("a terabyte", map_answer(file, number, 1ul << 40), PALIMPSEST_KIT_EDQUOT);
    check("all addresses", map_answer(file, number, -PAGE), ENOMEM);
    check("unknown region", map_answer(file, number + 1, PAGE), PALIMPSEST_KIT_ENOENT);
    check("region 0", map_answer(file, 0, PAGE), PALIMPSEST_KIT_ENOENT);
    check("last offset", answer((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, file, (off_t)(1ul << 62))),
          PALIMPSEST_KIT_ENOENT);
    check("read only, to write", map_answer(reader, number, PAGE), PALIMPSEST_KIT_EACCES);
    close(reader);
    check("nothing is mapped", frames(file, number), 0);
}

/* Parts of mappings, and other mappings over them. */
static void changes(int file, uint32_t number)
{
    char *at = map(file, number, 3 * PAGE - 7), *moved;

    check("rounded up", frames(file, number), 3);
    for (size_t n = 0; n < 3 * PAGE; n++)
        if (at[n])
            check("zeroed", at[n], 0);
    strcpy(at + PAGE, "kept");
    check("unmap a part", answer(munmap(at, PAGE)), PALIMPSEST_KIT_EINVAL);
    check("protect a part", answer(mprotect(at, PAGE, PROT_READ)), PALIMPSEST_KIT_EINVAL);
    check("make it executable", answer(mprotect(at, 3 * PAGE, PROT_READ | PROT_EXEC)), EACCES);
    check("grow", answer((long)mremap(at, 3 * PAGE, 5 * PAGE, MREMAP_MAYMOVE)), EFAULT);
    check("shrink", answer((long)mremap(at, 3 * PAGE, PAGE, 0)), PALIMPSEST_KIT_EINVAL);
    check("twice", answer((long)mremap(at, 0, 3 * PAGE, MREMAP_MAYMOVE)), EFAULT);
    check("unaligned", answer(munmap(at + 8, PAGE)), EINVAL);
    check("forget", answer(madvise(at, 3 * PAGE, MADV_DONTNEED)), 0);
    check("overlap a part", map_at(file, number, PAGE, at + PAGE, MAP_SHARED | MAP_FIXED) == MAP_FAILED, 1);
    check("overlap, anonymous", answer((long)mmap(at, PAGE, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) != 0, 1);
    check("frames after all this", frames(file, number), 3);
    check("what it holds", strcmp(at + PAGE, "kept"), 0);
    moved = mmap(NULL, 3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check("move", mremap(at, 3 * PAGE, 3 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, moved) == moved, 1);
    check("what is moved", strcmp(moved + PAGE, "kept"), 0);
    check("frames that have moved", frames(file, number), 3);
    check("end it with a mapping", delete(file, number), PALIMPSEST_KIT_EBUSY);
    check("replace all", map_at(file, number, 5 * PAGE, moved, MAP_SHARED | MAP_FIXED) == moved, 1);
    check("new memory", moved[PAGE], 0);
    check("frames of the new mapping", frames(file, number), 5);
    check("unmap", answer(munmap(moved, 5 * PAGE)), 0);
    check("frames at the end", frames(file, number), 0);
}

/* Another reference keeps a page, and not its frame in the region. */
static void referenced_elsewhere(int file, uint32_t number)
{
    char *at = map(file, number, PAGE), text[5] = "";
    struct iovec part = { at, sizeof text };
    int ends[2];

    check("pipe", pipe(ends), 0);
    strcpy(at, "kept");
    check("splice", vmsplice(ends[1], &part, 1, 0), sizeof text);
    munmap(at, PAGE);
    check("frames without a mapping", frames(file, number), 0);
    check("read", read(ends[0], text, sizeof text), sizeof text);
    check("what it held", strcmp(text, "kept"), 0);
    close(ends[0]);
    close(ends[1]);
}

static void many(int file)
{
    uint32_t numbers[1000];
    char *at[1000];
    int made = 0, refused = 0;

    for (int n = 0; n < 1000; n++) {
        struct palimpsest_kit_region region = { 0 };
        int error = answer(ioctl(file, PALIMPSEST_KIT_CREATE, &region));

        if (!error)
            numbers[made++] = region.number;
        refused += error == PALIMPSEST_KIT_EDQUOT;
    }
    check("regions of a file", made, PALIMPSEST_KIT_REGIONS_PER_FILE);
    check("refused", refused, 1000 - made);
    for (int n = 0; n < 1000; n++)
        at[n] = map(file, numbers[n % made], PAGE + n % 3 * PAGE);
    check("frames of a thousand mappings", info(file).frames, 1999);
    for (int n = 0; n < 1000; n++)
        check("unmap", answer(munmap(at[n], PAGE + n % 3 * PAGE)), 0);
    for (int n = 0; n < made; n++)
        check("end", delete(file, numbers[n]), 0);
    check("ended", delete(file, numbers[0]), PALIMPSEST_KIT_ENOENT);
}

/* Files until there are as many regions as all programs may have; then they go with their files. */
static void regions_of_all(void)
{
    int files[100], made = 0, count = 0;

    for (int n = 0; n < 100; n++) {
        struct palimpsest_kit_region region = { 0 };

        files[count++] = open_device();
        for (int of_file = 0; of_file < 2; of_file++)
            made += !ioctl(files[n], PALIMPSEST_KIT_CREATE, &region);
    }
    check("regions of all programs", made, PALIMPSEST_KIT_REGIONS_MAX);
    while (count)
        close(files[--count]);
}

static void memory_of_all(int file, uint32_t number)
{
    long most = info(file).frames_max, half = most / 2;
    char *one = map(file, number, half * PAGE), *other = map(file, number, half * PAGE);

    check("two halves", frames(file, number), 2 * half);
    check("more", map_answer(file, number, 2 * PAGE), PALIMPSEST_KIT_EDQUOT);
    munmap(one, half * PAGE);
    munmap(other, half * PAGE);
    check("given back", frames_of_all(), 0);
}

/* What another file has made is not there. */
static void foreign(int file, uint32_t number)
{
    int other = open_device();

    check("end another's", delete(other, number), PALIMPSEST_KIT_ENOENT);
    check("look at another's", frames(other, number), -1);
    check("map another's", map_answer(other, number, PAGE), PALIMPSEST_KIT_ENOENT);
    close(other);
    check("it is still there", frames(file, number), 0);
}

static void forks(int file, uint32_t number)
{
    char *at = map(file, number, 4 * PAGE);
    pid_t child;
    int status;

    *at = 1;
    child = fork();
    if (!child) {
        *at = 2;
        _exit(0);
    }
    status = status_of(child);
    check("a child that touches it", WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGSEGV);
    check("what the parent has", *at, 1);
    child = fork();
    if (!child)
        _exit(map_answer(file, number, 7 * PAGE) != 0 || frames(file, number) != 11);
    check("a child's own mapping", status_of(child), 0);
    check("frames without the child", frames(file, number), 4);
    check("share it with children", answer(madvise(at, 4 * PAGE, MADV_DOFORK)), 0);
    child = fork();
    if (!child) {
        *at = 3;
        pause();
    }
    while (*(volatile char *)at != 3)
        usleep(1000);
    munmap(at, 4 * PAGE);
    check("frames that the child has", frames(file, number), 4);
    kill(child, SIGKILL);
    status_of(child);
    check("frames of the dead", frames(file, number), 0);
}

/* The process is killed with regions and mappings. */
static void killed(void)
{
    int ends[2];
    pid_t child;
    char byte;

    check("pipe", pipe(ends), 0);
    child = fork();
    if (!child) {
        int file = open_device();

        for (int n = 0; n < 3; n++)
            map(file, create(file), 100 * PAGE);
        check("told", write(ends[1], "x", 1), 1);
        pause();
    }
    check("it has begun", read(ends[0], &byte, 1), 1);
    check("frames of another process", frames_of_all(), 300);
    kill(child, SIGKILL);
    status_of(child);
    check("frames of a killed process", frames_of_all(), 0);
}

static int as_other_user(int file, uint32_t number)
{
    struct rlimit limit = { 16 * PAGE, 16 * PAGE };

    setrlimit(RLIMIT_MEMLOCK, &limit);
    if (setuid(OTHER_USER))
        return 1;
    check("closed to others", answer(open_device()), EACCES);
    check("the limit", map_answer(file, number, 16 * PAGE), 0);
    check("over the limit", map_answer(file, number, PAGE), PALIMPSEST_KIT_EDQUOT);
    return failures;
}

static void others(int file, uint32_t number)
{
    pid_t child = fork();

    if (!child) {
        int status = as_other_user(file, number);

        fflush(stdout);
        _exit(status);
    }
    check("another user", status_of(child), 0);
    check("frames of another user", frames(file, number), 0);
}

/* Regions and mappings come and go; what is mapped at the end goes by exec. */
static void churn(unsigned int seed)
{
    for (int round = 0; round < 20; round++) {
        int file = open_device();
        uint32_t number = create(file);

        for (int n = 0; n < 10; n++) {
            size_t bytes = (1 + rand_r(&seed) % 80) * PAGE;
            char *at = map(file, number, bytes);

            if (at == MAP_FAILED)
                _exit(1);
            at[bytes - 1] = 1;
            /* What stays mapped keeps its file. */
            if (rand_r(&seed) % 2)
                munmap(at, bytes);
        }
        close(file);
    }
    execl("/proc/self/exe", "regions", "nothing", NULL);
    _exit(1);
}

static void two_processes(void)
{
    pid_t children[2];

    for (int n = 0; n < 2; n++) {
        children[n] = fork();
        if (!children[n])
            churn(n + 1);
    }
    for (int n = 0; n < 2; n++)
        check("a process of two", status_of(children[n]), 0);
    check("frames of two processes", frames_of_all(), 0);
}

int main(int count, char **words)
{
    int file;
    uint32_t number;

    if (count > 1 && !strcmp(words[1], "nothing"))
        return 0;
    file = open_device();
    if (file < 0) {
        perror(PALIMPSEST_KIT_PATH);
        return 1;
    }
    bad_arguments(file);
    number = create(file);
    bad_mappings(file, number);
    changes(file, number);
    referenced_elsewhere(file, number);
    foreign(file, number);
    forks(file, number);
    others(file, number);
    memory_of_all(file, number);
    check("end", delete(file, number), 0);
    many(file);
    close(file);
    regions_of_all();
    killed();
    two_processes();
    printf("regions: %d checks, %s\n", checks, failures ? "FAILED" : "ok");
    return failures != 0;
}
