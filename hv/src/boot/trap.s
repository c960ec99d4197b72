/* Entry of every interrupt and exception vector. Stub n lies at trap_stubs + 16 n; all end in trap_common, which
   saves the registers as boot::trap::TrapFrame and calls boot_trap(frame). */

.section .text.trap,"ax"
.altmacro
.macro TRAP_STUB n
  .balign 16
  /* #DF #TS #NP #SS #GP #PF #AC #CP #VC #SX push an error code themselves */
  .if !(\n == 8 || (\n >= 10 && \n <= 14) || \n == 17 || \n == 21 || \n == 29 || \n == 30)
  push 0
  .endif
  push \n
  jmp trap_common
.endm
.balign 16
.global trap_stubs
trap_stubs:
.set vector, 0
.rept 256
  TRAP_STUB %vector
  .set vector, vector + 1
.endr
.noaltmacro

trap_common:
  push rax
  push rcx
  push rdx
  push rbx
  push rbp
  push rsi
  push rdi
  push r8
  push r9
  push r10
  push r11
  push r12
  push r13
  push r14
  push r15
  mov rdi, rsp
  cld
  call boot_trap
  pop r15
  pop r14
  pop r13
  pop r12
  pop r11
  pop r10
  pop r9
  pop r8
  pop rdi
  pop rsi
  pop rbp
  pop rbx
  pop rdx
  pop rcx
  pop rax
  add rsp, 16
  iretq
