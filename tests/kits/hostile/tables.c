// Page tables with entries that no kernel would write, and the registers that say how they are read.
#include "hostile.h"

static inline void forget(u64 at) { __asm__ volatile("invlpg (%0)" : : "r"(at) : "memory"); }

// An entry: to another of these tables, to memory, to nowhere, with any bits.
static u64 draw_entry(struct processor *me) {
    u64 at = below(me, 3) ? (u64)me->tables[below(me, TABLES)] : below(me, 2) ? (u64)processor(below(me, 8))->tables[0] : draw_place(me);
    u64 bits = below(me, 4) ? 7 : draw(me) & 0xfff;
    if (!below(me, 8))
        bits |= 0x80;
    if (!below(me, 8))
        bits |= draw_word(me) & 0xfff0000000000000ull;
    // Tables may name all memory, but what they lead to by themselves is the kit's only for reading.
    at &= 0x000ffffffffff000ull;
    if (at < scratch_begin() && below(me, 256))
        bits &= ~2ull;
    return at | bits;
}

static u64 draw_address(struct processor *me) {
    // Below the first root entry is the kit.
    u64 at = (1 + draw(me) % 511) << 39 | (draw(me) & 0x7fffffffffull);
    if (below(me, 2))
        at = (u64)(1 + below(me, 8)) << 39 | (draw(me) & 0x601803ull) << 12;
    return (u64)((long)(at << 16) >> 16);
}

void tables(struct processor *me) {
    // Whatever is there faults, so each access is an action of its own: the tables stay.
    for (u32 i = below(me, 12); i; i--) {
        u32 table = below(me, TABLES + 2), at = below(me, 4) ? below(me, 8) : below(me, 512);
        if (table < TABLES)
            me->tables[table][at] = draw_entry(me);
        else
            me->root[1 + at % 511] = below(me, 4) ? (u64)me->tables[below(me, TABLES)] | 7 : draw_entry(me);
    }
    if (below(me, 2))
        load_root((u64)me->root);
    for (u32 i = below(me, 8); i; i--) {
        u64 address = draw_address(me);
        switch (below(me, 5)) {
        case 0: forget(address); break;
        case 1: __asm__ volatile("movq (%0), %%rax" : : "r"(address) : "rax"); break;
        case 2: __asm__ volatile("lock incl (%0)" : : "r"(address) : "memory", "cc"); break;
        case 3: __asm__ volatile("movb $0xc3, (%0); call *%0" : : "r"(address) : "memory", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc"); break;
        case 4: load_root(below(me, 4096) ? (u64)me->root | (draw(me) & 0x18) : (u64)me->root | (draw(me) & ~0xfffull & ~0xffffffull << 8)); break;
        }
    }
    if (!below(me, 3000))
        load_root(draw_place(me) & ~0xfffull); // the end of the round, most likely
}

void registers(struct processor *me) {
    u64 value;
    switch (below(me, 6)) {
    case 0: // WP, CD, NW, AM, TS, EM, NE, MP
        value = 0x80000033 | (draw(me) & 0x6005003e);
        __asm__ volatile("mov %0, %%cr0" : : "r"(value));
        break;
    case 1:
        __asm__ volatile("mov %0, %%cr4" : : "r"(0x20 | (draw(me) & 0x7ffff)));
        break;
    case 2:
        // QEMU lets 64-bit code turn paging off, and may then end the hypervisor at the next exit: it loses CR0 of the host.
        __asm__ volatile("mov %0, %%cr0" : : "r"(draw_word(me) | 0x80000001));
        break;
    case 3:
        __asm__ volatile("mov %0, %%cr4" : : "r"(draw_word(me)));
        break;
    case 4:
        wrmsr(0xc0000080, draw(me) & 0xffff);
        break;
    case 5: {
        struct { u64 id, address; } what = {draw(me) & 0xfff, draw_address(me)};
        __asm__ volatile("invpcid %0, %1" : : "m"(what), "r"((u64)below(me, 5)));
    }
    }
    // With whatever that means, a little of what else there is.
    tables(me);
}
