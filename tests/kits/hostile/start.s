# Entry from a multiboot1 loader, and of the other processors from a start-up IPI; traps.
# Both ways lead to 64-bit mode with the low 4 GiB identity-mapped, and to processor_main(number).

        .intel_syntax noprefix
        .equ BLOCK, 0x10000             # bytes of a processor's block (hostile.h)
        .equ STACK, 0x4000              # where in it its stack begins
        .equ TRAMPOLINE, 0x8000

        .section .multiboot, "a"
        .balign 4
        .long 0x1badb002, 3, -(0x1badb002 + 3)

        .text
        .code32
        .globl entry
entry:  cli
        cld
        lea esp, [blocks + STACK]
        mov esi, [ebx + 16]
        mov [command_line], esi
        # The trampoline lives below 1 MiB.
        lea esi, [trampoline]
        mov edi, TRAMPOLINE
        mov ecx, offset trampoline_end - trampoline
        rep movsb
protected:
        mov eax, 0x620
        mov cr4, eax
        lea eax, [kit_pml4]
        mov cr3, eax
        mov ecx, 0xc0000080
        rdmsr
        or eax, 0x901
        wrmsr
        mov eax, 0x80010033
        mov cr0, eax
        lgdt [gdt_pointer]
        push 0x08
        lea eax, [enter_long]
        push eax
        retf

        .code64
enter_long:
        mov ecx, 0x10
        mov ds, ecx
        mov es, ecx
        mov ss, ecx
        mov fs, ecx
        mov gs, ecx
        mov eax, 1
        cpuid
        shr ebx, 24
        and ebx, 15
        mov edi, ebx
        shl ebx, 16
        lea rsp, [rbx + blocks + STACK]
        xor ebp, ebp
        call processor_main
1:      jmp 1b

# Goes on with the next action: resume_at(stack top).
        .globl resume_at
resume_at:
        mov rsp, rdi
        xor ebp, ebp
        # By IRET, which ends an NMI too.
        push 0x10
        push rdi
        push 2
        push 0x08
        push offset 1f
        iretq
1:      call processor_loop

# A start-up IPI begins here, in real mode.
        .code16
trampoline:
        cli
        xor ax, ax
        mov ds, ax
        lgdt [TRAMPOLINE + low_pointer - trampoline]
        mov eax, cr0
        or al, 1
        mov cr0, eax
        .byte 0x66, 0xea                # jmp 0x18:TRAMPOLINE + low_protected - trampoline
        .long TRAMPOLINE + low_protected - trampoline
        .word 0x18
        .code32
low_protected:
        mov eax, 0x10
        mov ds, eax
        mov ss, eax
        # For a few instructions all that start at once share a stack on which they write the same.
        mov esp, TRAMPOLINE + 0xff0
        mov eax, offset protected
        jmp eax
        .balign 8
low_pointer:
        .word gdt_end - gdt - 1
        .long gdt
trampoline_end:

        .code64
        .altmacro
        .macro STUB n
        .balign 16
        .if !(\n == 8 || (\n >= 10 && \n <= 14) || \n == 17 || \n == 21 || \n == 29 || \n == 30)
        push 0
        .endif
        push \n
        jmp common
        .endm
        .balign 16
        .globl stubs
stubs:
        .set vector, 0
        .rept 256
        STUB %vector
        .set vector, vector + 1
        .endr
        .noaltmacro
common: push rax
        push rcx
        push rdx
        push rsi
        push rdi
        push r8
        push r9
        push r10
        push r11
        mov rdi, [rsp + 72]
        lea rsi, [rsp + 88]
        cld
        call trap
        pop r11
        pop r10
        pop r9
        pop r8
        pop rdi
        pop rsi
        pop rdx
        pop rcx
        pop rax
        add rsp, 16
        iretq

# call_with(code, registers): the eight registers that calls preserve or not are those of the array.
        .globl call_with
call_with:
        push rbx
        push rbp
        push r12
        push r13
        mov r11, rdi
        mov rax, [rsi]
        mov rcx, [rsi + 8]
        mov rdx, [rsi + 16]
        mov rbx, [rsi + 24]
        mov rbp, [rsi + 32]
        mov rdi, [rsi + 48]
        mov r8, [rsi + 56]
        mov rsi, [rsi + 40]
        call r11
        pop r13
        pop r12
        pop rbp
        pop rbx
        ret

        .data
        .balign 4096
        .globl kit_pml4, kit_pd
kit_pml4:
        .quad kit_pdpt + 7
        .skip 4088
kit_pdpt:
        .quad kit_pd + 0x0007, kit_pd + 0x1007, kit_pd + 0x2007, kit_pd + 0x3007
        .skip 4064
kit_pd:
        .set page, 0
        .rept 1536
        .quad page + 0x87
        .set page, page + 0x200000
        .endr
        .rept 512
        .quad page + 0x9f
        .set page, page + 0x200000
        .endr

        .balign 16
        .globl gdt
gdt:    .quad 0
        .quad 0x00af9b000000ffff        # 08: 64-bit code
        .quad 0x00cf93000000ffff        # 10: data
        .quad 0x00cf9b000000ffff        # 18: 32-bit code
        .skip 16 * 16                   # 20: a TSS for each processor
gdt_end:
gdt_pointer:
        .word gdt_end - gdt - 1
        .quad gdt

        .bss
        .balign BLOCK
        .globl blocks
blocks: .skip 16 * BLOCK
        .section .note.GNU-stack, "", @progbits
