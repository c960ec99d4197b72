/*
 * A small web server: the kernel's part of a request is that of a real one, and it needs no package.
 *
 *   server PORT DIR    answers HTTP/1.1 `GET /NAME` at 127.0.0.1:PORT with the file DIR/NAME, on connections that stay open
 *
 * Each request opens its file, sends it with sendfile, and closes it. It goes into the background once it listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_CLIENTS 63
/* A request of the load is shorter, and comes in one piece. */
#define REQUEST 512

static int fail(const char *why)
{
    perror(why);
    exit(1);
}

/* Sends all of the file; the socket blocks. */
static int send_file(int to, const char *name)
{
    struct stat about;
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about))
        return 0;
    char head[128];
    int length = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Length: %lld\r\n\r\n", (long long)about.st_size);
    int sent = send(to, head, length, MSG_MORE | MSG_NOSIGNAL) == length;
    for (off_t at = 0; sent && at < about.st_size;)
        sent = sendfile(to, file, &at, about.st_size - at) > 0;
    close(file);
    return sent;
}

/* Answers a request; 0: the connection is to be closed. */
static int answer(int client)
{
    char text[REQUEST];
    ssize_t got = read(client, text, sizeof text - 1);
    if (got <= 0)
        return 0;
    text[got] = 0;
    char name[64];
    return strstr(text, "\r\n\r\n") && sscanf(text, "GET /%63[a-z0-9/] ", name) == 1 && send_file(client, name);
}

static int listener(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, at = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (at < 0 || setsockopt(at, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(at, (struct sockaddr *)&address, sizeof address) ||
        listen(at, MOST_CLIENTS))
        fail("server: cannot listen");
    return at;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct pollfd at[MOST_CLIENTS + 1] = {{.fd = listener(atoi(argv[1])), .events = POLLIN}};
    nfds_t count = 1;
    if (chdir(argv[2]))
        fail("server: cannot go to the folder");
    signal(SIGPIPE, SIG_IGN);
    pid_t child = fork();
    if (child)
        return child < 0;
    for (;;) {
        /* Others wait in the listener's queue while there are as many as can be. */
        at[0].events = count <= MOST_CLIENTS ? POLLIN : 0;
        if (poll(at, count, -1) < 0)
            continue;
        for (nfds_t n = count; --n;)
            if (at[n].revents && !answer(at[n].fd)) {
                close(at[n].fd);
                at[n] = at[--count];
            }
        if (at[0].revents) {
            int on = 1, client = accept4(at[0].fd, 0, 0, SOCK_CLOEXEC);
            if (client < 0)
                continue;
            setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            at[count++] = (struct pollfd){.fd = client, .events = POLLIN};
        }
    }
}
