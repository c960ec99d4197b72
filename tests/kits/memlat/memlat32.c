/*
 * The first form of memlat for 32-bit guests, without a C library, which not every machine has for them:
 *
 *   memlat32 PAGES VISIT_US VISITS   two regions of PAGES pages each (1 to 512), which are used by turns for
 *                                    about VISIT_US microseconds, VISITS times in all
 *
 * The length of a visit is measured once, before it begins. At the end the program checks that memory holds what it has written.
 */
#include <stdint.h>

#define PAGE 4096u
#define WORDS (PAGE / sizeof(uint32_t))
#define MOST 512u

enum { SYS_EXIT = 1, SYS_WRITE = 4, SYS_CLOCK_GETTIME = 265, MONOTONIC = 1 };

static volatile uint32_t region[2][MOST * WORDS] __attribute__((aligned(PAGE)));

static long call(long number, long first, const void *second, long third)
{
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(third) : "memory");
    return result;
}

static void say(const char *text)
{
    const char *end = text;
    while (*end)
        end++;
    call(SYS_WRITE, 1, text, end - text);
}

/* Microseconds, which wrap after an hour. */
static uint32_t micros(void)
{
    struct {
        int32_t seconds, nanos;
    } t;
    call(SYS_CLOCK_GETTIME, MONOTONIC, &t, 0);
    return (uint32_t)t.seconds * 1000000 + (uint32_t)t.nanos / 1000;
}

/* Adds one to a word of each page, at another line in each, `loops` times. */
static void __attribute__((noinline)) visit(volatile uint32_t *pages, uint32_t count, uint32_t loops)
{
    for (; loops; loops--)
        for (uint32_t n = 0; n < count; n++)
            pages[n * WORDS + n % 64 * 16]++;
}

static uint32_t number(const char *text)
{
    uint32_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint32_t)(*text - '0');
    return value;
}

static int run(uint32_t pages, uint32_t us, uint32_t visits)
{
    if (!pages || pages > MOST)
        return 2;
    /* The best of some attempts: others have the processor at times. */
    uint32_t trial = 200, best = UINT32_MAX, count[2] = {0, 0};
    for (uint32_t n = 0; n < 20; n++) {
        uint32_t begin = micros();
        visit(region[n % 2], pages, trial);
        uint32_t took = micros() - begin;
        best = took < best ? took : best;
        count[n % 2] += trial;
    }
    uint32_t loops = us / (best ? best : 1) * trial + 1;
    for (uint32_t n = 0; n < visits; n++) {
        visit(region[n % 2], pages, loops);
        count[n % 2] += loops;
    }
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t n = 0; n < pages; n++)
            if (region[r][n * WORDS + n % 64 * 16] != count[r]) {
                say(r ? "memlat32: region 1 is wrong\n" : "memlat32: region 0 is wrong\n");
                return 1;
            }
    say("memlat32: all visits, right\n");
    return 0;
}

/* `stack`: the number of arguments, then their addresses. */
__attribute__((noreturn, used)) void start(const uint32_t *stack)
{
    const char *const *arguments = (const char *const *)(stack + 1);
    int status = 2;
    if (stack[0] == 4)
        status = run(number(arguments[1]), number(arguments[2]), number(arguments[3]));
    for (;;)
        call(SYS_EXIT, status, 0, 0);
}

__asm__(".globl _start\n"
        "_start: mov %esp, %eax\n"
        "        and $-16, %esp\n"
        "        sub $12, %esp\n"
        "        push %eax\n"
        "        call start\n");
