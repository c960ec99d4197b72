/* Entry from a multiboot1 loader (Multiboot Specification 0.6.96, 3.1 and 3.2): 32-bit protected mode without paging, EAX =
   0x2badb002, EBX = information. Identity-maps the low 4 GiB, enters long mode, calls kit_main(information, magic). */

.section .multiboot,"a"
.balign 4
  .long 0x1badb002, 3, -(0x1badb002 + 3)        /* page-aligned modules, memory sizes */

.section .text.entry,"ax"
.code32
.global kit_entry
kit_entry:
  cli
  cld
  lea esp, [kit_stack_top]
  mov edi, ebx
  mov esi, eax
  mov eax, 0x620                                /* CR4: PAE, OSFXSR, OSXMMEXCPT */
  mov cr4, eax
  lea eax, [kit_pml4]
  mov cr3, eax
  mov ecx, 0xc0000080                           /* EFER: LME, NXE */
  rdmsr
  or eax, 0x900
  wrmsr
  mov eax, 0x80010033                           /* CR0: PG, WP, NE, ET, MP, PE */
  mov cr0, eax
  lgdt [kit_gdt_pointer]
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
  mov rsp, offset kit_stack_top
  mov edi, edi
  mov esi, esi
  xor ebp, ebp
  call kit_main
1:
  cli
  hlt
  jmp 1b

.section .data.tables,"aw"
.balign 4096
.global kit_pml4
kit_pml4:
  .quad kit_pdpt + 7
  .skip 4088
kit_pdpt:
  .quad kit_pd + 0x0007, kit_pd + 0x1007, kit_pd + 0x2007, kit_pd + 0x3007
  .skip 4064
/* 2 MiB pages, open to user mode as well; the last GiB, which holds the devices, uncached. */
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
.global kit_gdt
kit_gdt:
  .quad 0
  .quad 0x00af9b000000ffff                      /* 08: 64-bit code */
  .quad 0x00cf93000000ffff                      /* 10: data */
  .quad 0x00cffb000000ffff                      /* 18: user 32-bit code, where SYSRET expects it */
  .quad 0x00cff3000000ffff                      /* 20: user data */
  .quad 0x00affb000000ffff                      /* 28: user 64-bit code */
  .quad 0, 0                                    /* 30: TSS, filled in by machine::trap */
  .quad 0x00cf1b000000ffff                      /* 40: code, not present */
  .quad 0x00cf9b000000ffff                      /* 48: 32-bit code */
kit_gdt_end:
.global kit_gdt_pointer
kit_gdt_pointer:
  .word kit_gdt_end - kit_gdt - 1
  .quad kit_gdt

.section .bss.stack,"aw",@nobits
.balign 16
  .skip 65536
kit_stack_top:
