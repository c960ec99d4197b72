/* Entry of every vector: stub n lies at trap_stubs + 16 n. All save the registers as machine::trap::Frame and call
   kit_trap(frame). */

.section .text.trap,"ax"
.altmacro
.macro TRAP_STUB n
  .balign 16
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
  call kit_trap
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

/* kit_catch(function, argument) -> 0 if the function returned, 1 if a trap went to kit_catch_landing. */
.global kit_catch
kit_catch:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  pushfq
  mov rax, rsp
  mov [kit_catch_rsp], rax
  mov rax, rdi
  mov rdi, rsi
  sub rsp, 8
  and rsp, -16
  call rax
  xor eax, eax
  mov rsp, [kit_catch_rsp]
  jmp 1f
.global kit_catch_landing
kit_catch_landing:
  mov eax, 1
1:
  mov qword ptr [kit_catch_rsp], 0
  popfq
  pop r15
  pop r14
  pop r13
  pop r12
  pop rbp
  pop rbx
  ret

/* kit_user(entry, argument, stack, value): runs `entry` in user mode on the stack, with the argument in RDI and the value in
   RCX, until a trap goes to kit_catch_landing (as kit_catch). */
.global kit_user
kit_user:
  push rbx
  push rbp
  push r12
  push r13
  push r14
  push r15
  pushfq
  mov rax, rsp
  mov [kit_catch_rsp], rax
  push 0x23
  push rdx
  pushfq
  push 0x2b
  push rdi
  mov rdi, rsi
  iretq

.section .bss.user,"aw",@nobits
.balign 8
.global kit_catch_rsp
kit_catch_rsp:
  .skip 8
.balign 4096
  .skip 8192
.global kit_user_stack_top
kit_user_stack_top:
.balign 16
  .skip 16384
.global kit_trap_stack_top
kit_trap_stack_top:
  .skip 8192
.global kit_fault_stack_top
kit_fault_stack_top:
