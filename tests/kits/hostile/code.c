// Random code, instructions that no guest needs, and a lot of memory at once.
#include "hostile.h"

// Beginnings of instructions that hypervisors look at. Those that load descriptor tables and CR3 are left to chance: they end the round.
static const u8 STARTS[][4] = {
    {1, 0xf4}, {2, 0x0f, 0xa2}, {2, 0x0f, 0x30}, {2, 0x0f, 0x32}, {2, 0x0f, 0x08}, {2, 0x0f, 0x09}, {2, 0x0f, 0x06}, {3, 0x0f, 0x01, 0xf8},
    {2, 0x0f, 0x20}, {2, 0x0f, 0x21}, {3, 0x0f, 0x01, 0x20}, {3, 0x0f, 0x01, 0x38}, {3, 0x0f, 0x01, 0xd9}, {3, 0x0f, 0x01, 0xc1},
    {3, 0x0f, 0x01, 0xd8}, {3, 0x0f, 0x01, 0xd1}, {2, 0x0f, 0x33}, {2, 0x0f, 0xae}, {2, 0x0f, 0xc7}, {1, 0xcd}, {1, 0xcc}, {1, 0xec},
    {2, 0xf3, 0x6e}, {2, 0xf3, 0x6c}, {2, 0xf3, 0xa4}, {2, 0xf3, 0xab}, {1, 0x9d}, {1, 0xcf}, {2, 0x0f, 0x05}, {2, 0x0f, 0x34},
    {2, 0x0f, 0x35}, {2, 0x0f, 0x07}, {1, 0x8e}, {2, 0xf3, 0x90}, {1, 0xf0}, {1, 0x0f}, {1, 0xc5}, {1, 0x62},
};

void code(struct processor *me) {
    u32 length = 8 + below(me, 100);
    for (u32 i = 0; i < length;) {
        const u8 *start = STARTS[below(me, sizeof STARTS / sizeof *STARTS)];
        if (below(me, 2))
            for (u32 k = 1; k <= start[0]; k++)
                me->code[i++] = start[k];
        me->code[i++] = (u8)draw(me);
    }
    // Control and debug registers are read only, for the reasons that registers and rare_instructions have; and LTR of a null selector
    // ends QEMU itself.
    for (u32 i = 0; i < length + 8; i++)
        if (me->code[i] == 0x0f && (me->code[i + 1] & 0xfe) == 0x22)
            me->code[i + 1] &= ~2;
        else if (me->code[i] == 0x0f && me->code[i + 1] == 0)
            me->code[i + 1] = 8;
    me->code[length + 8] = 0xc3;
    // Registers that seldom lead to the kit itself.
    u64 values[8];
    for (u32 i = 0; i < 8; i++)
        values[i] = below(me, 2) ? scratch_begin() + draw(me) % (memory_bytes / 2) : draw_word(me) | 1ull << 62;
    values[2] = 0x80; // of the ports
    call_with(me->code, values);
}

void rare_instructions(struct processor *me) {
    u64 at = draw_place(me), value = draw_word(me);
    u32 low = (u32)value, other = (u32)draw_word(me), a = below(me, 2) ? low : 0x80000000u + below(me, 0x30), b = 0, c = other, d = 0;
    switch (below(me, 25)) {
    case 0: case 1: case 2: __asm__ volatile("cpuid" : "+a"(a), "+b"(b), "+c"(c), "+d"(d)); break;
    case 3: case 22: case 23: case 24: {
        /* Mostly Palimpsest's own calls, with arguments that are often right. */
        u64 number = below(me, 4) ? 0x50414c00u + below(me, 8) : a, first = below(me, 4) ? below(me, 300) : value;
        if (below(me, 2))
            first = draw(me) % (memory_bytes >> 12) & ~1023ull;
        __asm__ volatile("vmmcall" : "+a"(number) : "b"(first), "c"((u64)below(me, 12)), "d"((u64)below(me, 9)) : "memory");
        break;
    }
    case 4: __asm__ volatile("vmcall" : "+a"(a) : "b"(b), "c"(c) : "memory"); break;
    case 5: __asm__ volatile("vmrun" : : "a"(at) : "memory"); break;
    case 6: __asm__ volatile("vmload" : : "a"(at) : "memory"); break;
    case 7: __asm__ volatile("vmsave" : : "a"(at) : "memory"); break;
    case 8: __asm__ volatile("clgi"); break;
    case 9: __asm__ volatile("stgi"); break;
    case 10: __asm__ volatile("skinit" : : "a"(low)); break;
    case 11: __asm__ volatile("invlpga" : : "a"(at), "c"(other)); break;
    case 12: __asm__ volatile("rdpmc" : "=a"(a), "=d"(d) : "c"(other)); break;
    case 13: __asm__ volatile("xsetbv" : : "a"(low), "d"(below(me, 4) ? 0 : other), "c"(below(me, 2))); break;
    case 14: __asm__ volatile("monitor" : : "a"(at), "c"(0), "d"(0)); break;
    case 15: __asm__ volatile("mwait" : : "a"(0), "c"(0)); break;
    case 16: __asm__ volatile("wbinvd" : : : "memory"); break;
    case 17: __asm__ volatile("invd" : : : "memory"); break;
    /* Breakpoints on instructions only: one on data that meets another kind where VCPUs share a processor ends QEMU itself. */
    case 18: __asm__ volatile("mov %0, %%dr0; mov %1, %%dr7" : : "r"(value & 0xffffffff), "r"(value & 0xffff)); break;
    case 19: __asm__ volatile("int $0x80; int $3; int $1"); break;
    case 20: __asm__ volatile("vmxon (%0)" : : "r"(&value) : "memory", "cc"); break;
    case 21: __asm__ volatile("push %0; popfq; nop; nop" : : "r"(value & ~0x20000ull) : "cc", "memory"); break;
    }
}

void bulk(struct processor *me) {
    u64 at = scratch_begin() + below(me, 256) * (u64)PAGE, count = below(me, 1 << 16);
    __asm__ volatile("rep stosq" : "+D"(at), "+c"(count) : "a"(draw(me)) : "memory");
}
