// Loads object files into anonymous memory and tells of them by GDB's JIT
// interface, as JIT compilers do; then unloads them, and others take their
// place. The objects are named by the arguments. Where the first of these is
// "untold", libgcc alone is told of them; where it is "table", of two at once.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

struct entry_of_code {
	entry_of_code *next, *prev;
	const char *symfile;
	uint64_t size;
};

enum { NOTHING, REGISTER, UNREGISTER };

extern "C" {
struct descriptor {
	uint32_t version, action;
	entry_of_code *relevant, *first;
} __jit_debug_descriptor = {1, NOTHING, nullptr, nullptr};

__attribute__((noinline)) void __jit_debug_register_code() { asm volatile("" ::: "memory"); }

void __register_frame(void *);
void __register_frame_table(void *);
void __deregister_frame(void *);
}

struct host {
	long (*call)(const host *, long (*)(const host *, long), long);
	long (*raise)(long);
};

static long call(const host *h, long (*f)(const host *, long), long n) { return f ? f(h, n) : n + 1; }
static long raise_it(long n) { throw n; }

struct object {
	entry_of_code listed;
	std::vector<char> file;
	void *frames;
	long (*entry)(const host *, long);
};

static void check(bool ok, const char *what) {
	if (!ok) {
		fprintf(stderr, "%s\n", what);
		exit(1);
	}
}

static bool told = true;

// libgcc is told of the object, unless frames is to have what it would be told.
static object *load(const char *path, char *room, size_t size, void **frames = nullptr) {
	object *o = new object();
	FILE *f = fopen(path, "rb");
	check(f, path);
	char buf[4096];
	for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0;)
		o->file.insert(o->file.end(), buf, buf + n);
	fclose(f);

	char *file = o->file.data(), *at = room;
	auto *header = (Elf64_Ehdr *)file;
	auto *sections = (Elf64_Shdr *)(file + header->e_shoff);
	const char *names = file + sections[header->e_shstrndx].sh_offset;
	for (int i = 0; i < header->e_shnum; i++) {
		Elf64_Shdr &s = sections[i];
		if (!(s.sh_flags & SHF_ALLOC) || !s.sh_size)
			continue;
		at = (char *)(((uintptr_t)at + 63) & ~63ul);
		check(at + s.sh_size + 8 <= room + size, "no room");
		if (s.sh_type == SHT_NOBITS)
			memset(at, 0, s.sh_size);
		else
			memcpy(at, file + s.sh_offset, s.sh_size);
		s.sh_addr = (uintptr_t)at;
		at += s.sh_size;
		if (!strcmp(names + s.sh_name, ".eh_frame")) {
			o->frames = (void *)s.sh_addr;
			memset(at, 0, 4);
			at += 4;
		}
	}
	for (int i = 0; i < header->e_shnum; i++) {
		Elf64_Shdr &r = sections[i];
		if (r.sh_type == SHT_SYMTAB) {
			auto *sym = (Elf64_Sym *)(file + r.sh_offset);
			for (size_t n = 0; n < r.sh_size / sizeof *sym; n++)
				if (!strcmp(file + sections[r.sh_link].sh_offset + sym[n].st_name, "entry"))
					o->entry = (long (*)(const host *, long))(sections[sym[n].st_shndx].sh_addr + sym[n].st_value);
		}
		if (r.sh_type != SHT_RELA || !(sections[r.sh_info].sh_flags & SHF_ALLOC))
			continue;
		auto *symbols = (Elf64_Sym *)(file + sections[r.sh_link].sh_offset);
		auto *rela = (Elf64_Rela *)(file + r.sh_offset);
		for (size_t n = 0; n < r.sh_size / sizeof *rela; n++) {
			Elf64_Sym &sym = symbols[ELF64_R_SYM(rela[n].r_info)];
			check(sym.st_shndx != SHN_UNDEF && sym.st_shndx < SHN_LORESERVE, "a symbol of elsewhere");
			char *place = (char *)sections[r.sh_info].sh_addr + rela[n].r_offset;
			uint64_t value = sections[sym.st_shndx].sh_addr + sym.st_value + rela[n].r_addend;
			switch (ELF64_R_TYPE(rela[n].r_info)) {
			case R_X86_64_64: memcpy(place, &value, 8); break;
			case R_X86_64_PC32: case R_X86_64_PLT32: value -= (uintptr_t)place; memcpy(place, &value, 4); break;
			case R_X86_64_PC64: value -= (uintptr_t)place; memcpy(place, &value, 8); break;
			default: check(false, "a relocation of another kind");
			}
		}
	}
	check(o->entry && o->frames, "no entry");
	if (frames)
		*frames = o->frames;
	else
		__register_frame(o->frames);
	if (!told)
		return o;
	o->listed = {__jit_debug_descriptor.first, nullptr, file, o->file.size()};
	if (o->listed.next)
		o->listed.next->prev = &o->listed;
	__jit_debug_descriptor.first = __jit_debug_descriptor.relevant = &o->listed;
	__jit_debug_descriptor.action = REGISTER;
	__jit_debug_register_code();
	return o;
}

static void unload(object *o) {
	if (!told) {
		__deregister_frame(o->frames);
		delete o;
		return;
	}
	if (o->listed.next)
		o->listed.next->prev = o->listed.prev;
	if (o->listed.prev)
		o->listed.prev->next = o->listed.next;
	else
		__jit_debug_descriptor.first = o->listed.next;
	__jit_debug_descriptor.relevant = &o->listed;
	__jit_debug_descriptor.action = UNREGISTER;
	__jit_debug_register_code();
	__deregister_frame(o->frames);
	delete o;
}

static long use(object *o, long n) {
	static const host h = {call, raise_it};
	long sum = o->entry(&h, n);
	try {
		sum += o->entry(&h, -n);
	} catch (long thrown) {
		sum += thrown;
	}
	return sum;
}

int main(int argc, char **argv) {
	const size_t size = 1 << 16;
	char *room = (char *)mmap(nullptr, 3 * size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long sum = 0, rounds = 1;
	check(room != MAP_FAILED && argc > 2, "objects are to be named");
	bool table = !strcmp(argv[1], "table");
	if (table || !strcmp(argv[1], "untold"))
		argc--, argv++, told = false;
	void *frames[3] = {};
	object *stays = load(argv[1], room + size, size, table ? &frames[0] : nullptr), *also = stays;
	if (table) {
		also = load(argv[2], room + 2 * size, size, &frames[1]);
		__register_frame_table(frames);
	}
	if (!strcmp(argv[argc - 1], "forever"))
		argc--, rounds = 1L << 40;
	getppid();
	while (rounds-- > 0)
		for (int i = 1; i < argc; i++) {
			object *o = load(argv[i], room, size);
			sum += use(o, 5 + i) + use(stays, 4);
			if (table)
				sum += use(also, 3);
			unload(o);
		}
	printf("%ld\n", sum);
	return 0;
}
