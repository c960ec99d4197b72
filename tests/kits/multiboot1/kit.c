/* The multiboot1 kit: a tiny kernel that does what the words of its command line say, in order, and powers off.
 * It reports on COM1 in lines that start with "kit:". */
#include "kit.h"

struct module {
    u32 start, end;
    const char *line;
    u32 reserved;
};

struct boot_info {
    u32 flags, mem_lower, mem_upper, boot_device;
    const char *line;
    u32 module_count;
    struct module *modules;
};

volatile u32 trap_count[48];
volatile u32 trap_error;
volatile u32 trap_resume;

static void put(char c) {
    while (!(inb(0x3fd) & 0x20)) {
    }
    outb(0x3f8, (u8)c);
}

int kit_read(void) {
    while (!(inb(0x3fd) & 1)) {
    }
    return inb(0x3f8);
}

static void put_number(u32 value, u32 base) {
    char digits[12];
    int count = 0;
    do {
        digits[count++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    while (count) {
        put(digits[--count]);
    }
}

void kit_print(const char *format, ...) {
    __builtin_va_list arguments;
    __builtin_va_start(arguments, format);
    for (; *format; format++) {
        if (*format == '\n') {
            put('\r');
        }
        if (*format != '%') {
            put(*format);
            continue;
        }
        switch (*++format) {
        case 's':
            for (const char *text = __builtin_va_arg(arguments, const char *); *text; text++) {
                put(*text);
            }
            break;
        case 'c':
            put((char)__builtin_va_arg(arguments, int));
            break;
        case 'x':
            put_number(__builtin_va_arg(arguments, u32), 16);
            break;
        case 'u':
            put_number(__builtin_va_arg(arguments, u32), 10);
            break;
        }
    }
    __builtin_va_end(arguments);
}

void kit_trap(struct frame *frame) {
    trap_count[frame->vector]++;
    trap_error = frame->error;
    if (frame->vector >= 32) {
        if (frame->vector != 32) {
            /* Once is enough: the line may be level-triggered and still high. */
            outb(0x21, 0xff);
            outb(0xa1, 0xff);
        }
        if (frame->vector >= 40) {
            outb(0xa0, 0x20);
        }
        outb(0x20, 0x20);
        return;
    }
    if (trap_resume) {
        frame->eip = trap_resume;
        trap_resume = 0;
        return;
    }
    kit_print("kit: exception %u error %x eip %x\n", frame->vector, frame->error, frame->eip);
    kit_power_off();
}

extern char stubs[];

/* Gates for all vectors; the interrupt controllers at vectors 32 to 47, every line masked. */
void kit_traps_on(void) {
    static u32 gates[48][2];
    static struct {
        u16 limit;
        u32 base;
    } __attribute__((packed)) pointer;
    for (u32 vector = 0; vector < 48; vector++) {
        u32 address = (u32)stubs + vector * 16;
        gates[vector][0] = 8u << 16 | (address & 0xffff);
        gates[vector][1] = (address & 0xffff0000u) | 0x8e00;
    }
    pointer.limit = sizeof gates - 1;
    pointer.base = (u32)gates;
    __asm__ volatile("lidt %0" : : "m"(pointer));
    static const u8 set_up[][2] = {{0x20, 0x11}, {0xa0, 0x11}, {0x21, 32}, {0xa1, 40}, {0x21, 4},
                                   {0xa1, 2},    {0x21, 1},    {0xa1, 1},  {0x21, 0xff}, {0xa1, 0xff}};
    for (u32 step = 0; step < sizeof set_up / 2; step++) {
        outb(set_up[step][0], set_up[step][1]);
    }
}

static u32 sum(const u8 *bytes, const u8 *end) {
    u32 sum = 0;
    while (bytes < end) {
        sum = sum * 31 + *bytes++;
    }
    return sum;
}

/* Splits the command line, the kernel's name first, into NAME or NAME=VALUE words. */
static void run_words(const char *line) {
    static char word[256];
    while (*line && *line != ' ') {
        line++;
    }
    while (*line) {
        u32 length = 0;
        while (*line == ' ') {
            line++;
        }
        while (*line && *line != ' ' && length < sizeof word - 1) {
            word[length++] = *line++;
        }
        word[length] = 0;
        char *value = "";
        for (u32 at = 0; at < length; at++) {
            if (word[at] == '=') {
                word[at] = 0;
                value = &word[at + 1];
                break;
            }
        }
        if (length) {
            kit_word(word, value);
        }
    }
}

/* How the firmware and the boot loader leave the PIC and the timer, before the kit sets them up. */
static void show_firmware(void) {
    u32 masks = (u32)inb(0xa1) << 8 | inb(0x21);
    /* Read back the status of channel 0: access, mode and format; not the output and whether a count is due. */
    outb(0x43, 0xe2);
    u32 mode = inb(0x40) & 0x3f;
    kit_print("kit: firmware leaves masks %x timer %x and counts %u ticks\n", masks, mode, kit_bios_ticks());
}

static int has_word(const char *line, const char *word) {
    for (; *line; line++) {
        u32 at = 0;
        while (word[at] && line[at] == word[at]) {
            at++;
        }
        if (!word[at]) {
            return 1;
        }
    }
    return 0;
}

void kit_main(u32 magic, const struct boot_info *info) {
    kit_print("kit: magic %x flags %x\n", magic, info->flags & 0xf);
    kit_print("kit: lower %u KiB upper %u KiB\n", info->mem_lower, info->mem_upper);
    kit_print("kit: modules %u\n", info->flags & 8 ? info->module_count : 0);
    for (u32 index = 0; info->flags & 8 && index < info->module_count; index++) {
        const struct module *module = &info->modules[index];
        kit_print("kit: module %u size %u aligned %u sum %x line %s\n", index, module->end - module->start,
                  (module->start & 0xfff) == 0, sum((const u8 *)module->start, (const u8 *)module->end), module->line);
    }
    if (info->flags & 4 && has_word(info->line, "firmware")) {
        show_firmware();
    }
    kit_traps_on();
    if (info->flags & 4) {
        run_words(info->line);
    }
    kit_print("kit: done\n");
    kit_power_off();
}
