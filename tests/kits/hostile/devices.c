// Ports, MSRs, and memory that belongs to devices.
#include "hostile.h"

u64 draw_word(struct processor *me) {
    u64 word = draw(me) << 20 ^ draw(me);
    switch (below(me, 6)) {
    case 0: return 0;
    case 1: return ~0ull;
    case 2: return 1ull << below(me, 64);
    case 3: return word & draw(me) & draw(me);
    case 4: return word >> below(me, 64);
    default: return word;
    }
}

u64 draw_place(struct processor *me) {
    switch (below(me, 8)) {
    case 0: return draw(me) % memory_bytes;
    case 1: return memory_bytes - 8 + below(me, 16);
    case 2: return 0xfee00000 + below(me, 0x1010);
    case 3: return 0xc0000000 + draw(me) % 0x40000000;
    case 4: return draw_word(me);
    case 5: return 0xa0000 + below(me, 0x60000);
    default: return scratch_begin() + draw(me) % (memory_bytes / 2);
    }
}

// Which end the machine for good.
static int ends_machine(u32 port) { return port >= 0x600 && port <= 0x607; }

static u16 draw_port(struct processor *me) {
    static const u16 PORTS[] = {0x20, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1, 0x40, 0x41, 0x42, 0x43, 0x61, 0x60, 0x3f8, 0x3f9,
                                0x3fa, 0x3fb, 0x3fc, 0x3fd, 0x3fe, 0x3ff, 0xcf8, 0xcfc, 0xcfd, 0xcfe, 0xcff, 0x608, 0x620, 0x622,
                                0xe0, 0xe4, 0xf4, 0x80, 0x2000, 0x2018, 0x4000};
    u16 port = (u16)draw(me);
    if (below(me, 4))
        port = PORTS[below(me, sizeof PORTS / sizeof *PORTS)] + (below(me, 8) ? 0 : (u16)below(me, 4));
    // Resets are for the ends of rounds.
    if ((port >= 0xcf9 - 3 && port <= 0xcf9 && port != 0xcf8) || port == 0x64 || port == 0x92)
        port = below(me, 500) ? 0x80 : port;
    return ends_machine(port) || ends_machine(port + 3u) ? 0x608 : port;
}

void ports(struct processor *me) {
    for (u32 i = below(me, 12); i; i--) {
        u16 port = draw_port(me);
        u32 value = (u32)draw_word(me);
        if (port == 0xcf8 && below(me, 2))
            value = 1u << 31 | (value & 0xfffc);
        switch (below(me, 6)) {
        case 0: inb(port); break;
        case 1: inw(port); break;
        case 2: inl(port); break;
        case 3: outb(port, (u8)value); break;
        case 4: outw(port, (u16)value); break;
        case 5: outl(port, value); break;
        }
    }
}

void port_strings(struct processor *me) {
    u64 place = below(me, 4) ? scratch_begin() + draw(me) % (memory_bytes / 2) : draw_place(me);
    u64 count = draw(me) >> (46 + below(me, 10));
    u16 port = below(me, 2) ? 0x80 : draw_port(me);
    if (below(me, 8) == 0)
        __asm__ volatile("std" : : : "cc");
    switch (below(me, 6)) {
    case 0: __asm__ volatile("rep insb" : "+D"(place), "+c"(count) : "d"(port) : "memory"); break;
    case 1: __asm__ volatile("rep insw" : "+D"(place), "+c"(count) : "d"(port) : "memory"); break;
    case 2: __asm__ volatile("rep insl" : "+D"(place), "+c"(count) : "d"(port) : "memory"); break;
    case 3: __asm__ volatile("rep outsb" : "+S"(place), "+c"(count) : "d"(port) : "memory"); break;
    case 4: __asm__ volatile("rep outsw" : "+S"(place), "+c"(count) : "d"(port) : "memory"); break;
    case 5: __asm__ volatile("rep outsl" : "+S"(place), "+c"(count) : "d"(port) : "memory"); break;
    }
    __asm__ volatile("cld" : : : "cc");
}

void msrs(struct processor *me) {
    static const u32 KNOWN[] = {0x10, 0x1b, 0x8b, 0xc1, 0xfe, 0x174, 0x175, 0x176, 0x179, 0x17b, 0x186, 0x1a0, 0x1d9, 0x200, 0x201, 0x20f,
                                0x250, 0x258, 0x26f, 0x277, 0x2ff, 0x38f, 0x3a, 0x480, 0x6e0, 0xda0, 0x4b564d00, 0x4b564d01, 0x4b564d02,
                                0x4b564d03, 0x40000000, 0x40000001, 0xc0000080, 0xc0000081, 0xc0000082, 0xc0000083, 0xc0000084, 0xc0000100,
                                0xc0000101, 0xc0000102, 0xc0000103, 0xc0010010, 0xc0010015, 0xc001001f, 0xc0010062, 0xc0010114, 0xc0010117,
                                0xc0010140, 0xc0011029, 0x11, 0x12};
    u32 index = KNOWN[below(me, sizeof KNOWN / sizeof *KNOWN)];
    if (!below(me, 4))
        index = 0x800 + below(me, 0x40);
    else if (!below(me, 4))
        index = (u32)draw_word(me);
    if (below(me, 2)) {
        rdmsr(index);
        return;
    }
    u64 value = draw_word(me);
    if (below(me, 2))
        value = rdmsr(index) ^ 1ull << below(me, 64);
    else if (below(me, 2))
        value = draw_place(me);
    wrmsr(index, value);
}

// One access of any size and kind.
static void touch(struct processor *me, u64 at) {
    u64 value = draw_word(me);
    switch (below(me, 12)) {
    case 0: __asm__ volatile("movb (%1), %b0" : "=q"(value) : "r"(at)); break;
    case 1: __asm__ volatile("movw (%1), %w0" : "=r"(value) : "r"(at)); break;
    case 2: __asm__ volatile("movl (%1), %k0" : "=r"(value) : "r"(at)); break;
    case 3: __asm__ volatile("movq (%1), %0" : "=r"(value) : "r"(at)); break;
    case 4: __asm__ volatile("movb %b0, (%1)" : : "q"(value), "r"(at) : "memory"); break;
    case 5: __asm__ volatile("movw %w0, (%1)" : : "r"(value), "r"(at) : "memory"); break;
    case 6: __asm__ volatile("movl %k0, (%1)" : : "r"(value), "r"(at) : "memory"); break;
    case 7: __asm__ volatile("movq %0, (%1)" : : "r"(value), "r"(at) : "memory"); break;
    case 8: __asm__ volatile("lock xaddl %k0, (%1)" : "+r"(value) : "r"(at) : "memory", "cc"); break;
    case 9: __asm__ volatile("lock orq %0, (%1)" : : "r"(value), "r"(at) : "memory", "cc"); break;
    case 10: {
        u64 count = below(me, 64), to = draw_place(me);
        if (to < scratch_begin() || to >= memory_bytes)
            to = scratch_begin();
        __asm__ volatile("rep movsb" : "+D"(to), "+S"(at), "+c"(count) : : "memory");
        break;
    }
    case 11: {
        u64 count = below(me, 64);
        __asm__ volatile("rep stosl" : "+D"(at), "+c"(count) : "a"(value) : "memory");
        break;
    }
    }
}

// The kit itself is not touched on purpose: what remains of it has to go on.
static u64 spare(u64 at) { return at < scratch_begin() && !(at >= 0xa0000 && at < 0x100000) ? at + scratch_begin() : at; }

void device_memory(struct processor *me) {
    for (u32 i = below(me, 8); i; i--)
        touch(me, spare(draw_place(me)));
}

// I/O APIC, HPET, PIT and PICs with values that mean something.
void interrupt_controllers(struct processor *me) {
    volatile u32 *ioapic = (volatile u32 *)0xfec00000;
    volatile u64 *hpet = (volatile u64 *)0xfed00000;
    switch (below(me, 4)) {
    case 0:
        for (u32 i = below(me, 8); i; i--) {
            ioapic[0] = 0x10 + below(me, 0x32);
            ioapic[4] = (u32)draw_word(me);
        }
        ioapic[16] = (u32)draw(me);
        break;
    case 1:
        hpet[2] = below(me, 4);
        for (u32 i = below(me, 6); i; i--)
            hpet[0x20 + below(me, 16) * 2] = draw_word(me);
        hpet[0x20] = draw(me) & 0x3f04f;
        hpet[0x21] = below(me, 2) ? hpet[0x1e] + below(me, 5000) : draw_word(me);
        break;
    case 2:
        outb(0x43, (u8)(below(me, 3) << 6 | 0x30 | below(me, 8) << 1));
        outb((u16)(0x40 + below(me, 3)), (u8)draw(me));
        outb((u16)(0x40 + below(me, 3)), (u8)below(me, 4));
        break;
    case 3:
        for (u32 i = below(me, 10); i; i--)
            outb(below(me, 2) ? 0x20 + (u16)below(me, 2) : 0xa0 + (u16)below(me, 2), (u8)draw_word(me));
        break;
    }
}
