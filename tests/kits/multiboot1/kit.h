/* What the parts of the kit share: ports, output on COM1, traps. */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static inline void outb(u16 port, u8 value) { __asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
static inline void outw(u16 port, u16 value) { __asm__ volatile("outw %0, %1" : : "a"(value), "Nd"(port)); }
static inline void outl(u16 port, u32 value) { __asm__ volatile("outl %0, %1" : : "a"(value), "Nd"(port)); }
static inline u8 inb(u16 port) { u8 value; __asm__ volatile("inb %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static inline u16 inw(u16 port) { u16 value; __asm__ volatile("inw %1, %0" : "=a"(value) : "Nd"(port)); return value; }
static inline u32 inl(u16 port) { u32 value; __asm__ volatile("inl %1, %0" : "=a"(value) : "Nd"(port)); return value; }

/* The registers at a trap, as start.s leaves them. */
struct frame {
    u32 edi, esi, ebp, esp, ebx, edx, ecx, eax;
    u32 vector, error, eip, cs, eflags;
};

/* How often each vector came since the last reset of the counters, and the last error code. */
extern volatile u32 trap_count[48];
extern volatile u32 trap_error;
/* Where to go on after an expected exception: its EIP is replaced by this address if not 0. */
extern volatile u32 trap_resume;

void kit_print(const char *format, ...); /* %s %x %u %c */
int kit_read(void);                      /* one byte from COM1, waits */
void kit_traps_on(void);

/* acpi.c */
void kit_power_off(void);
/* real.s */
u32 kit_real(void);
u32 kit_bios_ticks(void);
/* words.c */
void kit_word(const char *name, const char *value);
