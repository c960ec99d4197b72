/* Power-off by ACPI (ACPI 6.4, sections 5.2.5, 5.2.9 and 7.4.2): RSDP, RSDT, FADT, and the \_S5 package in the DSDT. */
#include "kit.h"

static int same(const char *a, const char *b, u32 size) {
    while (size && *a == *b) {
        a++, b++, size--;
    }
    return size == 0;
}

static const char *find(const char *at, const char *end, u32 step, const char *name, u32 size) {
    for (; at + size <= end; at += step) {
        if (same(at, name, size)) {
            return at;
        }
    }
    return 0;
}

static u32 word_at(const char *table, u32 offset) { return *(const u32 *)(table + offset); }

void kit_power_off(void) {
    const char *rsdp = find((const char *)0xe0000, (const char *)0x100000, 16, "RSD PTR ", 8);
    if (!rsdp) {
        /* The extended BIOS data area, whose segment is at 0x40e. */
        volatile u16 *segment = (volatile u16 *)0x40e;
        const char *area = (const char *)((u32)*segment << 4);
        rsdp = find(area, area + 1024, 16, "RSD PTR ", 8);
    }
    const char *rsdt = rsdp ? (const char *)word_at(rsdp, 16) : 0;
    for (u32 at = 36; rsdt && at < word_at(rsdt, 4); at += 4) {
        const char *fadt = (const char *)word_at(rsdt, at);
        if (!same(fadt, "FACP", 4)) {
            continue;
        }
        const char *dsdt = (const char *)word_at(fadt, 40);
        const char *s5 = find(dsdt, dsdt + word_at(dsdt, 4), 1, "_S5_", 4);
        if (!s5) {
            kit_print("kit: no _S5_\n");
            break;
        }
        /* _S5_, PackageOp, length, count, then the value: a byte prefix and the byte, or ZeroOp or OneOp. */
        const u8 *value = (const u8 *)s5 + 7;
        u16 type = value[0] == 0x0a ? value[1] : value[0];
        outw((u16)word_at(fadt, 64), (u16)(1u << 13 | (type & 7u) << 10));
        for (u32 patience = 0; patience < 1000000; patience++) {
            (void)inb(0x80);
        }
    }
    kit_print("kit: cannot power off\n");
    for (;;) {
        __asm__ volatile("cli; hlt");
    }
}
