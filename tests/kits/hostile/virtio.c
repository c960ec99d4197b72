// Virtio devices with queues at random places and random descriptors in them.
#include "hostile.h"

static u32 config(u32 device, u32 at) {
    outl(0xcf8, 1u << 31 | device << 11 | (at & 0xfc));
    return inl(0xcfc);
}

// The places of a device's common and notification registers; 0 if it has none.
static u64 find(u32 device, u64 *notify) {
    if ((config(device, 0) & 0xffff) != 0x1af4)
        return 0;
    outl(0xcf8, 1u << 31 | device << 11 | 4);
    outl(0xcfc, 6); // memory, bus master
    u64 common = 0;
    *notify = 0;
    u32 at = config(device, 0x34) & 0xfc;
    for (u32 i = 0; i < 16 && at; i++) {
        u32 head = config(device, at), kind = head >> 24, bar = config(device, at + 4) & 7;
        if ((head & 0xff) == 9 && (kind == 1 || kind == 2) && bar < 6) {
            u64 base = config(device, 0x10 + 4 * bar), place;
            if ((base & 6) == 4)
                base |= (u64)config(device, 0x14 + 4 * bar) << 32;
            place = (base & ~15ull) + config(device, at + 8);
            // Another processor may have moved it out of the mapped range.
            if (place < 0xc0000000 || place > 0xfffff000)
                place = 0;
            if (kind == 1)
                common = place;
            else
                *notify = place;
        }
        at = head >> 8 & 0xfc;
    }
    return common;
}

struct descriptor { u64 at; u32 length; u16 flags, next; };

static u64 draw_ring(struct processor *me) {
    return below(me, 8) ? scratch_begin() + below(me, 16) * (u64)PAGE : draw_place(me);
}

// In place of another's: rings are shared by all.
static void fill(struct processor *me, u64 ring, u32 size) {
    struct descriptor *descriptors = (struct descriptor *)ring;
    if (ring < scratch_begin() || ring + 3 * PAGE > memory_bytes)
        return;
    for (u32 i = 0; i < size; i++) {
        descriptors[i].at = draw_place(me);
        descriptors[i].length = below(me, 2) ? below(me, 8) * 16 : (u32)draw_word(me);
        descriptors[i].flags = (u16)(below(me, 4) ? below(me, 4) : below(me, 8));
        descriptors[i].next = (u16)(below(me, 4) ? below(me, size) : draw(me));
    }
    volatile u16 *available = (volatile u16 *)(ring + PAGE);
    for (u32 i = 0; i < size; i++)
        available[2 + i] = (u16)(below(me, 8) ? below(me, size) : draw(me));
    available[0] = (u16)below(me, 2);
    available[1] = (u16)(available[1] + (below(me, 8) ? below(me, 8) : draw(me)));
}

void virtio(struct processor *me) {
    u64 notify, common = find(1 + below(me, 8), &notify);
    if (!common)
        return;
    volatile u8 *bytes = (volatile u8 *)common;
    volatile u16 *words = (volatile u16 *)common;
    volatile u32 *longs = (volatile u32 *)common;
    if (below(me, 3) == 0) {
        bytes[0x14] = 0;
        bytes[0x14] = 3;
        for (u32 i = 0; i < 2; i++) {
            longs[2] = i;
            longs[3] = i ? 1 : (u32)draw_word(me); // version 1, and what else there is
        }
        bytes[0x14] = 11;
        for (u32 queue = below(me, 3); queue < 3; queue++) {
            u32 size = 1 << below(me, 9);
            u64 ring = draw_ring(me);
            words[0x16 / 2] = (u16)queue;
            words[0x18 / 2] = (u16)(below(me, 8) ? size : draw(me));
            longs[0x20 / 4] = (u32)ring;
            longs[0x24 / 4] = (u32)(ring >> 32);
            longs[0x28 / 4] = (u32)(ring + PAGE);
            longs[0x2c / 4] = (u32)(ring >> 32);
            ring = below(me, 8) ? ring + 2 * PAGE : draw_place(me);
            longs[0x30 / 4] = (u32)ring;
            longs[0x34 / 4] = (u32)(ring >> 32);
            words[0x1c / 2] = 1;
        }
        bytes[0x14] = 15;
    }
    for (u32 i = 0; i < 16; i++)
        if (!below(me, 16))
            fill(me, scratch_begin() + i * (u64)PAGE, 64);
    for (u32 i = below(me, 6); i; i--) {
        switch (below(me, 8)) {
        case 0: bytes[below(me, 0x40)] = (u8)draw_word(me); break;
        case 1: words[below(me, 0x20)] = (u16)draw_word(me); break;
        case 2: longs[below(me, 0x10)] = (u32)draw_word(me); break;
        case 3: (void)longs[below(me, 0x800)]; break; // also the registers of its own, and MSI-X
        case 4: longs[below(me, 0x2000)] = (u32)draw_word(me); break;
        default:
            if (notify)
                *(volatile u16 *)(notify + 4 * below(me, 4)) = (u16)below(me, 4);
        }
    }
}
