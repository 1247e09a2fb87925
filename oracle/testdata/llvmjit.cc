// Compiles modules of LLVM's intermediate language with ORC and has it tell of them
// by GDB's JIT interface. The arguments name modules, and before them the linker. After
// "untold" libgcc alone is told of them.
#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>

#include "llvm/ExecutionEngine/JITEventListener.h"
#include "llvm/ExecutionEngine/Orc/Debugging/DebuggerSupport.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/Orc/RTDyldObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/SectionMemoryManager.h"
#include "llvm/IRReader/IRReader.h"
#include "llvm/Support/SourceMgr.h"
#include "llvm/Support/TargetSelect.h"

using namespace llvm;
using namespace llvm::orc;

static ExitOnError check;

struct host {
	long (*call)(const host *, long (*)(const host *, long), long);
	long (*raise)(long);
};

static long call(const host *h, long (*f)(const host *, long), long n) { return f ? f(h, n) : n + 1; }
static long raise_it(long n) { throw n; }

static std::unique_ptr<LLJIT> make(bool jitlink, bool told) {
	LLJITBuilder b;
	if (!told)
		b.setObjectLinkingLayerCreator([](ExecutionSession &es, const Triple &) {
			return std::make_unique<RTDyldObjectLinkingLayer>(es, [] { return std::make_unique<SectionMemoryManager>(); });
		});
	else if (jitlink)
		b.setPrePlatformSetup([](LLJIT &j) { return enableDebuggerSupport(j); });
	else
		b.setObjectLinkingLayerCreator([](ExecutionSession &es, const Triple &) {
			auto l = std::make_unique<RTDyldObjectLinkingLayer>(es, [] { return std::make_unique<SectionMemoryManager>(); });
			l->registerJITEventListener(*JITEventListener::createGDBRegistrationListener());
			return l;
		});
	return check(b.create());
}

int main(int argc, char **argv) {
	InitializeNativeTarget();
	InitializeNativeTargetAsmPrinter();
	long (*entries[8])(const host *, long);
	std::unique_ptr<LLJIT> jits[8];
	bool jitlink = false, told = true;
	long n = 0, sum = 0, rounds = 1;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "jitlink") || !strcmp(argv[i], "rtdyld")) {
			jitlink = argv[i][0] == 'j';
			continue;
		}
		if (!strcmp(argv[i], "untold")) {
			told = false;
			continue;
		}
		if (!strcmp(argv[i], "forever")) {
			rounds = 1L << 40;
			continue;
		}
		auto context = std::make_unique<LLVMContext>();
		SMDiagnostic why;
		auto module = parseIRFile(argv[i], why, *context);
		if (!module) {
			why.print(argv[0], errs());
			return 1;
		}
		jits[n] = make(jitlink, told);
		check(jits[n]->addIRModule(ThreadSafeModule(std::move(module), std::move(context))));
		entries[n] = check(jits[n]->lookup("entry")).toPtr<long (*)(const host *, long)>();
		n++;
	}
	static const host h = {call, raise_it};
	getppid();
	while (rounds-- > 0)
		for (long i = 0; i < n; i++) {
			sum += entries[i](&h, 5 + i);
			try {
				sum += entries[i](&h, -5);
			} catch (long thrown) {
				sum += thrown;
			}
		}
	printf("%ld\n", sum);
	return 0;
}
