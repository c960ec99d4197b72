// The program starts itself: arguments, environment, fresh data.
#include "stress.h"

enum { DATA_WORDS = 4096, LONG = 9000 };

// Initialized data in the file, word i being i * 0x9e3779b1; and zeros that are not.
extern volatile u32 fresh_data[DATA_WORDS];
__asm__(".data\n.balign 4\nfresh_data:\n.set fresh_value, 0\n.rept 4096\n.long fresh_value * 0x9e3779b1 & 0xffffffff\n"
        ".set fresh_value, fresh_value + 1\n.endr\n.text");
static volatile u32 fresh_zeros[DATA_WORDS];

static int status_of(u32 number) { return 64 + (int)(mix(seed ^ number * 77) & 63); }

static void write_decimal(char *to, u32 value) {
    char digits[12];
    u32 count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        *to++ = digits[--count];
    *to = 0;
}

static u32 read_decimal(const char *text) {
    u32 value = 0;
    while (*text >= '0' && *text <= '9')
        value = value * 10 + (u32)(*text++ - '0');
    return value;
}

static char letter(u32 number, u32 at) { return (char)('a' + mix(number * 31 + at / 64) % 26); }

void exec_test(u32 number) {
    step = "exec";
    char seed_text[12], number_text[12], variable[] = "STRESS=yes", head[] = "stress", what[] = "exec";
    static char long_text[LONG + 1];
    write_decimal(seed_text, seed);
    write_decimal(number_text, number);
    for (u32 at = 0; at < LONG; at++)
        long_text[at] = letter(number, at);
    char *arguments[] = {head, what, seed_text, number_text, long_text, 0}, *environment[] = {variable, 0};
    for (u32 at = 0; at < DATA_WORDS; at++)
        fresh_data[at] = fresh_zeros[at] = 0x55555555; // the child gets it from the file again
    expect_exit(vfork_exec("/proc/self/exe", arguments, environment), (u32)status_of(number));
    operations++;
}

int exec_main(int count, char **arguments, char **environment) {
    step = "exec, the new program";
    CHECK(count == 5, "%u arguments", (u32)count);
    seed = read_decimal(arguments[2]);
    u32 number = read_decimal(arguments[3]), length = 0;
    for (; arguments[4][length]; length++)
        CHECK(arguments[4][length] == letter(number, length), "letter %u of the argument: %x", length,
              (u32)arguments[4][length]);
    CHECK(length == LONG && environment[0] && !environment[1] && environment[0][0] == 'S', "wrong environment");
    for (u32 at = 0; at < DATA_WORDS; at++) {
        CHECK(fresh_data[at] == at * 0x9e3779b1u, "word %u of the data: %x", at, fresh_data[at]);
        CHECK(fresh_zeros[at] == 0, "word %u of the zeros: %x", at, fresh_zeros[at]);
        fresh_data[at] = fresh_zeros[at] = number;
    }
    long child = fork();
    for (u32 at = 0; at < DATA_WORDS; at++) {
        CHECK(fresh_data[at] == number && fresh_zeros[at] == number, "word %u is lost", at);
        fresh_data[at] = (u32)child;
    }
    if (child == 0)
        leave(0);
    expect_exit(child, 0);
    return status_of(number);
}
