// A program with static probes, whose arguments are wherever compilers leave them; or
// a library of them (-DLIBRARY), or the program that uses it (-DUSER). The notes are
// written out, as <sys/sdt.h> has them, which need not be installed.
//
//   probes visit N    comes to each location N times, with values in series
//   probes count N    does so, and writes for each probe how often it came there, and the
//                     sum of the values that are not negative: "name times sum"
//   probes watch      writes a byte and, for each byte that it reads, whether the
//                     semaphore says that there is someone who watches
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void visit(int n);
void tell(void);
int watched(void);

#ifndef USER

#ifdef __i386__
#define ADDRESS ".4byte"
#else
#define ADDRESS ".8byte"
#endif

// NOTE is the note of a location at label 990.
#define NOTE(provider, name, semaphore, arguments) \
	".pushsection .note.stapsdt, \"?\", \"note\"\n" \
	".balign 4\n" \
	".4byte 992f - 991f, 994f - 993f, 3\n" \
	"991: .asciz \"stapsdt\"\n" \
	"992: .balign 4\n" \
	"993: " ADDRESS " 990b, _.stapsdt.base, " semaphore "\n" \
	".asciz \"" provider "\", \"" name "\", \"" arguments "\"\n" \
	"994: .balign 4\n" \
	".popsection\n" \
	".ifndef _.stapsdt.base\n" \
	".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n" \
	".weak _.stapsdt.base\n" \
	".hidden _.stapsdt.base\n" \
	"_.stapsdt.base: .space 1\n" \
	".size _.stapsdt.base, 1\n" \
	".popsection\n" \
	".endif\n"
#define PROBE(name, arguments) "990: nop\n" NOTE("test", name, "0", arguments)
// The kernel may put a call in place of this one.
#define PROBE5(name, arguments) "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n" NOTE("test", name, "0", arguments)

static struct {
	const char *name;
	unsigned long long times, sum;
} probes[64];

static void came(const char *name, long long value)
{
	int i = 0;

	while (probes[i].name && strcmp(probes[i].name, name))
		i++;
	probes[i].name = name;
	probes[i].times++;
	probes[i].sum += value < 0 ? 0 : value;
}

// Values that use all bits of their types, up to 40, with both signs.
static unsigned long long series = 1;

static long long next(void)
{
	series = series * 6364136223846793005 + 1442695040888963407;
	return (long long)series >> 24;
}

// LOCATION is a location of the probe at which the argument is the value v of a type. It
// counts the value that is there by the rules of C.
#define LOCATION(name, type, v, code, ...) \
	do { \
		long long v_ = (v); \
		asm volatile(code : : __VA_ARGS__); \
		came(name, (type)v_); \
	} while (0)

unsigned short test_semaphore __attribute__((section(".probes")));

#ifdef __i386__

static void locations(void)
{
	int words[64], v, i = next() & 31;

	v = next();
	LOCATION("register4s", int, v, "mov %0, %%esi\n" PROBE("register4s", "-4@%%esi"), "r"(v) : "esi");
	v = next();
	LOCATION("high", unsigned char, v >> 8, "mov %0, %%eax\n" PROBE("high", "1@%%ah"), "r"(v) : "eax");
	v = words[60] = next();
	LOCATION("displaced", unsigned, v, "mov %0, %%esi\n" PROBE("displaced", "4@-16(%%esi)"), "r"(words + 64), "m"(words) : "esi");
	v = words[63 - i] = next();
	LOCATION("indexed_back", int, v, "mov %0, %%ecx\nmov %1, %%edx\n" PROBE("indexed_back", "-4@12(%%ecx,%%edx,4)"), "r"(words + 60), "r"(-i), "m"(words) : "ecx", "edx");
	if (watched())
		LOCATION("guarded", int, 3, "990: nop\n" NOTE("test", "guarded", "test_semaphore", "-4@$3"), "r"(0));
}

#else

// The value is on the stack, 8 bytes above its end, in a function without frame pointer.
#define PUSH "sub $256, %%rsp\n.cfi_adjust_cfa_offset 256\nmov %0, 8(%%rsp)\n"
#define POP "add $256, %%rsp\n.cfi_adjust_cfa_offset -256\n"

#define RUBBISH 0x5a5a5a5a00000000

long total;
static int table[256] __attribute__((used));

// What a value is at various places, one after the other.
static void registers(void)
{
	long long v;

	v = next() & 0xffffffffff;
	LOCATION("register8", long long, v, "mov %0, %%r12\n" PROBE("register8", "8@%%r12"), "r"(v) : "r12");
	v = next();
	LOCATION("register4", unsigned, v, "mov %0, %%r13\n" PROBE("register4", "4@%%r13d"), "r"(v) : "r13");
	v = next();
	LOCATION("register4s", int, v, "mov %0, %%rbx\n" PROBE("register4s", "-4@%%ebx"), "r"(v) : "rbx");
	v = next();
	LOCATION("register2", unsigned short, v, "mov %0, %%rcx\n" PROBE("register2", "2@%%cx"), "r"(v) : "rcx");
	v = next();
	LOCATION("register2s", short, v, "mov %0, %%rdx\n" PROBE("register2s", "-2@%%dx"), "r"(v) : "rdx");
	v = next();
	LOCATION("register1", unsigned char, v, "mov %0, %%rsi\n" PROBE("register1", "1@%%sil"), "r"(v) : "rsi");
	v = next();
	LOCATION("register1s", signed char, v, "mov %0, %%r8\n" PROBE("register1s", "-1@%%r8b"), "r"(v) : "r8");
	v = next();
	LOCATION("high", unsigned char, v >> 8, "mov %0, %%rax\n" PROBE("high", "1@%%ah"), "r"(v) : "rax");
	// More bytes than the register has: it is extended.
	v = next();
	LOCATION("narrow", int, v, "mov %0, %%rdi\n" PROBE("narrow", "-8@%%edi"), "r"(v) : "rdi");
}

static void constants(void)
{
	LOCATION("constant", int, 5, PROBE("constant", "4@$5"), "r"(0));
	LOCATION("negative", int, -5, PROBE("negative", "-4@$-5"), "r"(0));
	LOCATION("all_ones", unsigned char, -1, PROBE("all_ones", "1@$-1"), "r"(0));
}

static void memory(void)
{
	long long cells[64], v;
	int words[64];
	long i = next() & 31;

	v = next() & 0xffffffffff;
	cells[2] = v;
	LOCATION("displaced", long long, v, "mov %0, %%r8\n" PROBE("displaced", "8@-16(%%r8)"), "r"(cells + 4), "m"(cells) : "r8");
	v = next();
	*(int *)cells = v;
	LOCATION("pointed", int, v, "mov %0, %%r8\n" PROBE("pointed", "-4@(%%r8)"), "r"(cells), "m"(cells) : "r8");
	v = next() & 0xffffffffff;
	cells[i] = v;
	LOCATION("indexed", long long, v, "mov %0, %%r8\nmov %1, %%r9\n" PROBE("indexed", "8@(%%r8,%%r9,8)"), "r"(cells), "r"(i), "m"(cells) : "r8", "r9");
	v = next();
	words[63 - i] = v;
	LOCATION("indexed_back", unsigned, v, "mov %0, %%r8\nmov %1, %%r9\n" PROBE("indexed_back", "4@12(%%r8,%%r9,4)"), "r"(words + 60), "r"(-i), "m"(words) : "r8", "r9");
	v = next();
	*(short *)(cells + 1) = v;
	LOCATION("index_alone", short, v, "mov %0, %%r9\n" PROBE("index_alone", "-2@-16(,%%r9,8)"), "r"((long)(cells + 3) / 8), "m"(cells) : "r9");
	v = next();
	*(signed char *)(cells + 1) = v;
	LOCATION("byte", unsigned char, v, "mov %0, %%r10\nmov $1, %%r11\n" PROBE("byte", "1@7(%%r10,%%r11)"), "r"(cells), "m"(cells) : "r10", "r11");
	v = next() & 0xffffffffff;
	LOCATION("stack", long long, v, PUSH PROBE("stack", "8@8(%%rsp)") POP, "r"(v) : "memory");
	v = total = next() & 0xffffffffff;
	LOCATION("global", long long, v, PROBE("global", "8@total(%%rip)"), "m"(total));
	v = table[2] = next();
	LOCATION("static", int, v, PROBE("static", "-4@8+table(%%rip)"), "m"(table));
	v = table[3] = next();
	LOCATION("static_after", unsigned, v, PROBE("static_after", "4@table+12(%%rip)"), "m"(table));
#if !defined(__PIC__) && !defined(__PIE__)
	v = table[5 + i] = next();
	LOCATION("absolute", int, v, "mov %0, %%r9\n" PROBE("absolute", "-4@table+20(,%%r9,4)"), "r"(i), "m"(table) : "r9");
#endif
	static int *low;
	if (!low)
		low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	v = low[1] = next();
	LOCATION("address_of_32_bits", int, v, "mov %0, %%r8\n" PROBE("address_of_32_bits", "-4@4(%%r8d)"), "r"((long)low + RUBBISH), "m"(*low) : "r8", "memory");
	LOCATION("nowhere", int, 0, "mov $16, %%r8\n" PROBE("nowhere", "-4@(%%r8)"), "r"(0) : "r8");
}

// The probe "many" has several locations, whose arguments are at different places, and at
// the same.
static void many(void)
{
	long long v, cell;

	v = next();
	LOCATION("many", int, v, "mov %0, %%rax\n" PROBE5("many", "8@$1 -4@%%eax"), "r"(v) : "rax");
	v = next();
	LOCATION("many", int, v, "mov %0, %%rcx\n" PROBE5("many", "8@$2 -4@%%ecx"), "r"(v) : "rcx");
	v = next();
	LOCATION("many", int, v, "mov %0, %%r11\n" PROBE5("many", "8@$3 -4@%%r11d"), "r"(v) : "r11");
	v = next();
	LOCATION("many", int, v, "mov %0, %%rax\n" PROBE("many", "8@$4 -4@%%eax"), "r"(v) : "rax");
	v = cell = next();
	LOCATION("many", int, v, "mov %0, %%rdx\n" PROBE("many", "8@$5 -4@(%%rdx)"), "r"(&cell), "m"(cell) : "rdx");
	v = next();
	LOCATION("many", int, v, PUSH PROBE5("many", "8@$6 -4@8(%%rsp)") POP, "r"(v) : "memory");
	LOCATION("many", int, 7, PROBE("many", "8@$7 -4@$7"), "r"(0));
}

// As programs have it: nothing is done for a probe that nobody watches.
static void guarded(void)
{
	if (watched())
		LOCATION("guarded", int, 3, "990: nop\n" NOTE("test", "guarded", "test_semaphore", "-4@$3"), "r"(0));
}

static void locations(void)
{
	registers();
	constants();
	memory();
	many();
	guarded();
}
#endif

int watched(void) { return *(volatile unsigned short *)&test_semaphore != 0; }

void visit(int n)
{
	while (n--)
		locations();
}

void tell(void)
{
	for (int i = 0; probes[i].name; i++)
		printf("%s %llu %llu\n", probes[i].name, probes[i].times, probes[i].sum);
}

#endif

#ifndef LIBRARY
int main(int argc, char **argv)
{
	char c = '.';

	if (argc == 3) {
		visit(atoi(argv[2]));
		if (!strcmp(argv[1], "count"))
			tell();
		return 0;
	}
	while (write(1, &c, 1) == 1 && read(0, &c, 1) == 1)
		c = '0' + watched();
	return 0;
}
#endif
