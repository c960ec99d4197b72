/* Entry from a PVH loader (QEMU -kernel) or a multiboot2 loader (GRUB), both in 32-bit protected mode without
   paging and with EBX = address of the loader's information: identity-map the low 4 GiB with 2 MiB pages, enter
   long mode, call boot_start(information, protocol) on the boot stack. The loader has zeroed .bss.
   PVH: Xen's docs/misc/pvh.pandoc. Multiboot2: specification 2.0, sections 3.1 and 3.3. */

.section .multiboot2,"a"
.balign 8
multiboot2_header:
  .long 0xe85250d6                              /* magic */
  .long 0                                       /* architecture: i386, protected mode */
  .long multiboot2_header_end - multiboot2_header
  .long -(0xe85250d6 + (multiboot2_header_end - multiboot2_header))
  .short 5, 1                                   /* framebuffer, optional; room for a report that fits a photograph */
  .long 20, 1024, 768, 32
  .balign 8
  .short 0, 0                                   /* end tag */
  .long 8
multiboot2_header_end:

.section .note.pvh,"a",@note
.balign 4
  .long 4, 8, 18                                /* name size, descriptor size, XEN_ELFNOTE_PHYS32_ENTRY */
  .asciz "Xen"
  .quad pvh_entry

.section .boot.text,"ax"
.code32
.global multiboot2_entry
multiboot2_entry:
  mov esi, 2
  cmp eax, 0x36d76289
  je enter
  jmp no_long_mode                              /* a loader that speaks something else */
.global pvh_entry
pvh_entry:
  mov esi, 1
enter:
  cli
  cld
  lea esp, [boot_stack_top]
  mov edi, ebx
  /* Long mode? */
  mov eax, 0x80000000
  cpuid
  cmp eax, 0x80000001
  jb no_long_mode
  mov eax, 0x80000001
  cpuid
  bt edx, 29
  jnc no_long_mode
  mov ebp, edx                                  /* bit 20: NX */
  /* PML4[0] -> PDPT, PDPT[0..4] -> PD, PD[i] = 2 MiB page i */
  lea eax, [boot_pdpt + 3]
  mov [boot_pml4], eax
  lea eax, [boot_pd + 3]
  lea ebx, [boot_pdpt]
  mov ecx, 4
1: mov [ebx], eax
  add eax, 4096
  add ebx, 8
  loop 1b
  lea eax, [boot_pd + 3]                        /* PDPT[4]: the first GiB once more, where no pointer is null */
  mov [ebx], eax
  mov eax, 0x83
  lea ebx, [boot_pd]
  mov ecx, 2048
2: mov [ebx], eax
  add eax, 0x200000
  add ebx, 8
  loop 2b

  mov eax, cr4
  or eax, 0x20                                  /* PAE */
  mov cr4, eax
  lea eax, [boot_pml4]
  mov cr3, eax
  mov ecx, 0xc0000080                           /* EFER */
  rdmsr
  or eax, 0x100                                 /* LME */
  bt ebp, 20
  jnc 3f
  or eax, 0x800                                 /* NXE */
3: wrmsr
  mov eax, cr0
  and eax, 0x9fffffff                           /* caches on: not CD, not NW */
  and eax, ~4                                   /* not EM */
  or eax, 0x8001002b                            /* PG WP NE TS MP PE: TS for the host's whole life */
  mov cr0, eax
  lgdt [boot_gdtr]
  .byte 0xea                                    /* jmp 8:long_mode */
  .long long_mode
  .short 8

/* Say so on COM1 as the firmware left it, and stop. */
no_long_mode:
  lea esi, [no_long_mode_text]
1: lodsb
  test al, al
  jz 2f
  mov dx, 0x3f8
  out dx, al
  jmp 1b
2: cli
  hlt
  jmp 2b
no_long_mode_text:
  .asciz "[hv] error: not started by PVH or multiboot2, or the processor has no 64-bit mode\r\n"

.code64
long_mode:
  mov ax, 16
  mov ds, ax
  mov es, ax
  mov ss, ax
  xor eax, eax
  mov fs, ax
  mov gs, ax
  lea rsp, [rip + boot_stack_top]
  xor ebp, ebp                                  /* ends the chain of frame pointers */
  mov edi, edi
  mov esi, esi
  call boot_start
  ud2

.section .rodata.boot,"a"
.balign 16
boot_gdt:
  .quad 0
  .quad 0x00af9b000000ffff                      /* 8: 64-bit code */
  .quad 0x00cf93000000ffff                      /* 16: data */
boot_gdtr:
  .short 23
  .quad boot_gdt

.section .bss.boot,"aw",@nobits
.balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd: .skip 4 * 4096
.global boot_stack_guard
boot_stack_guard: .skip 4096                    /* unmapped by the real tables */
boot_stack: .skip 512 * 1024                    /* bring-up takes a third of it for ever, making a VM a quarter at times */
.global boot_stack_top
boot_stack_top:
