// A guest that does whatever a guest should not: `seed=N [round=N] [actions=N] [only=NAME]`.
//
// Every processor does random things to its machine, for ever. Sooner or later a round ends: the processors have done all
// their actions and reset the machine, or it dies of one. It is then restarted with the number of the next round, which
// is kept in the clock's memory. What a processor does in a round follows from the seed, the round and its number; what comes of
// it also from how the processors happen to meet.
#include "hostile.h"

const char *command_line;
u64 memory_bytes;
extern u8 stubs[], text_begin[], text_end[];
extern u64 gdt[];
_Noreturn void resume_at(void *stack);
void processor_loop(void);
void processor_main(u32 number);
void trap(u64 vector, const u64 *frame);

static u64 idt[256][2];
static u32 seed, round_number, limit;
static u64 text_sum;
static const char *only;

static const struct { const char *name; action *run; u32 weight; } ACTIONS[] = {
    {"ports", ports, 20}, {"strings", port_strings, 3}, {"msrs", msrs, 20}, {"memory", device_memory, 20},
    {"controllers", interrupt_controllers, 8}, {"others", interrupts_to_others, 8}, {"itself", interrupts_to_itself, 8},
    {"storms", storms, 4}, {"sleeps", sleeps, 4}, {"spins", spins, 16}, {"tables", tables, 20}, {"registers", registers, 8},
    {"code", code, 6}, {"rare", rare_instructions, 8}, {"bulk", bulk, 3}, {"virtio", virtio, 15},
    {"regions", regions, 12},
};
enum { COUNT = sizeof ACTIONS / sizeof *ACTIONS };

// ---- text

static void put(char letter) {
    // Another processor may have misprogrammed the port.
    for (u32 i = 0; i < 10000 && !(inb(0x3fd) & 0x20); i++) {
    }
    outb(0x3f8, (u8)letter);
}

static void put_number(u32 value) {
    char digits[10];
    u32 count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        put(digits[--count]);
}

void say(const char *format, ...) {
    static const u8 SETUP[][2] = {{1, 0}, {3, 0x83}, {0, 1}, {1, 0}, {3, 3}, {2, 7}, {4, 3}};
    for (u32 i = 0; i < sizeof SETUP / 2; i++)
        outb(0x3f8 + SETUP[i][0], SETUP[i][1]);
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    for (; *format; format++) {
        if (*format != '%')
            put(*format);
        else if (*++format == 'u')
            put_number(__builtin_va_arg(arguments, u32));
        else
            for (const char *text = __builtin_va_arg(arguments, const char *); *text; text++)
                put(*text);
    }
    __builtin_va_end(arguments);
    put('\n');
}

// The text after `name=` on the command line.
static const char *option(const char *name) {
    for (const char *at = command_line; at && *at; at++) {
        const char *left = name, *right = at;
        while (*left && *left == *right)
            left++, right++;
        if (!*left && *right == '=' && (at == command_line || at[-1] == ' '))
            return right + 1;
    }
    return 0;
}

static u32 number_option(const char *name, u32 otherwise) {
    const char *text = option(name);
    u32 value = 0;
    if (!text)
        return otherwise;
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (u32)(*text - '0');
    return value;
}

// ---- rounds

enum { CMOS = 0x70, PLACE = 0x50 };
static u8 cmos(u8 at) {
    outb(CMOS, at);
    return inb(CMOS + 1);
}
static void set_cmos(u8 at, u8 value) {
    outb(CMOS, at);
    outb(CMOS + 1, value);
}

static u32 next_round(void) {
    u8 low = cmos(PLACE), high = cmos(PLACE + 1);
    int known = cmos(PLACE + 2) == (u8)(low ^ high ^ 0xa5) && (cmos(PLACE + 3) ^ low) == 0xff;
    u32 round = known ? (u32)high << 8 | low : number_option("round", 0);
    low = (u8)(round + 1), high = (u8)((round + 1) >> 8);
    set_cmos(PLACE, low);
    set_cmos(PLACE + 1, high);
    set_cmos(PLACE + 2, low ^ high ^ 0xa5);
    set_cmos(PLACE + 3, low ^ 0xff);
    return round;
}

static u64 sum_of_text(void) {
    u64 sum = 0;
    for (const u64 *at = (const u64 *)text_begin; at < (const u64 *)text_end; at++)
        sum = (sum << 7 | sum >> 57) ^ *at;
    return sum;
}

void end_round(struct processor *me) {
    static const struct { u16 limit; u64 base; } __attribute__((packed)) NO_IDT = {0, 0};
    switch (below(me, 4)) {
    case 0: outb(0xcf9, 6); break;
    case 1: outb(0x64, 0xfe); break;
    case 2: outb(0x92, 1); break;
    }
    __asm__ volatile("lidt %0; int3" : : "m"(NO_IDT));
    __builtin_unreachable();
}

// ---- processors

static struct processor *this_processor(void) {
    u64 stack;
    __asm__ volatile("mov %%rsp, %0" : "=r"(stack));
    return (struct processor *)((stack & ~(u64)(BLOCK - 1)) + TRAP_STACK);
}

// Everything that an action may have changed and that the next one needs.
static void restore(struct processor *me) {
    static const struct { u16 limit; void *base; } __attribute__((packed)) IDT = {sizeof idt - 1, idt};
    __asm__ volatile("mov %0, %%cr0" : : "r"(0x80010033ull));
    load_root((u64)kit_pml4);
    __asm__ volatile("mov %0, %%cr4" : : "r"(0x620ull));
    load_root((u64)me->root);
    wrmsr(0xc0000080, 0x901);
    __asm__ volatile("lidt %0" : : "m"(IDT));
    __asm__ volatile("mov %0, %%cr8; mov %1, %%dr7" : : "r"(0ull), "r"(0x400ull));
    __asm__ volatile("push %0; popfq" : : "r"(2ull) : "cc", "memory");
    __asm__ volatile("mov %0, %%ds; mov %0, %%es; mov %0, %%ss" : : "r"(0x10));
}

void trap(u64 vector, const u64 *frame) {
    struct processor *me = this_processor();
    if (vector >= 32) {
        me->interrupts++;
        end_of_interrupt();
        // A timer may be faster than its handler: then nothing else would ever be done.
        if (me->patience-- == 0)
            resume_at((u8 *)me - TRAP_STACK + STACK);
        return;
    }
    // The watchdog: has it gone astray?
    if (vector == 2 && frame[0] >= (u64)text_begin && frame[0] < (u64)text_end && !(frame[1] & 3))
        return;
    me->exceptions++;
    // The action ends here.
    resume_at((u8 *)me - TRAP_STACK + STACK);
}

static action *choose(struct processor *me) {
    u32 total = 0;
    for (u32 i = 0; i < COUNT; i++) {
        const char *left = ACTIONS[i].name, *right = only;
        while (right && *left && *left == *right)
            left++, right++;
        if (right && !*left)
            return ACTIONS[i].run;
        total += ACTIONS[i].weight;
    }
    u32 at = below(me, total);
    for (u32 i = 0; i < COUNT; i++) {
        if (at < ACTIONS[i].weight)
            return ACTIONS[i].run;
        at -= ACTIONS[i].weight;
    }
    return ports;
}

void processor_loop(void) {
    struct processor *me = this_processor();
    for (;;) {
        restore(me);
        if (++me->actions % 16 == 0 && sum_of_text() != text_sum)
            end_round(me); // it has overwritten itself
        if (me->actions >= limit)
            end_round(me);
        if (me->actions % 50 == 0 && me->number == 0)
            say("hostile: %u actions, %u exceptions, %u interrupts", me->actions, me->exceptions, me->interrupts);
        apic_setup();
        if (!below(me, 8))
            set_watchdog();
        me->patience = 100;
        if (below(me, 4))
            open_interrupts();
        choose(me)(me);
    }
}

void processor_main(u32 number) {
    struct processor *me = processor(number);
    me->number = number;
    me->root[0] = kit_pml4[0];
    // TSS: all traps arrive on a stack of their own.
    u64 base = (u64)me->tss, stack = (u64)me;
    ((u32 *)me->tss)[9] = (u32)stack;
    ((u32 *)me->tss)[10] = (u32)(stack >> 32);
    gdt[4 + 2 * number] = 103 | (base & 0xffffff) << 16 | 0x89ull << 40 | (base >> 24 & 0xff) << 56;
    gdt[5 + 2 * number] = base >> 32;
    __asm__ volatile("ltr %w0" : : "r"(0x20 + 16 * number));
    if (number == 0) {
        for (u32 i = 0; i < 256; i++) {
            u64 at = (u64)(stubs + 16 * i);
            idt[i][0] = (at & 0xffff) | 0x08 << 16 | 0x8e01ull << 32 | (at >> 16 & 0xffff) << 48;
            idt[i][1] = at >> 32;
        }
        seed = number_option("seed", 1);
        round_number = next_round();
        limit = number_option("actions", 60);
        only = option("only");
        memory_bytes = (u64)number_option("memory", 32) << 20;
        text_sum = sum_of_text();
        // Nothing is executed where there is no memory: that would be the end of the round.
        for (u64 i = memory_bytes >> 21; i < 2048; i++)
            kit_pd[i] |= 1ull << 63;
        say("hostile: seed=%u round=%u", seed, round_number);
    }
    // One that is started again goes on with its sequence.
    if (!me->random)
        me->random = (seed * 0x9e3779b97f4a7c15ull ^ round_number * 0xd1342543de82ef95ull ^ (number + 1) * 0xbf58476d1ce4e5b9ull) | 1;
    for (u32 i = 0; i < 20; i++)
        draw(me);
    apic_setup();
    if (number == 0) {
        // All others: INIT, then start at the trampoline.
        volatile u32 *icr = (volatile u32 *)0xfee00300;
        *icr = 0xc4500;
        for (u32 i = 0; i < 10000; i++)
            pause();
        *icr = 0xc4608;
    }
    processor_loop();
}
