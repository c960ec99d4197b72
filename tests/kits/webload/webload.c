/*
 * Load for a web server in the same guest.
 *
 *   webload make DIR FILES KIB                         makes files to serve: DIR/0, DIR/1, …, of KIB KiB each
 *   webload get PORT PATH FILES LENGTH CONNECTIONS WARM_MS MS
 *                                                      asks 127.0.0.1:PORT for PATH/N, with N at random below FILES, on
 *                                                      CONNECTIONS connections at a time that stay open; after WARM_MS
 *                                                      milliseconds it counts answers for MS milliseconds
 *
 * A body has LENGTH bytes, and begins and ends with eight digits, which are N: each answer is checked, or nothing is counted.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_CONNECTIONS 64
#define DIGITS 8

static uint64_t nanos(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static unsigned random_below(unsigned most)
{
    static uint64_t seed = 88172645463325252;
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

static int make(const char *dir, unsigned files, size_t bytes)
{
    char *body = malloc(bytes), path[4096];
    if (!body || bytes < DIGITS)
        return 3;
    mkdir(dir, 0755);
    for (unsigned n = 0; n < files; n++) {
        for (size_t at = 0; at + DIGITS <= bytes; at += DIGITS)
            digits(body + at, n);
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

static void ask(int at, const char *path, unsigned number)
{
    char text[512];
    int length = snprintf(text, sizeof text, "GET %s/%u HTTP/1.1\r\nHost: localhost\r\n\r\n", path, number);
    if (write(at, text, length) != length)
        fail("cannot ask");
}

/* Reads an answer of `length` bytes after its head. */
static void answer(int at, unsigned number, size_t length)
{
    static char text[1 << 20];
    size_t got = 0, body = 0;
    char expected[DIGITS];
    while (!body || got < body + length) {
        ssize_t more = got < sizeof text - 1 ? read(at, text + got, sizeof text - 1 - got) : 0;
        if (more <= 0)
            fail("an answer ends early, or is too long");
        got += more;
        text[got] = 0;
        char *end = body ? 0 : strstr(text, "\r\n\r\n");
        if (end)
            body = end + 4 - text;
    }
    digits(expected, number);
    if (strncmp(text, "HTTP/1.1 200 ", 13) || got != body + length || memcmp(text + body, expected, DIGITS) ||
        memcmp(text + got - DIGITS, expected, DIGITS)) {
        printf("%.400s\n", text);
        fail("a wrong answer");
    }
}

int main(int argc, char **argv)
{
    if (argc == 5 && !strcmp(argv[1], "make"))
        return make(argv[2], atoi(argv[3]), strtoull(argv[4], 0, 10) * 1024);
    if (argc != 9 || strcmp(argv[1], "get"))
        return 2;
    unsigned port = atoi(argv[2]), files = atoi(argv[4]), many = atoi(argv[6]);
    size_t length = strtoull(argv[5], 0, 10);
    uint64_t wanted[2] = {strtoull(argv[7], 0, 10), strtoull(argv[8], 0, 10)};
    if (!files || !many || many > MOST_CONNECTIONS || length < DIGITS)
        return 2;
    int at[MOST_CONNECTIONS];
    unsigned asked[MOST_CONNECTIONS];
    for (unsigned n = 0; n < many; n++) {
        at[n] = connection(port);
        ask(at[n], argv[3], asked[n] = random_below(files));
    }
    uint64_t answers = 0, before = 0, took[2];
    for (int part = 0; part < 2; part++) {
        uint64_t begin = nanos();
        before = answers;
        do {
            unsigned n = answers++ % many;
            answer(at[n], asked[n], length);
            ask(at[n], argv[3], asked[n] = random_below(files));
        } while ((took[part] = nanos() - begin) < wanted[part] * 1000000);
    }
    printf("webload: warm_ns=%lu measured=%lu ns=%lu right\n", (unsigned long)took[0], (unsigned long)(answers - before),
           (unsigned long)took[1]);
    return 0;
}
