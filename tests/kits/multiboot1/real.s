# Trips to real mode and back: u32 kit_real(void) returns what was done there, one digit for each; u32 kit_bios_ticks(void)
# waits there for three ticks of the timer, which the firmware's handlers count, and returns how many it has seen.

    .set LOW, 0x7000                    # where the code is in real mode
    .set RESULT, 0x6ff8
    .set STACK, 0x6ff0

    .section .text
    .global kit_real, kit_bios_ticks
kit_real:
    pusha
    xor %ebx, %ebx
    jmp 1f
kit_bios_ticks:
    pusha
    mov $1, %ebx
1:
    mov %esp, saved_esp
    sidt saved_idt
    mov $real_begin, %esi
    mov $LOW, %edi
    mov $(real_end - real_begin), %ecx
    rep movsb
    lidt vectors
    ljmp $0x18, $LOW
back:
    mov $16, %ecx
    mov %ecx, %ds
    mov %ecx, %es
    mov %ecx, %ss
    mov saved_esp, %esp
    lidt saved_idt
    movzwl RESULT, %eax
    mov %eax, 28(%esp)
    popa
    ret

    .code16
real_begin:
    mov $0x20, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov %cr0, %eax
    and $0xfffffffe, %eax
    mov %eax, %cr0
    ljmp $0, $(LOW + 1f - real_begin)
1:  xor %ax, %ax
    mov %ax, %ds
    mov %ax, %ss
    mov $STACK, %sp
    test %bx, %bx
    jnz ticks
    movw $(LOW + interrupt - real_begin), 0x40 * 4
    mov %ax, 0x40 * 4 + 2
    movw $(LOW + undefined - real_begin), 6 * 4
    mov %ax, 6 * 4 + 2
    xor %bp, %bp
    int $0x40                           # adds 1
    ud2                                 # adds 0x10
    mov $0x80000000, %eax
    cpuid                               # leaves the guest, and adds 0x100 if it knows where it is
    cmp $0x80000000, %eax
    jb 2f
    add $0x100, %bp
2:  out %al, $0x80                      # the same for a port
    mov $(LOW >> 4), %ax                # a segment with another base
    mov %ax, %es
    movw $0x1000, %es:(last - real_begin)
    add LOW + last - real_begin, %bp
leave:
    mov %bp, RESULT
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmpl $8, $back

ticks:
    mov 0x46c, %esi                     # ticks since midnight
    sti
3:  hlt
    mov 0x46c, %eax
    sub %esi, %eax
    cmp $3, %eax
    jb 3b
    cli
    mov %ax, %bp
    jmp leave

interrupt:
    add $1, %bp
    iret
undefined:
    add $0x10, %bp
    mov %sp, %si
    addw $2, %ss:(%si)                  # behind UD2
    iret
last:
    .word 0
real_end:
    .code32

    .section .data
vectors:
    .word 0x3ff
    .long 0

    .section .bss
saved_esp:
    .skip 4
saved_idt:
    .skip 8

    .section .note.GNU-stack, "", @progbits
