/* Hardware task switches in 32-bit protected mode. The steps of an excursion call these; EDX holds the step's value. */

.section .text.tasks,"ax"
.code32
/* A far JMP and CALL to the pointer at EDX; the flags afterwards. */
.global task_jump
task_jump:
  jmp fword ptr [edx]
  pushfd
  pop eax
  ret
.global task_call
task_call:
  call fword ptr [edx]
  pushfd
  pop eax
  ret
.global task_int
task_int:
  int 0x20
  pushfd
  pop eax
  ret
.global task_ud
task_ud:
  ud2
  pushfd
  pop eax
  ret
/* A load of selector EDX into GS. */
.global task_gs
task_gs:
  mov gs, edx
  pushfd
  pop eax
  ret
/* IRET with NT: to the back link. */
.global task_return
task_return:
  pushfd
  or dword ptr [esp], 0x4000
  popfd
  iretd
  pushfd
  pop eax
  ret
/* DR6, which becomes EDX. */
.global task_dr6
task_dr6:
  mov eax, dr6
  mov dr6, edx
  ret
/* DR7, which becomes EDX. */
.global task_dr7
task_dr7:
  mov eax, dr7
  mov dr7, edx
  ret
.global task_tr
task_tr:
  xor eax, eax
  str ax
  ret
/* An NMI to this processor; the local APIC is at EDX. */
.global task_nmi
task_nmi:
  mov dword ptr [edx + 0x300], 0x400
  nop
  ret

/* The other task: notes what it finds, and goes back as task_back says. Relative to EIP only in its jumps. */
.global task_other
task_other:
  mov [task_log], eax
  mov [task_log + 4], esp
  mov [task_log + 8], ebp
  pushfd
  pop eax
  mov [task_log + 12], eax
  xor eax, eax
  str ax
  mov [task_log + 16], eax
  mov eax, cr0
  mov [task_log + 20], eax
  mov eax, cr3
  mov [task_log + 24], eax
  mov eax, dr7
  mov [task_log + 28], eax
  inc dword ptr [task_log + 32]
  xor eax, eax
  sldt ax
  mov [task_log + 36], eax
  mov eax, [task_skip]                          /* EIP of the task that was interrupted */
  mov ecx, [task_saved_eip]
  add [ecx], eax
  clts
  mov eax, [task_pop]                           /* the error code */
  test eax, eax
  jz 1f
  pop dword ptr [task_log + 40]
1:
  mov eax, [task_back]
  test eax, eax
  jnz 2f
  iretd
  jmp task_other
2:
  jmp fword ptr [task_back_pointer]
  jmp task_other

.section .data.tasks,"aw"
.balign 8
task_back_pointer:
  .long 0
  .word 0x28
.balign 8
.global task_log, task_skip, task_saved_eip, task_pop, task_back
task_log:
  .fill 16, 4, 0
task_skip:
  .long 0
task_saved_eip:
  .long 0
task_pop:
  .long 0
task_back:
  .long 0
.code64
