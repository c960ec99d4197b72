/* kit_storm(block): this processor goes to 32-bit protected mode and switches between two tasks until the block's count is used
   up. Layout: struct Block in task_storm.rs. EBP is the block in both tasks. */

.set STORM_RSP, 16
.set STORM_CR0, 24
.set STORM_CR3, 28
.set STORM_CR4, 32
.set STORM_EFER, 36
.set STORM_ROOT, 40
.set STORM_LEFT, 44
.set STORM_ARRIVALS, 48
.set STORM_FAULTS, 52
.set STORM_STACK, 56
.set STORM_TABLE, 60
.set STORM_TO_OTHER, 64
.set STORM_TO_FIRST, 72
.set STORM_DESCRIPTORS, 120
.set STORM_GOOD_DESCRIPTORS, 144
.set STORM_GOOD_ENTRIES, 160
.set STORM_GOOD_TSS, 176
.set STORM_OTHER_TSS, 0x40002fcc

.section .text.storm,"ax"
.code64
.global kit_storm
kit_storm:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  pushfq
  cli
  mov [rdi + STORM_RSP], rsp
  mov rax, cr0
  mov [rdi + STORM_CR0], eax
  mov rax, cr3
  mov [rdi + STORM_CR3], eax
  mov rax, cr4
  mov [rdi + STORM_CR4], eax
  mov ebp, edi
  push 0x48
  lea rax, [rip + storm_compatibility]
  push rax
  retfq
.code32
storm_compatibility:
  mov eax, 0x10
  mov ds, eax
  mov es, eax
  mov ss, eax
  mov fs, eax
  mov gs, eax
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  jmp 1f
1:
  mov ecx, 0xc0000080
  rdmsr
  mov [ebp + STORM_EFER], eax
  and eax, 0xfffff6ff
  wrmsr
  mov eax, 0x10                                 /* PSE */
  mov cr4, eax
  mov eax, [ebp + STORM_ROOT]
  mov cr3, eax
  lgdt [ebp]
  lidt [ebp + 8]
  mov eax, 0x80010031
  mov cr0, eax
  push 0x08
  lea eax, [storm_begin]
  push eax
  retf
storm_begin:
  mov esp, [ebp + STORM_STACK]
  mov eax, 0x28
  ltr ax
storm_first:                                    /* the first task: by CALL and by JMP in turn */
  cmp dword ptr [ebp + STORM_LEFT], 0
  jle storm_leave
  dec dword ptr [ebp + STORM_LEFT]
  test dword ptr [ebp + STORM_LEFT], 1
  jz 1f
  call fword ptr [ebp + STORM_TO_OTHER]
  jmp storm_first
1:
  jmp fword ptr [ebp + STORM_TO_OTHER]
  jmp storm_first

.global storm_other
storm_other:                                    /* the other one: goes back as it has come */
  inc dword ptr [ebp + STORM_ARRIVALS]
  clts
  pushfd
  pop eax
  test eax, 0x4000
  jz 1f
  iretd
  jmp storm_other
1:
  jmp fword ptr [ebp + STORM_TO_FIRST]
  jmp storm_other

.global storm_trap
storm_trap:                                     /* anything: all is put right, and the first task goes on */
  mov eax, 0x10
  mov ds, eax
  mov es, eax
  mov ss, eax
  mov eax, 0x38                                 /* its limit says where the block is */
  lsl ebp, eax
  and ebp, 0xfffff000
  mov esp, [ebp + STORM_STACK]
  inc dword ptr [ebp + STORM_FAULTS]
  cld
  lea esi, [ebp + STORM_GOOD_DESCRIPTORS]
  lea edi, [ebp + STORM_DESCRIPTORS]
  mov ecx, 4
  rep movsd
  lea esi, [ebp + STORM_GOOD_ENTRIES]
  mov edi, [ebp + STORM_TABLE]
  mov ecx, 4
  rep movsd
  mov eax, cr3
  mov cr3, eax
  lea esi, [ebp + STORM_GOOD_TSS]
  mov edi, STORM_OTHER_TSS
  mov ecx, 26
  rep movsd
  clts
  push 2
  popfd
  mov eax, 0x28
  ltr ax
  jmp storm_first

storm_leave:
  mov eax, cr0
  and eax, 0x7fffffff
  mov cr0, eax
  jmp 1f
1:
  mov eax, [ebp + STORM_CR4]                          /* PAE before LME: see legacy.s */
  mov cr4, eax
  mov ecx, 0xc0000080
  rdmsr
  mov eax, [ebp + STORM_EFER]
  or eax, 0x100
  wrmsr
  mov eax, [ebp + STORM_CR3]
  mov cr3, eax
  mov eax, [ebp + STORM_CR0]
  mov cr0, eax
  lgdt [kit_gdt_pointer]
  push 0x08
  lea eax, [storm_back]
  push eax
  retf
.code64
storm_back:
  mov eax, 0x10
  mov ss, eax
  mov ds, eax
  mov es, eax
  mov edi, ebp
  mov rsp, [rdi + STORM_RSP]
  popfq
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret
