/* Start of another processor (AMD APM 2, 15.27.8; Intel SDM 3A, 10.4.4): real mode, CS = the page to which kit_ap_start was copied, IP = 0.
   Enters long mode with the tables and the GDT of the first, takes the next stack, calls kit_ap(what INIT left). */

.section .text.ap,"ax"
.code16
.global kit_ap_start
kit_ap_start:
  cli
  mov ebx, cr0
  mov ebp, cr4
  mov esp, edx
  mov edi, cr3
  mov ax, cs
  mov ds, ax
  .byte 0xbe                                    /* mov si, */
  .word kit_ap_gdt_pointer - kit_ap_start
  .byte 0x66, 0x0f, 0x01, 0x14                  /* lgdt [si], all 32 bits of the base */
  mov eax, 0x620                                /* CR4: PAE, OSFXSR, OSXMMEXCPT */
  mov cr4, eax
  .byte 0x66, 0xb8                              /* mov eax, */
  .long kit_pml4
  mov cr3, eax
  mov ecx, 0xc0000080
  rdmsr
  mov esi, eax
  or eax, 0x900                                 /* EFER: LME, NXE */
  wrmsr
  mov eax, 0x80010033                           /* CR0: PG, WP, NE, ET, MP, PE */
  mov cr0, eax
  .byte 0x66, 0xea                              /* jmp 0x08:kit_ap_long */
  .long kit_ap_long
  .word 0x08
kit_ap_gdt_pointer:
  .word 79
  .long kit_gdt
.global kit_ap_end
kit_ap_end:

.code64
kit_ap_long:
  mov ecx, 0x10
  mov ss, ecx
  mov eax, 1
  lock xadd dword ptr [kit_ap_next], eax
  cmp eax, 16
  jae 1f
  mov r8d, esp                                  /* EDX as INIT left it */
  mov ecx, eax
  inc ecx
  shl ecx, 14
  lea rsp, [kit_ap_stacks + rcx]
  mov ecx, 0x10
  mov ds, ecx
  mov es, ecx
  mov fs, ecx
  mov gs, ecx
  /* struct Left, in this order */
  mov eax, edi
  push rax
  mov eax, esi
  push rax
  mov eax, r8d
  push rax
  mov eax, ebp
  push rax
  mov eax, ebx
  push rax
  mov rdi, rsp
  xor ebp, ebp
  sub rsp, 8
  call kit_ap
1:
  cli
  hlt
  jmp 1b

/* kit_probe_read(address) -> RAX = the value, RDX = 0; or RDX = 1 << 32 | the page fault's error code. */
.global kit_probe_read
kit_probe_read:
  xor edx, edx
  mov rax, [rdi]
.global kit_probe_landing
kit_probe_landing:
  ret

/* kit_probe_write(address, value) -> RDX, as above. */
.global kit_probe_write
kit_probe_write:
  xor edx, edx
  mov [rdi], rsi
  jmp kit_probe_landing
.global kit_probe_end
kit_probe_end:

.section .bss.ap,"aw",@nobits
.balign 16384
.global kit_ap_stacks
kit_ap_stacks:
  .skip 16384 * 17
.global kit_ap_stacks_end
kit_ap_stacks_end:
.global kit_ap_next
kit_ap_next:
  .skip 4
