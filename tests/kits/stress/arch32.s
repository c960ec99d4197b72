# i386: entry, system calls, and accesses that may fault.

        .text
        .globl _start, system_call, vfork_exec, clone_vm, signal_return
_start: xor     %ebp, %ebp
        mov     (%esp), %eax
        lea     4(%esp), %ecx
        lea     8(%esp,%eax,4), %edx
        and     $-16, %esp
        push    %edx
        push    %edx
        push    %ecx
        push    %eax
        call    start
        hlt

system_call:
        push    %ebx
        push    %esi
        push    %edi
        push    %ebp
        mov     20(%esp), %eax
        mov     24(%esp), %ebx
        mov     28(%esp), %ecx
        mov     32(%esp), %edx
        mov     36(%esp), %esi
        mov     40(%esp), %edi
        mov     44(%esp), %ebp
        int     $0x80
        pop     %ebp
        pop     %edi
        pop     %esi
        pop     %ebx
        ret

# The child uses the parent's stack: it touches nothing there.
vfork_exec:
        push    %ebx
        mov     8(%esp), %ebx
        mov     12(%esp), %ecx
        mov     16(%esp), %edx
        mov     $190, %eax
        int     $0x80
        test    %eax, %eax
        jnz     1f
        mov     $11, %eax
        int     $0x80
        mov     $127, %ebx
        mov     $252, %eax
        int     $0x80
1:      pop     %ebx
        ret

# CLONE_VM, CLONE_FILES, SIGCHLD
clone_vm:
        push    %ebx
        push    %esi
        push    %edi
        push    %ebp
        mov     20(%esp), %ecx
        mov     24(%esp), %edi
        mov     28(%esp), %ebp
        mov     $0x511, %ebx
        xor     %edx, %edx
        xor     %esi, %esi
        mov     $120, %eax
        int     $0x80
        test    %eax, %eax
        jnz     1f
        sub     $12, %esp
        push    %ebp
        call    *%edi
        mov     %eax, %ebx
        mov     $1, %eax
        int     $0x80
1:      pop     %ebp
        pop     %edi
        pop     %esi
        pop     %ebx
        ret

signal_return:
        mov     $173, %eax
        int     $0x80

        .globl try_load, load_at, load_failed, try_store, store_at, store_failed, try_call, call_failed
try_load:
        mov     4(%esp), %ecx
        mov     8(%esp), %edx
load_at:
        mov     (%ecx), %eax
        mov     %eax, (%edx)
        mov     $1, %eax
        ret
load_failed:
        xor     %eax, %eax
        ret

try_store:
        mov     4(%esp), %ecx
        mov     8(%esp), %edx
store_at:
        mov     %edx, (%ecx)
        mov     $1, %eax
        ret
store_failed:
        xor     %eax, %eax
        ret

# A fetch that faults has pushed the return address already.
try_call:
        mov     4(%esp), %eax
        call    *%eax
        mov     8(%esp), %ecx
        mov     %eax, (%ecx)
        mov     $1, %eax
        ret
call_failed:
        pop     %ecx
        xor     %eax, %eax
        ret

        .section .note.GNU-stack, "", @progbits
