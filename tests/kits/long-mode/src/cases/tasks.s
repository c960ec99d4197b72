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
/* The word at EDX. */
.global task_load
task_load:
  mov eax, [edx]
  ret
/* Other tasks that stay: they end the step in which they began. The second one runs in user mode, and finds its CS. */
.global task_stays
task_stays:
  int 0x80
.global task_user
task_user:
  mov [task_log + 4], esp
  xor eax, eax
  mov eax, cs
  int 0x80
/* An NMI to this processor; the local APIC is at EDX. */
.global task_nmi
task_nmi:
  mov dword ptr [edx + 0x300], 0x400
  nop
  ret

/* An NMI handler: counts, and sends the next one as long as there are fewer than task_nmi_row; it has to wait for IRET. Notes
   how often it came elsewhere than the first one did, or while another one ran. */
.global task_nmi_handler
task_nmi_handler:
  pushad
  inc dword ptr [task_nmi_count]
  inc dword ptr [task_nmi_depth]
  cmp dword ptr [task_nmi_depth], 1
  je 1f
  inc dword ptr [task_nmi_nested]
1:
  mov eax, [esp + 32]                           /* EIP of the frame */
  cmp dword ptr [task_nmi_count], 1
  jne 2f
  mov [task_nmi_first], eax
2:
  cmp eax, [task_nmi_first]
  je 3f
  inc dword ptr [task_nmi_elsewhere]
3:
  mov eax, [task_nmi_count]
  cmp eax, [task_nmi_row]
  jae 4f
  mov dword ptr [0xfee00300], 0x400
  xor eax, eax
  cpuid                                         /* an exit, where there is a hypervisor */
4:
  dec dword ptr [task_nmi_depth]
  popad
  iretd

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
  mov eax, [task_nmi_row]                       /* as an NMI handler: the next one, which has to wait for IRET */
  cmp eax, [task_log + 32]
  jbe 3f
  mov dword ptr [0xfee00300], 0x400
  nop
3:
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
.global task_nmi_row, task_nmi_count, task_nmi_nested, task_nmi_first, task_nmi_elsewhere
task_nmi_row:
  .long 0
task_nmi_count:
  .long 0
task_nmi_depth:
  .long 0
task_nmi_nested:
  .long 0
task_nmi_first:
  .long 0
task_nmi_elsewhere:
  .long 0
.code64
