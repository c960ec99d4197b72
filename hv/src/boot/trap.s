/* Entry of every interrupt and exception vector. Stub n lies at trap_stubs + 16 n; all save the registers as
   boot::trap::TrapFrame and call boot_trap(frame): exceptions in trap_common, on the stack on which they arrive, interrupts in
   interrupt_common, which first goes back to the stack that they interrupted. */

.section .text.trap,"ax"
.altmacro
.macro TRAP_STUB n
  .balign 16
  /* #DF #TS #NP #SS #GP #PF #AC #CP #VC #SX push an error code themselves */
  .if !(\n == 8 || (\n >= 10 && \n <= 14) || \n == 17 || \n == 21 || \n == 29 || \n == 30)
  push 0
  .endif
  push \n
  .if \n < 32
  jmp trap_common
  .else
  jmp interrupt_common
  .endif
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

.macro SAVE_REGISTERS
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
.endm

trap_common:
  SAVE_REGISTERS
  mov rdi, rsp
  cld
  call boot_trap
trap_return:
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

/* The next interrupt begins where this one has, at the top of the interrupt stack: so the frame, of 22 words, is copied to below the red zone
   of the interrupted stack before the interrupt is acknowledged. No other is to come while this is handled, but QEMU does
   deliver one with EFLAGS.IF clear, in rare cases (docs/design/0006). */
interrupt_common:
  SAVE_REGISTERS
  mov rax, [rsp + 20 * 8]
  sub rax, 128 + 22 * 8
  and rax, -16
  mov rsi, rsp
  mov rdi, rax
  mov ecx, 22
  cld
  rep movsq
  mov rsp, rax
  mov rdi, rax
  call boot_trap
  jmp trap_return
