/* Excursions out of long mode: kit_legacy(job) switches to 32-bit protected mode with the job's control registers, performs the
   job's steps, each of which may fault, and comes back. Layouts: machine::legacy. All that this uses lies below 4 MiB, where
   virtual = physical in the job's page tables; user-mode code is reached through a second mapping at the job's base. */

.set STEP_SIZE, 40
.set STEP_VECTOR, 4
.set STEP_ERROR, 8
.set STEP_ADDRESS, 16
.set STEP_VALUE, 24
.set STEP_CR2, 32

.section .text.legacy,"ax"
.code64
.global kit_legacy
kit_legacy:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  pushfq
  mov [legacy_rsp], rsp
  mov rax, cr0
  mov [legacy_cr0], eax
  mov rax, cr3
  mov [legacy_cr3], eax
  mov rax, cr4
  mov [legacy_cr4], eax
  mov ebp, edi                                  /* the job, for the whole excursion */
  push 0x48
  lea rax, [rip + legacy_compatibility]
  push rax
  retfq
.code32
legacy_compatibility:
  mov eax, 0x10                                 /* a way through user mode has made these null */
  mov ds, eax
  mov es, eax
  mov ss, eax
  mov eax, cr0                                  /* leave long mode */
  and eax, 0x7fffffff
  mov cr0, eax
  jmp 1f
1:
  mov ecx, 0xc0000080
  rdmsr
  mov [legacy_efer], eax
  and eax, 0xfffff6ff                           /* neither LME nor NXE, but what the job says */
  or eax, [ebp + 12]
  wrmsr
  mov eax, [ebp + 8]
  mov cr4, eax
  mov eax, [ebp + 4]
  mov cr3, eax
  mov eax, [ebp]
  sar eax, 31
  and eax, [ebp + 20]
  mov [legacy_user_base], eax
  mov eax, [ebp + 16]
  mov [legacy_step], eax
  lgdt [legacy_gdt_pointer]
  lidt [legacy_idt_pointer]
  and byte ptr [legacy_gdt + 0x2d], 0xfd        /* the TSS is not busy */
  mov eax, 0x28
  ltr ax
  mov eax, [ebp]
  mov cr0, eax
  push 0x08
  lea eax, [legacy_segments]
  push eax
  retf
legacy_segments:
  mov eax, 0x10
  mov ss, eax
  mov eax, 0x23                                 /* IRET to user mode leaves these alone */
  mov ds, eax
  mov es, eax
  lea esp, [legacy_stack_top]
  mov ebx, [legacy_step]

legacy_perform:                                 /* the step at EBX */
  mov [legacy_step], ebx
  mov eax, [ebx]
  mov ecx, [ebx + STEP_ADDRESS]
  mov edx, [ebx + STEP_VALUE]
  mov dword ptr [ebx + STEP_VECTOR], 0xffffffff
  cmp eax, 16
  jae legacy_special
  mov esi, eax
  and esi, 3
  test eax, 4
  jnz 2f
  test eax, 8
  jz 1f
  pushfd
  or dword ptr [esp], 0x40000                   /* AC */
  popfd
1:
  jmp [legacy_kernel_table + esi * 4]
2:
  mov esi, [legacy_user_table + esi * 4]
  add esi, [legacy_user_base]
  push 0x23
  push 0
  push 2
  push 0x1b
  push esi
  iretd
legacy_special:
  cmp eax, 31
  jae legacy_leave
  jmp [legacy_special_table + eax * 4 - 64]

legacy_done:                                    /* the result is in EAX */
  mov ebx, [legacy_step]
  mov [ebx + STEP_VALUE], eax
  mov dword ptr [ebx + STEP_VALUE + 4], 0
legacy_next:
  push 2
  popfd
  lea esp, [legacy_stack_top]
  mov ebx, [legacy_step]
  add ebx, STEP_SIZE
  jmp legacy_perform

legacy_read:
  mov eax, [ecx]
  jmp legacy_done
legacy_write:
  mov [ecx], edx
  jmp legacy_done
legacy_execute:
  call ecx
  jmp legacy_done
legacy_modify:
  lock xadd [ecx], edx
  mov eax, edx
  jmp legacy_done

legacy_user_read:
  mov eax, [ecx]
  int 0x80
legacy_user_write:
  mov [ecx], edx
  int 0x80
legacy_user_execute:
  jmp ecx
legacy_user_modify:
  lock xadd [ecx], edx
  mov eax, edx
  int 0x80

legacy_store8:
  mov eax, [ebx + STEP_VALUE + 4]
  mov [ecx + 4], eax
legacy_store4:
  mov [ecx], edx
  jmp legacy_next
legacy_load8:
  mov eax, [ecx + 4]
  mov edx, [ecx]
  mov [ebx + STEP_VALUE], edx
  mov [ebx + STEP_VALUE + 4], eax
  jmp legacy_next
legacy_invlpg:
  invlpg [ecx]
  jmp legacy_next
legacy_set_cr0:
  mov cr0, edx
  sar edx, 31                                   /* with paging, user mode is seen at the base */
  and edx, [ebp + 20]
  mov [legacy_user_base], edx
  jmp legacy_next
legacy_set_cr3:
  mov cr3, edx
  jmp legacy_next
legacy_set_cr4:
  mov cr4, edx
  jmp legacy_next
legacy_set_nxe:                                 /* EFER.NXE from the value's bit */
  mov esi, edx
  mov ecx, 0xc0000080
  rdmsr
  and eax, 0xfffff7ff
  or eax, esi
  wrmsr
  jmp legacy_next

legacy_cpuid:
  xor eax, eax
  cpuid
  jmp legacy_next

.macro LEGACY_STUB vector, error=0
  .balign 16
  .if \error == 0
  push 0
  .endif
  push \vector
  jmp legacy_trap
.endm
.balign 16
legacy_stubs:
.set vector, 0
.rept 32
  .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17
  LEGACY_STUB vector, 1
  .else
  LEGACY_STUB vector
  .endif
  .set vector, vector + 1
.endr
  LEGACY_STUB 0x80
legacy_trap:
  pop esi
  pop edi
  cmp esi, 0x80
  je legacy_done
  mov ebx, 0x23                                 /* a task whose DS could not be loaded has none */
  mov ds, ebx
  mov es, ebx
  mov ebx, [legacy_step]
  mov [ebx + STEP_VECTOR], esi
  mov [ebx + STEP_ERROR], edi
  mov eax, cr2
  mov [ebx + STEP_CR2], eax
  mov dword ptr [ebx + STEP_CR2 + 4], 0
  jmp legacy_next

legacy_leave:
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  jmp 1f
1:
  mov eax, [legacy_cr4]                         /* PAE before LME: QEMU's emulated host dies of an exit in between */
  mov cr4, eax
  mov ecx, 0xc0000080
  rdmsr
  mov eax, [legacy_efer]
  or eax, 0x100                                 /* LME */
  wrmsr
  mov eax, [legacy_cr3]
  mov cr3, eax
  mov eax, [legacy_cr0]
  mov cr0, eax
  lgdt [kit_gdt_pointer]
  push 0x08
  lea eax, [legacy_back]
  push eax
  retf
.code64
legacy_back:
  mov eax, 0x10
  mov ss, eax
  mov ds, eax
  mov es, eax
  mov rsp, [legacy_rsp]
  and byte ptr [kit_gdt + 0x35], 0xfd
  mov eax, 0x30
  ltr ax
  popfq
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret

.section .data.legacy,"aw"
.balign 8
legacy_gdt:
  .quad 0
  .quad 0x00cf9b000000ffff                      /* 08: code */
  .quad 0x00cf93000000ffff                      /* 10: data */
  .quad 0x00cffb000000ffff                      /* 18: user code */
  .quad 0x00cff3000000ffff                      /* 20: user data */
.global legacy_tss_descriptor
legacy_tss_descriptor:
  .quad 0                                       /* 28: TSS, filled in by machine::legacy */
.global legacy_more
legacy_more:                                    /* 30: what cases need */
  .fill 10, 8, 0
legacy_gdt_end:
.global legacy_gdt
legacy_gdt_pointer:
  .word legacy_gdt_end - legacy_gdt - 1
  .long legacy_gdt
legacy_idt_pointer:
  .word 129 * 8 - 1
  .long legacy_idt
.balign 4
legacy_kernel_table:
  .long legacy_read, legacy_write, legacy_execute, legacy_modify
legacy_user_table:
  .long legacy_user_read, legacy_user_write, legacy_user_execute, legacy_user_modify
legacy_special_table:
  .long legacy_store4, legacy_store8, legacy_read, legacy_load8, legacy_invlpg
  .long legacy_set_cr0, legacy_set_cr3, legacy_set_cr4, legacy_set_nxe
  .long legacy_cpuid
.global legacy_stubs

.section .bss.legacy,"aw",@nobits
.balign 8
.global legacy_idt
legacy_idt:
  .skip 129 * 8
legacy_rsp:
  .skip 8
legacy_cr0:
  .skip 4
legacy_cr3:
  .skip 4
legacy_cr4:
  .skip 4
legacy_efer:
  .skip 4
legacy_step:
  .skip 4
legacy_user_base:
  .skip 4
.balign 16
  .skip 4096
.global legacy_stack_top
legacy_stack_top:
