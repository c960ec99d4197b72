// What the parts of the hostile kit share.
#pragma once

#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

enum { BLOCK = 0x10000, STACK = 0x4000, TRAP_STACK = 0x8000, MOST = 16, TABLES = 6, PAGE = 4096 };

// A processor's: a stack, another for traps, this, and tables to play with.
struct processor {
    u64 random;
    u32 number;
    u32 actions;
    volatile u32 exceptions, interrupts;
    u32 patience; // interrupts until the action is given up
    u32 reserved;
    u64 tss[16];
    u8 code[256];
    u8 unused[0x1000 - 32 - 128 - 256];
    u64 root[512];
    u64 tables[TABLES][512];
};
_Static_assert(TRAP_STACK + sizeof(struct processor) <= BLOCK, "a processor's block");
extern u8 blocks[MOST * BLOCK];
static inline struct processor *processor(u32 number) { return (struct processor *)(blocks + number * BLOCK + TRAP_STACK); }

extern u64 memory_bytes;
// Memory without another use: the second half of it.
static inline u64 scratch_begin(void) { return memory_bytes / 2; }

// ---- random numbers: each processor has a sequence of its own
static inline u64 draw(struct processor *me) {
    me->random ^= me->random << 13;
    me->random ^= me->random >> 7;
    me->random ^= me->random << 17;
    return me->random * 0x2545f4914f6cdd1dull >> 8;
}
static inline u32 below(struct processor *me, u32 limit) { return (u32)(draw(me) % limit); }
// Bits in all amounts: 0, few, many, any.
u64 draw_word(struct processor *me);
// A place: in scratch memory, anywhere in memory, at its end, in a hole, at a device, anywhere at all.
u64 draw_place(struct processor *me);

// ---- instructions
#define READ_WRITE_PORT(letter, type)                                                                                        \
    static inline type in##letter(u16 port) {                                                                              \
        type value;                                                                                                        \
        __asm__ volatile("in" #letter " %1, %0" : "=a"(value) : "Nd"(port));                                              \
        return value;                                                                                                      \
    }                                                                                                                      \
    static inline void out##letter(u16 port, type value) { __asm__ volatile("out" #letter " %0, %1" : : "a"(value), "Nd"(port)); }
READ_WRITE_PORT(b, u8)
READ_WRITE_PORT(w, u16)
READ_WRITE_PORT(l, u32)
static inline u64 rdmsr(u32 index) {
    u32 low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index));
    return (u64)high << 32 | low;
}
static inline void wrmsr(u32 index, u64 value) {
    __asm__ volatile("wrmsr" : : "c"(index), "a"((u32)value), "d"((u32)(value >> 32)) : "memory");
}
static inline u64 rdtsc(void) {
    u32 low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (u64)high << 32 | low;
}
static inline void load_root(u64 value) { __asm__ volatile("mov %0, %%cr3" : : "r"(value) : "memory"); }
static inline void open_interrupts(void) { __asm__ volatile("sti" : : : "memory"); }
static inline void close_interrupts(void) { __asm__ volatile("cli" : : : "memory"); }
static inline void pause(void) { __asm__ volatile("pause"); }

void say(const char *format, ...); // %u, %s
// The end of a round: of the virtual machine as it is.
_Noreturn void end_round(struct processor *me);
void call_with(const void *code, const u64 registers[8]);
extern u64 kit_pml4[512], kit_pd[2048];

// ---- what a processor does
typedef void action(struct processor *me);
// devices.c
action ports, port_strings, msrs, device_memory, interrupt_controllers;
// apic.c
action interrupts_to_others, interrupts_to_itself, storms, sleeps, spins;
void apic_setup(void);
void set_watchdog(void);
void end_of_interrupt(void);
void draw_timer(struct processor *me);
// tables.c
action tables, registers;
// code.c
action code, rare_instructions, bulk;
// virtio.c
action virtio;
// regions.c
action regions;
