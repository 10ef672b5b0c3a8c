// The switch of fibers; see fiber.h.
#include "machine.h"

#ifndef EMULATOR_UCONTEXT
#if defined(__x86_64__)
// An indirect jump instead of `ret`, whose prediction would be wrong after every switch.
asm(".text\n.p2align 4\n.globl monolane_switch_stack\n.hidden monolane_switch_stack\n"
    ".type monolane_switch_stack,@function\nmonolane_switch_stack:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "popq %rcx\njmpq *%rcx\n"
    ".size monolane_switch_stack,.-monolane_switch_stack\n");
#else
asm(".text\n.p2align 4\n.globl monolane_switch_stack\n.hidden monolane_switch_stack\n"
    ".type monolane_switch_stack,%function\nmonolane_switch_stack:\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\n"
    "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\nbr x30\n"
    ".size monolane_switch_stack,.-monolane_switch_stack\n");
#endif
#endif
