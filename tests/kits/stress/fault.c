// SIGSEGV: probes that may fault and go on, and pages that are repaired so that the instruction is executed again.
#include "stress.h"

#ifdef __x86_64__
enum { SYS_SIGACTION = 13, SIGNAL_ADDRESS = 16, REGISTERS = 40, REG_IP = 16, REG_ERROR = 19, REG_CR2 = 22 };
#else
enum { SYS_SIGACTION = 174, SIGNAL_ADDRESS = 12, REGISTERS = 20, REG_ERROR = 13, REG_IP = 14, REG_CR2 = 21 };
#endif
enum { SIGSEGV = 11, SA_SIGINFO = 4, SA_RESTORER = 0x4000000 };

struct fault probe_fault;
volatile u32 *repairs;
word repairs_begin, repairs_end;
int no_execute;
// Where a probe calls, while it does.
static const void *volatile call_target;

static void on_fault(int signal, const u8 *info, u8 *context) {
    word *registers = (word *)(context + REGISTERS);
    word address = *(const word *)(info + SIGNAL_ADDRESS), ip = registers[REG_IP];
    u32 code = (u32)((const int *)info)[2], error = (u32)registers[REG_ERROR];
    CHECK(signal == SIGSEGV, "signal %u", (u32)signal);
    CHECK(address == registers[REG_CR2], "si_addr %p, but CR2 %p", address, registers[REG_CR2]);

    const u8 *go_on = 0;
    if (ip == (word)load_at)
        go_on = load_failed;
    else if (ip == (word)store_at)
        go_on = store_failed;
    else if (call_target && ip == (word)call_target)
        go_on = call_failed;
    if (go_on) {
        probe_fault = (struct fault){address, probe_fault.count + 1, code, error};
        registers[REG_IP] = (word)go_on;
        return;
    }
    // Each page's counter belongs to the one process that uses the page.
    if (address >= repairs_begin && address < repairs_end) {
        word page = address & ~(word)(PAGE - 1);
        repairs[(page - repairs_begin) / PAGE]++;
        CHECK(protect((void *)page, PAGE, READ | WRITE) == 0, "mprotect in the handler fails");
        return;
    }
    fail("unexpected SIGSEGV at %p, address %p, code %u, error code %x", ip, address, code, error);
}

// The sigaction that the kernel knows.
struct action {
    void (*handler)(int, const u8 *, u8 *);
    word flags;
    void (*restorer)(void);
    u64 mask;
} __attribute__((packed, aligned(4)));

void catch_signal(int signal, void (*handler)(int, const u8 *, u8 *)) {
    struct action action = {handler, SA_SIGINFO | SA_RESTORER, signal_return, 0};
    long result = system_call(SYS_SIGACTION, (word)signal, (word)&action, 0, 8, 0, 0);
    CHECK(result == 0, "rt_sigaction: error %u", (u32)-result);
}

void catch_faults(void) {
    catch_signal(SIGSEGV, on_fault);

    // Is there an NX bit? A page that is not executable tells.
    u32 *code = map(0, PAGE, READ | WRITE, PRIVATE | ANONYMOUS, -1, 0), value = 0;
    ((u8 *)code)[0] = 0xc3;
    no_execute = !try_probe_call(code, &value);
    unmap(code, PAGE);
}

int try_probe_call(const void *at, u32 *result) {
    call_target = at;
    int done = try_call(at, result);
    call_target = 0;
    return done;
}
