# x86-64: entry, system calls, and accesses that may fault.

        .text
        .globl _start, system_call, vfork_exec, clone_vm, signal_return
_start: xor     %ebp, %ebp
        mov     (%rsp), %edi
        lea     8(%rsp), %rsi
        lea     16(%rsp,%rdi,8), %rdx
        and     $-16, %rsp
        call    start
        hlt

system_call:
        mov     %rdi, %rax
        mov     %rsi, %rdi
        mov     %rdx, %rsi
        mov     %rcx, %rdx
        mov     %r8, %r10
        mov     %r9, %r8
        mov     8(%rsp), %r9
        syscall
        ret

# The child uses the parent's stack: it touches nothing there.
vfork_exec:
        mov     $58, %eax
        syscall
        test    %eax, %eax
        jnz     1f
        mov     $59, %eax
        syscall
        mov     $127, %edi
        mov     $231, %eax
        syscall
1:      ret

# CLONE_VM, CLONE_FILES, SIGCHLD
clone_vm:
        mov     %rsi, %r8
        mov     %rdx, %r9
        mov     %rdi, %rsi
        mov     $0x511, %edi
        xor     %edx, %edx
        xor     %r10d, %r10d
        mov     $56, %eax
        syscall
        test    %eax, %eax
        jnz     1f
        xor     %ebp, %ebp
        mov     %r9, %rdi
        call    *%r8
        mov     %eax, %edi
        mov     $60, %eax
        syscall
1:      ret

signal_return:
        mov     $15, %eax
        syscall

        .globl try_load, load_at, load_failed, try_store, store_at, store_failed, try_call, call_failed
try_load:
load_at:
        mov     (%rdi), %eax
        mov     %eax, (%rsi)
        mov     $1, %eax
        ret
load_failed:
        xor     %eax, %eax
        ret

try_store:
store_at:
        mov     %esi, (%rdi)
        mov     $1, %eax
        ret
store_failed:
        xor     %eax, %eax
        ret

# A fetch that faults has pushed the return address already.
try_call:
        push    %rbx
        mov     %rsi, %rbx
        call    *%rdi
        mov     %eax, (%rbx)
        mov     $1, %eax
        pop     %rbx
        ret
call_failed:
        pop     %rcx
        xor     %eax, %eax
        pop     %rbx
        ret

        .section .note.GNU-stack, "", @progbits
