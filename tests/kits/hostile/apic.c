// Interrupts between processors, from timers, and waiting for them.
#include "hostile.h"

enum { BASE = 0x1b, X2 = 1 << 10, ON = 1 << 11, ICR = 0x300, EOI = 0xb0, SPURIOUS = 0xf0, TIMER = 0x320, INITIAL = 0x380, DIVIDE = 0x3e0 };

static int is_x2(void) { return rdmsr(BASE) & X2; }

static void apic_write(u32 at, u32 value) {
    if (is_x2())
        wrmsr(0x800 + at / 16, value);
    else
        *(volatile u32 *)(u64)(0xfee00000 + at) = value;
}

static void send(u64 command) {
    if (is_x2()) {
        wrmsr(0x830, command);
    } else {
        *(volatile u32 *)0xfee00310 = (u32)(command >> 32) << 24;
        *(volatile u32 *)0xfee00300 = (u32)command;
    }
}

// Each action finds it on and where it was; one in four in the other mode than the last.
void apic_setup(void) {
    u64 base = rdmsr(BASE);
    if (!(base & ON))
        wrmsr(BASE, base = 0xfee00000 | ON | (base & 0x100));
    if (base >> 12 != 0xfee00)
        wrmsr(BASE, (base & 0xfff) | 0xfee00000);
    apic_write(SPURIOUS, 0x1ff);
    // Of interrupts whose handlers were given up.
    end_of_interrupt();
    end_of_interrupt();
    // So that no processor halts for ever.
    apic_write(DIVIDE, 11);
    apic_write(TIMER, 1 << 17 | 0x30);
    apic_write(INITIAL, 20000000);
}

// NMIs for all from the PIT, 18 times a second.
void set_watchdog(void) {
    volatile u32 *ioapic = (volatile u32 *)0xfec00000;
    outb(0x43, 0x34);
    outb(0x40, 0);
    outb(0x40, 0);
    ioapic[0] = 0x15;
    ioapic[4] = 0xffu << 24;
    ioapic[0] = 0x14;
    ioapic[4] = 0x400;
}

void end_of_interrupt(void) { apic_write(EOI, 0); }

static u64 draw_destination(struct processor *me) {
    static const u8 KINDS[] = {0, 0, 0, 1, 2, 3};
    u64 where = below(me, 3) ? below(me, MOST / 2) : draw(me);
    return where << 32 | (u64)KINDS[below(me, sizeof KINDS)] << 18 | (u64)(below(me, 4) == 0) << 11;
}

// INIT, start-up, NMI, fixed, lowest priority, SMI, ExtINT and what is reserved, to any target.
void interrupts_to_others(struct processor *me) {
    u64 where = draw_destination(me);
    switch (below(me, 8)) {
    case 0: // INIT of all would end the round
        if (below(me, 64))
            where = (u64)(1 + below(me, MOST / 2)) << 32;
        send(where | 0x4500);
        for (u32 i = 0; i < 100; i++)
            pause();
        send(where | 0x4608);
        break;
    case 1: // at places where there is no code for it
        send((u64)(1 + below(me, MOST / 2)) << 32 | 0x4500);
        send((u64)(1 + below(me, MOST / 2)) << 32 | 0x4600 | below(me, 256));
        break;
    case 2: send(where | 0x4400); break;
    case 3: send(where | (draw(me) & 0xffe0ffull & ~0x700ull)); break;
    default:
        for (u32 i = below(me, 10); i; i--)
            send(where | 0x4000 | (below(me, 2) ? 0x100 : 0) | (0x20 + below(me, 0xe0)));
    }
}

void interrupts_to_itself(struct processor *me) {
    u32 vector = below(me, 256);
    open_interrupts();
    for (u32 i = below(me, 40); i; i--) {
        send(1 << 18 | 0x4000 | vector);
        if (!below(me, 16))
            vector = below(me, 256);
    }
    __asm__ volatile("mov %0, %%cr8" : : "r"((u64)below(me, 16)));
    send(1 << 18 | 0x4000 | vector);
    __asm__ volatile("mov %0, %%cr8" : : "r"(0ull));
}

void draw_timer(struct processor *me) {
    apic_write(DIVIDE, below(me, 16));
    apic_write(TIMER, (below(me, 2) ? 1 << 17 : 0) | (0x20 + below(me, 0xe0)));
    apic_write(INITIAL, 1 + (u32)(draw(me) >> (46 + below(me, 10))));
}

// Interrupts as fast as timers can make them, for a while.
void storms(struct processor *me) {
    apic_write(DIVIDE, 11);
    apic_write(TIMER, 1 << 17 | (0x20 + below(me, 0xe0)));
    apic_write(INITIAL, 1 + below(me, 2000));
    open_interrupts();
    u32 enough = me->interrupts + below(me, 100);
    for (u32 i = 0; i < 2000 && me->interrupts < enough; i++)
        pause();
}

void sleeps(struct processor *me) {
    if (below(me, 500) == 0) {
        close_interrupts(); // until an NMI, or for ever
        __asm__ volatile("hlt");
    }
    for (u32 i = below(me, 8); i; i--) {
        draw_timer(me);
        __asm__ volatile("sti; hlt");
    }
}

void spins(struct processor *me) {
    if (below(me, 2))
        close_interrupts();
    u32 turns = (u32)(draw(me) >> (43 + below(me, 13)));
    if (below(me, 2))
        for (; turns; turns--)
            pause();
    else
        for (; turns; turns--)
            __asm__ volatile("");
}
