# Entry of the multiboot1 kit (Multiboot Specification 0.6.96, sections 3.1 and 3.2), and its exception stubs.

    .set MAGIC, 0x1badb002
    .set FLAGS, 3                       # page-aligned modules, memory sizes

    .section .multiboot, "a"
    .align 4
    .long MAGIC, FLAGS, -(MAGIC + FLAGS)

    .section .text
    .global start
start:
    mov $stack_end, %esp
    cld
    push %ebx                           # the boot information
    push %eax                           # 0x2badb002
    lgdt gdt_pointer
    ljmp $8, $1f
1:  mov $16, %ecx
    mov %ecx, %ds
    mov %ecx, %es
    mov %ecx, %ss
    call kit_main
2:  cli
    hlt
    jmp 2b

# One stub for each exception and one for each line of the interrupt controllers: they leave a frame with the vector and an error
# code, real or 0.
    .macro stub vector, has_error=0
    .if \has_error == 0
    push $0
    .endif
    push $\vector
    jmp common
    .endm

    .global stubs
    .align 16
stubs:
    .set vector, 0
    .rept 48
    .align 16
    .if vector == 8 || vector == 10 || vector == 11 || vector == 12 || vector == 13 || vector == 14 || vector == 17
    stub vector, 1
    .else
    stub vector
    .endif
    .set vector, vector + 1
    .endr

common:
    pusha
    push %esp                           # the frame
    call kit_trap
    add $4, %esp
    popa
    add $8, %esp
    iret

    .section .data
    .align 8
gdt:
    .quad 0
    .quad 0x00cf9b000000ffff            # flat code
    .quad 0x00cf93000000ffff            # flat data
    .quad 0x00009b000000ffff            # 16-bit code, on the way to real mode
    .quad 0x000093000000ffff            # 16-bit data
gdt_pointer:
    .word 39
    .long gdt

    .section .bss
    .align 16
    .skip 16384
stack_end:

    .section .note.GNU-stack, "", @progbits
