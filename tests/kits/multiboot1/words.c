/* What the kit can do. Each word prints one "kit:" line with what it saw, or ends the run. */
#include "kit.h"

#include <palimpsest.h>

static int is(const char *a, const char *b) {
    while (*a && *a == *b) {
        a++, b++;
    }
    return *a == *b;
}

static u32 number(const char *text) {
    u32 value = 0, base = 10;
    if (text[0] == '0' && text[1] == 'x') {
        base = 16;
        text += 2;
    }
    for (; *text; text++) {
        u32 digit = *text <= '9' ? (u32)(*text - '0') : (u32)((*text | 32) - 'a' + 10);
        value = value * base + digit;
    }
    return value;
}

/* Runs one instruction that may raise an exception; `trap_resume` skips it. Returns the number of exceptions `vector`. */
#define EXPECT(vector, ...)                                                                                                      \
    ({                                                                                                                           \
        trap_count[vector] = 0;                                                                                                  \
        __asm__ volatile("movl $1f, trap_resume\n\t" __VA_ARGS__);                                                               \
        trap_resume = 0;                                                                                                         \
        trap_count[vector];                                                                                                      \
    })

static void read_msr(u32 index) {
    u32 low = 0, high = 0;
    u32 faults = EXPECT(13, "rdmsr\n1:" : "+a"(low), "+d"(high) : "c"(index) : "memory");
    kit_print("kit: msr %x = %x:%x faults %u\n", index, high, low, faults);
}

static void cpuid(u32 leaf) {
    u32 a, b, c, d;
    __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(0));
    kit_print("kit: cpuid %x = %x %x %x %x\n", leaf, a, b, c, d);
}

/* The read-back latch of the test device at 0xe0 to 0xe3. */
static void latch(void) {
    outb(0xe0, 0x5a);
    u32 byte = inb(0xe0);
    outw(0xe0, 0x1234);
    u32 word = inw(0xe0);
    outl(0xe0, 0xdeadbeef);
    kit_print("kit: latch %x %x %x\n", byte, word, inl(0xe0));
}

/* Raises and lowers an interrupt line through the test device's ports from PALIMPSEST_TEST_IRQ. */
static void interrupt(u32 line) {
    trap_count[32 + line] = 0;
    outb(0x21, (u8) ~(4u | (line < 8 ? 1u << line : 0u)));
    outb(0xa1, (u8) ~(line >= 8 ? 1u << (line - 8) : 0u));
    outb((u16)(PALIMPSEST_TEST_IRQ + line), 1);
    __asm__ volatile("sti; nop");
    for (u32 patience = 0; patience < 1000 && !trap_count[32 + line]; patience++) {
        (void)inb(0x80);
    }
    __asm__ volatile("cli");
    outb((u16)(PALIMPSEST_TEST_IRQ + line), 0);
    outb(0x21, 0xff);
    outb(0xa1, 0xff);
    kit_print("kit: irq %u came %u\n", line, trap_count[32 + line] != 0);
}

/* Ticks of the PIT's channel 0 as interrupts; ends after `count`. */
static void ticks(u32 count) {
    trap_count[32] = 0;
    outb(0x43, 0x34);
    outb(0x40, 0x9c);
    outb(0x40, 0x2e); /* 11932: 100 Hz */
    outb(0x21, 0xfe);
    while (trap_count[32] < count) {
        __asm__ volatile("sti; hlt; cli" : : : "memory");
    }
    outb(0x21, 0xff);
    kit_print("kit: ticks %u\n", count);
}

/* Computes until the clock has advanced by `seconds`. */
static void compute(u32 seconds) {
    u8 last = 0xff;
    for (u32 seen = 0; seen <= seconds;) {
        outb(0x70, 0);
        u8 now = inb(0x71);
        seen += now != last;
        last = now;
        for (volatile u32 i = 0; i < 100000; i++) {
        }
    }
    kit_print("kit: computed\n");
}

static void echo(void) {
    kit_print("kit: type, q ends\n");
    for (;;) {
        int c = kit_read();
        kit_print("<%c>", c);
        if (c == 'q') {
            kit_print("\n");
            return;
        }
    }
}

static void jump(u32 address) {
    kit_print("kit: jump to %x\n", address);
    ((void (*)(void))address)();
}

static void triple_fault(void) {
    static const struct {
        u16 limit;
        u32 base;
    } __attribute__((packed)) nothing = {0, 0};
    kit_print("kit: triple fault\n");
    __asm__ volatile("lidt %0; int3" : : "m"(nothing));
}

/* A write to ROM has no effect. */
static void rom(void) {
    volatile u32 *top = (volatile u32 *)0xfffffff0;
    u32 before = *top;
    *top = ~before;
    kit_print("kit: rom %s\n", *top == before ? "kept" : "changed");
}

/* From here on memory is no part of the kit's, nor of what the boot loader leaves. */
#define FILL_FROM ((volatile u32 *)(8u << 20))

/* Fills `mib` MiB, with noise that does not compress or with the number of each page, and sums up what is there then. */
static void fill(u32 mib, int noise) {
    u32 words = mib << 18, seed = 1, sum = 0;
    for (u32 at = 0; at < words; at++) {
        seed ^= seed << 13, seed ^= seed >> 17, seed ^= seed << 5;
        FILL_FROM[at] = noise ? seed : at >> 10;
    }
    for (u32 at = 0; at < words; at++) {
        sum = (sum << 5 | sum >> 27) + FILL_FROM[at];
    }
    kit_print("kit: filled %u MiB, sum %x\n", mib, sum);
}

void kit_word(const char *name, const char *value) {
    u32 n = number(value);
    if (is(name, "exit")) {
        outb(PALIMPSEST_TEST_EXIT, (u8)n);
    } else if (is(name, "exit16")) {
        outw(PALIMPSEST_TEST_EXIT, (u16)n);
    } else if (is(name, "exit32")) {
        outl(PALIMPSEST_TEST_EXIT, n);
    } else if (is(name, "print")) {
        kit_print("kit: %s\n", value);
    } else if (is(name, "reset")) {
        kit_print("kit: reset\n");
        outb(0x64, 0xfe);
        for (;;) {
            __asm__ volatile("hlt");
        }
    } else if (is(name, "cf9")) {
        kit_print("kit: cf9\n");
        outb(0xcf9, 2);
        outb(0xcf9, 6);
        for (;;) {
            __asm__ volatile("hlt");
        }
    } else if (is(name, "triple")) {
        triple_fault();
    } else if (is(name, "halt")) {
        kit_print("kit: halt\n");
        for (;;) {
            __asm__ volatile("cli; hlt");
        }
    } else if (is(name, "spin")) {
        kit_print("kit: spin\n");
        for (;;) {
        }
    } else if (is(name, "flood")) {
        for (u32 count = 0;; count++) {
            kit_print("kit: flood %u\n", count);
        }
    } else if (is(name, "jump")) {
        jump(n);
    } else if (is(name, "rom")) {
        rom();
    } else if (is(name, "real")) {
        kit_print("kit: real mode\n");
        kit_print("kit: real mode %x\n", kit_real());
    } else if (is(name, "read")) {
        kit_print("kit: [%x] = %x\n", n, *(volatile u32 *)n);
    } else if (is(name, "unmap")) {
        outl(PALIMPSEST_TEST_UNMAP, n);
    } else if (is(name, "msr")) {
        read_msr(n);
    } else if (is(name, "cpuid")) {
        cpuid(n);
    } else if (is(name, "latch")) {
        latch();
    } else if (is(name, "irq")) {
        interrupt(n);
    } else if (is(name, "ticks")) {
        ticks(n);
    } else if (is(name, "compute")) {
        compute(n);
    } else if (is(name, "ud")) {
        kit_print("kit: ud2 %u\n", EXPECT(6, "ud2\n1:" : : : "memory"));
    } else if (is(name, "firmware")) {
        /* Done before the words: it is gone by now. */
    } else if (is(name, "fill") || is(name, "noise")) {
        fill(n, is(name, "noise"));
    } else if (is(name, "echo")) {
        echo();
    } else {
        kit_print("kit: unknown word %s\n", name);
    }
}
