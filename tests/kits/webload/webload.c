/*
 * Load for a web server in the same guest.
 *
 *   webload make DIR FILES KIB                         makes files to serve: DIR/0, DIR/1, …, of KIB KiB each
 *   webload on CPU PROGRAM WORDS…                      runs a program that stays on a CPU, and preempts nothing when it wakes up
 *                                                      (SCHED_BATCH)
 *   webload fill PORT PREFIX KEYS LENGTH               sets the keys PREFIX:0, PREFIX:1, … of the Redis server at 127.0.0.1:PORT
 *   webload get PORT PATH FILES LENGTH CONNECTIONS WARM_MS MS CPUS
 *                                                      a process for each of the CPUs 0, 1, … below CPUS, as by `on`:
 *                                                      that of CPU n asks 127.0.0.1:PORT+n for PATH/N, with N at random below
 *                                                      FILES, on CONNECTIONS connections at a time that stay open; when all
 *                                                      have done so for WARM_MS milliseconds they count answers for MS
 *                                                      milliseconds. A PATH that does not begin with a slash is the prefix of
 *                                                      keys of Redis.
 *
 * A body has LENGTH bytes, and begins and ends with eight digits, which are N: each answer is checked, or nothing is counted.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_CONNECTIONS 64
#define MOST_CPUS 8
#define DIGITS 8

/*
 * What the processes share: how many have their connections, how many have asked for as long as WARM_MS says, how many have counted for as
 * long as MS says, and what each has counted. All count at the same time: a server that they have in common may answer one after the other.
 */
struct shared {
    atomic_uint ready, warm, done;
    uint64_t answers[MOST_CPUS], warm_ns[MOST_CPUS], ns[MOST_CPUS];
};
static uint64_t seed = 88172645463325252;

static uint64_t nanos(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static unsigned random_below(unsigned most)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 20) % most;
}

static void digits(char *at, unsigned number)
{
    char text[DIGITS + 1];
    snprintf(text, sizeof text, "%08u", number % 100000000);
    memcpy(at, text, DIGITS);
}

static int fail(const char *why)
{
    printf("webload: %s\n", why);
    exit(1);
}

static void fill_body(char *body, size_t bytes, unsigned number)
{
    for (size_t at = 0; at + DIGITS <= bytes; at += DIGITS)
        digits(body + at, number);
}

static int make(const char *dir, unsigned files, size_t bytes)
{
    char *body = malloc(bytes), path[4096];
    if (!body || bytes < DIGITS)
        return 3;
    mkdir(dir, 0755);
    for (unsigned n = 0; n < files; n++) {
        fill_body(body, bytes, n);
        snprintf(path, sizeof path, "%s/%u", dir, n);
        FILE *file = fopen(path, "w");
        if (!file || fwrite(body, 1, bytes, file) != bytes || fclose(file))
            fail("cannot write a file");
    }
    return 0;
}

/* Connects; the server may still be starting. */
static int connection(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int tries = 0; tries < 1000; tries++) {
        int on = 1, at = socket(AF_INET, SOCK_STREAM, 0);
        if (at >= 0 && !connect(at, (struct sockaddr *)&address, sizeof address)) {
            setsockopt(at, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            return at;
        }
        close(at);
        usleep(10000);
    }
    return fail("no server");
}

static int is_http(const char *path)
{
    return path[0] == '/';
}

static void ask(int at, const char *path, unsigned number)
{
    char text[512];
    const char *format = is_http(path) ? "GET %s/%u HTTP/1.1\r\nHost: localhost\r\n\r\n" : "GET %s:%u\r\n";
    int length = snprintf(text, sizeof text, format, path, number);
    if (write(at, text, length) != length)
        fail("cannot ask");
}

/* Reads an answer of `length` bytes after its head; that of Redis has the end of a line behind them. */
static void answer(int at, const char *path, unsigned number, size_t length)
{
    static char text[1 << 20];
    size_t got = 0, body = 0, behind = is_http(path) ? 0 : 2;
    const char *head_ends = is_http(path) ? "\r\n\r\n" : "\r\n";
    char expected[DIGITS], begins[32] = "HTTP/1.1 200 ";
    if (!is_http(path))
        snprintf(begins, sizeof begins, "$%zu\r\n", length);
    while (!body || got < body + length + behind) {
        ssize_t more = got < sizeof text - 1 ? read(at, text + got, sizeof text - 1 - got) : 0;
        if (more <= 0)
            fail("an answer ends early, or is too long");
        got += more;
        text[got] = 0;
        char *end = body ? 0 : strstr(text, head_ends);
        if (end)
            body = end + strlen(head_ends) - text;
        /* An error has another length. */
        if (body && strncmp(text, begins, strlen(begins)))
            break;
    }
    digits(expected, number);
    if (strncmp(text, begins, strlen(begins)) || got != body + length + behind || memcmp(text + body, expected, DIGITS) ||
        memcmp(text + body + length - DIGITS, expected, DIGITS)) {
        printf("%.400s\n", text);
        fail("a wrong answer");
    }
}

static int fill(unsigned port, const char *prefix, unsigned keys, size_t bytes)
{
    static const char right[] = "+OK\r\n";
    char *text = malloc(bytes + 512), said[sizeof right];
    if (!text || bytes < DIGITS || bytes % DIGITS)
        return 3;
    int at = connection(port);
    for (unsigned n = 0; n < keys; n++) {
        size_t head = snprintf(text, 512, "SET %s:%u ", prefix, n), all = head + bytes + 2;
        fill_body(text + head, bytes, n);
        memcpy(text + head + bytes, "\r\n", 2);
        for (size_t sent = 0; sent < all;) {
            ssize_t more = write(at, text + sent, all - sent);
            if (more <= 0)
                fail("cannot set a key");
            sent += more;
        }
        if (recv(at, said, strlen(right), MSG_WAITALL) != (ssize_t)strlen(right) || memcmp(said, right, strlen(right)))
            fail("a key is not set");
    }
    return 0;
}

static void stay_on(unsigned cpu)
{
    struct sched_param none = {0};
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cpu, &own);
    if (sched_setaffinity(0, sizeof own, &own) || sched_setscheduler(0, SCHED_BATCH, &none))
        fail("there is no such CPU");
}

static int get(char **argv, unsigned cpu, unsigned cpus, struct shared *shared)
{
    unsigned port = atoi(argv[2]) + cpu, files = atoi(argv[4]), many = atoi(argv[6]);
    size_t length = strtoull(argv[5], 0, 10);
    uint64_t wanted[2] = {strtoull(argv[7], 0, 10), strtoull(argv[8], 0, 10)};
    if (!files || !many || many > MOST_CONNECTIONS || length < DIGITS)
        return 2;
    stay_on(cpu);
    seed += cpu * 0x9e3779b97f4a7c15;
    int at[MOST_CONNECTIONS];
    unsigned asked[MOST_CONNECTIONS];
    for (unsigned n = 0; n < many; n++)
        at[n] = connection(port);
    shared->ready++;
    while (shared->ready < cpus)
        usleep(1000);
    for (unsigned n = 0; n < many; n++)
        ask(at[n], argv[3], asked[n] = random_below(files));
    uint64_t answers = 0;
    for (int part = 0; part < 2; part++) {
        atomic_uint *there = part ? &shared->done : &shared->warm;
        uint64_t begin = nanos(), before = answers;
        int is_over = 0;
        /* Until all have asked for so long. */
        while (*there < cpus) {
            unsigned n = answers++ % many;
            answer(at[n], argv[3], asked[n], length);
            ask(at[n], argv[3], asked[n] = random_below(files));
            uint64_t took = nanos() - begin;
            if (is_over || took < wanted[part] * 1000000)
                continue;
            is_over = 1;
            /* Answers of a server in common come in bursts. Both ends of the time are at the first answer of one. */
            (part ? shared->ns : shared->warm_ns)[cpu] = took;
            shared->answers[cpu] = answers - before;
            ++*there;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "make"))
        return make(argv[2], atoi(argv[3]), strtoull(argv[4], 0, 10) * 1024);
    if (argc == 6 && !strcmp(argv[1], "fill"))
        return fill(atoi(argv[2]), argv[3], atoi(argv[4]), strtoull(argv[5], 0, 10));
    if (argc >= 4 && !strcmp(argv[1], "on")) {
        stay_on(atoi(argv[2]));
        execvp(argv[3], argv + 3);
        return fail("no such program");
    }
    unsigned cpus = argc == 10 && !strcmp(argv[1], "get") ? atoi(argv[9]) : 0;
    if (!cpus || cpus > MOST_CPUS)
        return 2;
    struct shared *shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        fail("no memory");
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        int child = fork();
        if (child < 0)
            fail("no process");
        if (!child)
            return get(argv, cpu, cpus, shared);
    }
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        int status;
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            return 1;
    }
    uint64_t answers = 0, warm = 0, took = 0;
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        warm = shared->warm_ns[cpu] > warm ? shared->warm_ns[cpu] : warm;
        took = shared->ns[cpu] > took ? shared->ns[cpu] : took;
    }
    /* Each one's rate, for as long as the longest has taken. */
    for (unsigned cpu = 0; cpu < cpus; cpu++)
        answers += shared->answers[cpu] * took / shared->ns[cpu];
    printf("webload: warm_ns=%lu measured=%lu ns=%lu right\n", (unsigned long)warm, (unsigned long)answers, (unsigned long)took);
    return 0;
}
