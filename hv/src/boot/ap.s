/* The way of every other processor (AP) from its start-up interrupt to long mode: Intel SDM 3, 9.4.4; AMD APM 2, 14.8.

   The code between ap_start and ap_start_end is copied to the page below 1 MiB that the interrupt names. It needs nothing
   of its place, and leaves it with its last instruction: the rest runs where the image lies, on the host's own tables from
   the first access on. boot::smp writes ap_root, ap_efer and ap_stack. */

.section .rodata.ap,"a"
.code16
.global ap_start
ap_start:
  cli
  cld
  movw %cs, %ax
  movw %ax, %ds
  lgdtl ap_gdtr - ap_start
  movl %cr0, %eax
  orl $1, %eax                                  /* PE */
  movl %eax, %cr0
  ljmpl $24, $ap_protected
.balign 4
ap_gdtr:
  .short 31
  .long ap_gdt
.global ap_start_end
ap_start_end:

.balign 16
ap_gdt:
  .quad 0
  .quad 0x00af9b000000ffff                      /* 8: 64-bit code */
  .quad 0x00cf93000000ffff                      /* 16: data */
  .quad 0x00cf9b000000ffff                      /* 24: 32-bit code */

.section .boot.text,"ax"
.code32
ap_protected:
  movl $16, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %ss
  movl $0x20, %eax                              /* PAE */
  movl %eax, %cr4
  movl ap_root, %eax
  movl %eax, %cr3
  movl $0xc0000080, %ecx                        /* EFER: LME, NXE */
  rdmsr
  orl ap_efer, %eax
  wrmsr
  movl %cr0, %eax
  andl $0x9ffffffb, %eax                        /* caches on: not CD, not NW; not EM */
  orl $0x8001002b, %eax                         /* PG WP NE TS MP PE */
  movl %eax, %cr0
  ljmpl $8, $ap_long

.code64
ap_long:
  movl $16, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %ss
  xorl %eax, %eax
  movl %eax, %fs
  movl %eax, %gs
  xchgq %rax, ap_stack(%rip)                    /* 0: the PCPU that starts this one has given up */
  testq %rax, %rax
  jz 1f
  movq %rax, %rsp
  xorl %ebp, %ebp                               /* ends the chain of frame pointers */
  popq %rdi                                     /* which leaves the stack at its top, a multiple of 16 */
  call boot_ap
1:cli                                           /* too late: given up */
  hlt
  jmp 1b

.section .data.ap,"aw"
.balign 8
.global ap_stack
ap_stack: .quad 0                               /* where the address of the PerCpu is on the AP's stack */
.global ap_root
ap_root: .long 0                                /* root of the host's tables */
.global ap_efer
ap_efer: .long 0                                /* bits of EFER to set */

.text                                           /* whatever the compiler puts behind this */
