package loader

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
)

// stapsdtNote is a note of a static probe, of 64 bits.
func stapsdtNote(pc, base, semaphore uint64, texts string) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(len(stapsdtOwner)))
	b = le.AppendUint32(b, uint32(24+len(texts)))
	b = append(le.AppendUint32(b, stapsdtType), stapsdtOwner...)
	for _, word := range []uint64{pc, base, semaphore} {
		b = le.AppendUint64(b, word)
	}
	b = append(b, texts...)
	return append(b, make([]byte, -len(b)&3)...)
}

// imageOf reads the headers of a file.
func imageOf(t testing.TB, path string) *procstate.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	im, err := procstate.NewImage(f, fi.Size(), path)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// Notes of files that are there are read as readelf reads them.
func TestStaticProbesAsReadelf(t *testing.T) {
	testenv.Needs(t, "readelf")
	note := regexp.MustCompile(`Provider: (.*)\n\s*Name: (.*)\n\s*Location: (0x\w+), Base: (0x\w+), Semaphore: (0x\w+)\n\s*Arguments: (.*)\n`)
	seen := make(map[string]bool)
	for _, pattern := range []string{
		"/usr/lib/*/libstdc++.so.6", "/usr/bin/python3.*", "/usr/bin/php8.*", "/usr/lib/*/libruby-*.so.*",
		"/usr/lib/jvm/*/lib/server/libjvm.so", "/usr/lib/postgresql/*/bin/postgres",
	} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			path, err := filepath.EvalSymlinks(path)
			if err != nil || seen[path] {
				continue
			}
			out, err := exec.Command("readelf", "-n", "-W", path).Output()
			if err != nil {
				continue // a script
			}
			base := uint64(0)
			im := imageOf(t, path)
			if s, ok := im.Section(stapsdtBase); ok {
				base = s.Vaddr
			}
			var want []staticProbe
			for _, m := range note.FindAllStringSubmatch(string(out), -1) {
				var words [3]uint64
				for i := range words {
					words[i], _ = strconv.ParseUint(m[3+i], 0, 64)
				}
				if words[1] != base {
					t.Errorf("%s: base %#x, and not %#x", path, base, words[1])
				}
				want = append(want, staticProbe{m[1], m[2], strings.TrimSuffix(m[6], " "), words[0], words[2]})
			}
			got, err := staticProbes(im)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: %d probes, %v; readelf has %d", path, len(got), err, len(want))
			}
			refused := 0
			for _, p := range got {
				if places, err := addLocation(nil, im, &p); err != nil || len(places) != 1 {
					t.Errorf("%s: %+v: %v, %v", path, p, places, err)
				}
				for _, argument := range splitArguments(p.arguments) {
					if _, err := parseArgument(im, p.pc, argument); err != nil {
						refused++
						t.Logf("%s: %s: %v", path, argument, err)
					}
				}
			}
			if len(got) > 0 {
				seen[path] = true
				t.Logf("%s: %d locations, %d arguments refused", path, len(got), refused)
			}
		}
	}
	if len(seen) == 0 {
		t.Error("no file with static probes")
	}
}

func TestParseUSDT(t *testing.T) {
	kernelTest(t)
	const prefix = "usdt:libstdc++.so.6:"
	for _, name := range []string{prefix + "throw", prefix + "libstdcxx:throw", prefix + ":throw"} {
		e, err := ParseEvent(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !e.IsUprobe() || !e.isStaticProbe() || e.Name != name || len(e.places) != 1 || e.config != 0 {
			t.Errorf("%s: %+v", name, e)
		}
	}
	for name, want := range map[string]string{
		"usdt:":                             "should be usdt:FILE:PROVIDER:NAME",
		"usdt:throw":                        "should be usdt:FILE:PROVIDER:NAME",
		"usdt::throw":                       "should be usdt:FILE:PROVIDER:NAME",
		"usdt:/does/not/exist:a:b":          "no such file",
		"usdt:no-library-is-called-so:a":    "no library or program",
		"usdt:/dev/null:a":                  "/dev/null",
		"usdt:" + stackTarget(t) + ":a:b":   "has no static probes",
		prefix + "libstdcxx:trow":           "did you mean " + prefix + "libstdcxx:throw?",
		prefix + "libstdc:throw":            "did you mean " + prefix + "libstdcxx:throw",
		prefix + "thow":                     "did you mean " + prefix + "libstdcxx:throw?",
		prefix + "completely-different":     "libstdc++.so.6 has no probe completely-different; it has libstdcxx:catch, libstdcxx:rethrow, libstdcxx:throw",
		prefix:                              "it has libstdcxx:catch",
		prefix + "elsewhere:nothing-of-all": "has no probe elsewhere:nothing-of-all; it has",
	} {
		_, err := ParseEvent(name)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	var unknown *UnknownEventError
	if _, err := ParseEvent(prefix + "thow"); !errors.As(err, &unknown) || unknown.Near[0] != prefix+"libstdcxx:throw" {
		t.Errorf("misspelt probe: %v", err)
	}
	for name, want := range map[string]string{
		"arg4":  "it has arg1 to arg2",
		"arg0":  "called arg1",
		"ret":   "called arg1",
		"":      "",
		"argx":  "called arg1",
		"arg+1": "called arg1",
	} {
		_, err := ParseWeight(mustParse(t, prefix+"catch"), name)
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) || want == "" && err != nil {
			t.Errorf("weight %s: %v, want %q", name, err, want)
		}
	}
	w, err := ParseWeight(mustParse(t, prefix+"catch"), "arg1:bytes")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Event: mustParse(t, prefix+"throw"), Weight: w}); err == nil || !strings.Contains(err.Error(), "its weight is of event "+prefix+"catch") {
		t.Errorf("weight of another event: %v", err)
	}
}

// Two providers may have probes of a name; a file may be moved after it was linked; and a
// linker may leave the code of a probe out.
func TestStaticProbeLocations(t *testing.T) {
	path := stackTarget(t)
	im := imageOf(t, path)
	main := symbolValue(t, path, "main")
	data, ok := im.Section(".data")
	if !ok {
		t.Fatal("no data")
	}
	bss, _ := im.Section(".bss")
	const base = 0x2000
	notes := slices.Concat(
		stapsdtNote(main, base, 0, "a\x00one\x00\x00"),
		stapsdtNote(main+1, base, data.Vaddr, "a\x00two\x008@%rax\x00"),
		stapsdtNote(main+2, base, 0, "b\x00two\x00\x00"),
		stapsdtNote(0, base, 0, "a\x00out\x00\x00"),
		stapsdtNote(main+3, base, bss.Vaddr+bss.Size-2, "a\x00nowhere\x00\x00"),
		stapsdtNote(main+3, base, main, "a\x00code\x00\x00"),
	)
	for _, moved := range []uint64{0, 0x100000, ^uint64(0xfff)} {
		b := notes
		if moved != 0 { // all but stapsdtBase is as before
			b = bytes.Clone(notes)
			for _, p := range probesInNotes(notes, 8, base) {
				for _, word := range []uint64{p.pc, p.semaphore, base} {
					if word != 0 {
						b = bytes.ReplaceAll(b, binary.LittleEndian.AppendUint64(nil, word), binary.LittleEndian.AppendUint64(nil, word-moved))
					}
				}
			}
		}
		probes := probesInNotes(b, 8, base)
		if len(probes) != 6 || probes[0].pc != main || probes[1].pc != main+1 || probes[1].semaphore != data.Vaddr || probes[0].semaphore != 0 {
			t.Fatalf("moved by %#x: %+v", moved, probes)
		}
	}
	probes := probesInNotes(notes, 8, 0) // without the section nothing is known of a move
	dataOffset, _ := im.OffsetOfVaddr(data.Vaddr, 2)
	offset := fileOffset(t, path, "main")
	for i, want := range []place{
		{offset: offset, pc: main},
		{offset: offset + 1, pc: main + 1, semaphore: dataOffset, arguments: "8@%rax"},
	} {
		places, err := addLocation(nil, im, &probes[i])
		if err != nil || len(places) != 1 || places[0] != want {
			t.Errorf("%v, %v; want %v", places, err, want)
		}
		if again, err := addLocation(places, im, &probes[i]); err != nil || len(again) != 1 {
			t.Errorf("a second time: %v, %v", again, err)
		}
		other := probes[i]
		other.arguments = "4@$1"
		if _, err := addLocation(places, im, &other); err == nil {
			t.Error("two notes of a place that differ")
		}
	}
	if places, err := addLocation(nil, im, &probes[3]); err != nil || len(places) != 0 {
		t.Errorf("code that was left out: %v, %v", places, err)
	}
	for _, p := range probes[4:] {
		if _, err := addLocation(nil, im, &p); err == nil {
			t.Errorf("%s: a semaphore where nothing can be counted", p.name)
		}
	}
	if got, err := semaphoreConfig(dataOffset); err == nil && got != dataOffset<<32 {
		t.Errorf("configuration %#x of %#x", got, dataOffset)
	}
	if _, err := semaphoreConfig(1 << 32); err == nil {
		t.Error("a semaphore beyond 4 GiB")
	}
}

// An argument must be a whole number that is known where to find at each location.
func TestProbeArguments(t *testing.T) {
	kernelTest(t)
	e, file := Event{Name: "usdt:x:y", arch: procstate.AMD64}, stackTarget(t)
	for i := range maxReadings {
		e.places = append(e.places, place{file: file, pc: uint64(i), arguments: "8@%rax 8f@%xmm0 4@" + strconv.Itoa(4*i) + "(%rsp)"})
	}
	w, err := ParseWeight(e, "arg1")
	if err != nil || len(w.operands) != 1 || len(w.at) != maxReadings || w.operandAt(maxReadings-1) != &w.operands[0] {
		t.Errorf("arg1: %+v, %v", w, err)
	}
	w, err = ParseWeight(e, "arg3")
	if err != nil || len(w.operands) != maxReadings || w.operandAt(5).displacement != 20 {
		t.Errorf("arg3: %+v, %v", w, err)
	}
	e.places = append(e.places, place{file: file, pc: 0x4711, arguments: "8@%rax 8f@%xmm0 4@(%rsp,%rax,8)"}, place{file: file, pc: 0x4712, arguments: "8@%rax"})
	for name, want := range map[string]string{
		"arg2": `arg2 is "8f@%xmm0" at 0x0: a floating-point number`,
		"arg3": `no argument "arg3"; it has arg1`,
	} {
		if _, err := ParseWeight(e, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	e.places = e.places[:maxReadings+1]
	if w, err = ParseWeight(e, "arg3"); err != nil {
		t.Fatal(err)
	}
	f, err := ParseFilter(e, "arg1 > 5 && arg3 > 5")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []Sampling{{Event: e, Weight: w}, {Event: e, Filter: f}, {Event: e, Weight: w, Filter: f}} {
		c := source{Sampling: m}
		if _, err := c.allReadings(); err == nil || !strings.Contains(err.Error(), "in 65 different places, more than 64") {
			t.Errorf("arg3: %v", err)
		}
		c.Event.places = c.Event.places[:maxReadings]
		if all, err := c.allReadings(); err != nil || len(all) != maxReadings {
			t.Errorf("%d ways to read them, %v", len(all), err)
		}
	}
}

// Operands as compilers write them, for both processors.
func TestParseArgument(t *testing.T) {
	kernelTest(t)
	pie := imageOf(t, stackTarget(t))
	if pie.Type() != elf.ET_DYN {
		t.Fatalf("%v", pie.Type())
	}
	arm, i386 := headersOnly(t, elf.EM_AARCH64), headersOnly(t, elf.EM_386)
	x := func(n int) register { return register{offset: 8 * n, bits: 64} }
	const rax, rbp, rsp, rbx, r8 = 80, 32, 152, 40, 72
	main := symbolValue(t, stackTarget(t), "main")
	const pc = 0x1000
	for _, c := range []struct {
		im   *procstate.Image
		text string
		want operand
	}{
		{pie, "8@%rax", operand{size: 8, offset: rax}},
		{pie, "-4@%eax", operand{size: 4, signed: true, offset: rax}},
		{pie, "-8@%r8d", operand{size: 4, signed: true, offset: r8}},
		{pie, "2@%bp", operand{size: 2, offset: rbp}},
		{pie, "1@%bpl", operand{size: 1, offset: rbp}},
		{pie, "1@%bh", operand{size: 1, offset: rbx + 1}},
		{pie, "4@$5", operand{constant: 5}},
		{pie, "4@$-1", operand{constant: 1<<32 - 1}},
		{pie, "-4@$-1", operand{signed: true, constant: 1<<64 - 1}},
		{pie, "-4@$4294967295", operand{signed: true, constant: 1<<64 - 1}},
		{pie, "8@$18446744073709551615", operand{constant: 1<<64 - 1}},
		{pie, "2@$0x12345", operand{constant: 0x2345}},
		{pie, "8@-16(%rbp)", operand{size: 8, inMemory: true, base: register{rbp, 64, false}, displacement: ^uint64(15)}},
		{pie, "8@(%rax,%rbx,8)", operand{size: 8, inMemory: true, base: register{rax, 64, false}, index: register{rbx, 64, false}, indexShift: 3}},
		{pie, "8@(%rax,%rbx)", operand{size: 8, inMemory: true, base: register{rax, 64, false}, index: register{rbx, 64, false}}},
		{pie, "4@0x10(,%rbx,4)", operand{size: 4, inMemory: true, index: register{rbx, 64, false}, indexShift: 2, displacement: 16}},
		{pie, "4@8+4(%esp)", operand{size: 4, inMemory: true, base: register{rsp, 32, false}, displacement: 12, address32: true}},
		{pie, "8@4096", operand{size: 8, inMemory: true, displacement: 4096}},
		{pie, "8@main+8(%rip)", operand{size: 8, inMemory: true, base: register{128, 64, false}, displacement: main + 8 - pc}},
		{pie, "8@-8+main(%rip)", operand{size: 8, inMemory: true, base: register{128, 64, false}, displacement: main - 8 - pc}},
		{i386, "-4@-12(%ebp)", operand{size: 4, signed: true, inMemory: true, base: register{rbp, 32, false}, displacement: ^uint64(11), address32: true}},
		{i386, "4@%eax", operand{size: 4, offset: rax}},
		{arm, "4@w0", operand{size: 4}},
		{arm, "8@x1", operand{size: 8, offset: 8}},
		{arm, "-8@w30", operand{size: 4, signed: true, offset: 240}},
		{arm, "8@sp", operand{size: 8, offset: 248}},
		{arm, "8@xzr", operand{}},
		{arm, "-4@7", operand{signed: true, constant: 7}},
		{arm, "-4@#-7", operand{signed: true, constant: 1<<64 - 7}},
		{arm, "2@-1", operand{constant: 0xffff}},
		{arm, "-4@[sp, 12]", operand{size: 4, signed: true, inMemory: true, base: x(31), displacement: 12}},
		{arm, "8@[x29, #-16]", operand{size: 8, inMemory: true, base: x(29), displacement: ^uint64(15)}},
		{arm, "8@[x2]", operand{size: 8, inMemory: true, base: x(2)}},
		{arm, "1@[x2,x3]", operand{size: 1, inMemory: true, base: x(2), index: x(3)}},
		{arm, "8@[x2, x3, lsl 3]", operand{size: 8, inMemory: true, base: x(2), index: x(3), indexShift: 3}},
		{arm, "4@[x2, w3, sxtw #2]", operand{size: 4, inMemory: true, base: x(2), index: register{24, 32, true}, indexShift: 2}},
		{arm, "4@[x2, w3, uxtw]", operand{size: 4, inMemory: true, base: x(2), index: register{24, 32, false}}},
	} {
		got, err := parseArgument(c.im, pc, c.text)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
	for _, c := range []struct {
		im         *procstate.Image
		text, want string
	}{
		{pie, "", "not SIZE@OPERAND"},
		{pie, "%rax", "not SIZE@OPERAND"},
		{pie, "8@", "not SIZE@OPERAND"},
		{pie, "8f@%xmm0", "floating-point"},
		{pie, "-8f@8(%rsp)", "floating-point"},
		{pie, "16@(%rsp)", "16 bytes"},
		{pie, "3@%eax", "3 bytes"},
		{pie, "8@%xmm0", "xmm0 is no register"},
		{pie, "8@%rip", "rip is no register"},
		{pie, "8@%fs:16", "no known form"},
		{pie, "8@%fs:16(%rax)", "no known form"},
		{pie, "8@main@GOTPCREL(%rip)", "neither a number nor a symbol"},
		{pie, "8@no_such_variable(%rip)", "no variable no_such_variable"},
		{pie, "8@16(%rip)", "rip is no register"},
		{pie, "8@main(,%rax,8)", "another address in each process"},
		{pie, "8@main", "another address in each process"},
		{pie, "8@main-main(%rip)", "more than a symbol"},
		{pie, "8@-main(%rip)", "more than a symbol"},
		{pie, "8@$main", "no number"},
		{pie, "8@$99999999999999999999", "no number"},
		{pie, "8@(%ax)", "ax is no register"},
		{pie, "8@(%rax,%ebx)", "no address"},
		{pie, "8@(%rax,%rbx,3)", "no known form"},
		{pie, "8@()", "no address"},
		{pie, "8@(%rax))", "no known form"},
		{i386, "8@%rax", "rax is no register"},
		{i386, "4@(%rax)", "rax is no register"},
		{arm, "8@d0", "d0 is no register"},
		{arm, "8@x31", "x31 is no register"},
		{arm, "8@x", "x is no register"},
		{arm, "8@[w0]", "no address"},
		{arm, "8@[x0, w1]", "no address"},
		{arm, "8@[x0, x1, sxtw]", "no address"},
		{arm, "8@[x0], 16", "no known form"},
		{arm, "8@[x0, 16]!", "no known form"},
		{arm, "8@[x0, #:lo12:main]", "no known form"},
	} {
		if got, err := parseArgument(c.im, pc, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v; want %q", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string][]string{
		"":                                   nil,
		" 8@%rax  -4@$1 ":                    {"8@%rax", "-4@$1"},
		"-4@[sp, 12] 8@[x0, x1, lsl 3] 4@w0": {"-4@[sp, 12]", "8@[x0, x1, lsl 3]", "4@w0"},
		"8@[x0 8@x1":                         {"8@[x0 8@x1"},
	} {
		if got := splitArguments(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// headersOnly is an ELF file of a machine without anything in it.
func headersOnly(t testing.TB, machine elf.Machine) *procstate.Image {
	t.Helper()
	b := make([]byte, 64)
	copy(b, elf.ELFMAG+"\x02\x01\x01")
	if machine == elf.EM_386 {
		b[elf.EI_CLASS] = byte(elf.ELFCLASS32)
	}
	binary.LittleEndian.PutUint16(b[16:], uint16(elf.ET_DYN))
	binary.LittleEndian.PutUint16(b[18:], uint16(machine))
	im, err := procstate.NewImageBytes(b, machine.String())
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// A section of notes that is larger than the file, or there many times, costs an error.
func TestTooManyNotes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "damaged")
	lib, err := resolveBinary("libstdc++.so.6")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	headers := int(binary.LittleEndian.Uint64(b[40:]))
	for i, s := range f.Sections {
		if s.Name == stapsdtNotes {
			binary.LittleEndian.PutUint64(b[headers+64*i+32:], 1<<40)
		}
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if probes, err := staticProbes(imageOf(t, path)); err == nil || !strings.Contains(err.Error(), "more than there can be") {
		t.Errorf("%d probes, %v", len(probes), err)
	}
}

// FuzzStaticProbes reads notes of whatever bytes, and what they say of arguments.
func FuzzStaticProbes(f *testing.F) {
	whole := slices.Concat(stapsdtNote(1, 2, 3, "a\x00b\x00-4@%eax 8@8(%rsp)\x00"), stapsdtNote(1, 0, 0, "a\x00b\x00\x00"))
	f.Add(whole, "8@-16+main(%rax,%rbx,8)")
	f.Add(whole[:len(whole)-7], "8f@%xmm0")
	f.Add(bytes.Replace(whole, []byte{8}, []byte{0xff, 0xff, 0xff, 0xff}, 1), "8@[x0, w1, sxtw #3]")
	f.Add(stapsdtNote(^uint64(0), 1, ^uint64(0), "a\x00b\x00"), "-4@[sp, 12]")
	f.Add([]byte("\xf4\xff\xff\xff\xf4\xff\xff\xff\x03\x00\x00\x00"), "1@$-0x80")
	images := []*procstate.Image{headersOnly(f, elf.EM_X86_64), headersOnly(f, elf.EM_AARCH64), headersOnly(f, elf.EM_386)}
	f.Fuzz(func(t *testing.T, notes []byte, argument string) {
		for _, im := range images {
			size := 0
			for _, p := range probesInNotes(notes, im.Arch().AddressWidth, uint64(len(notes))) {
				size += len(p.provider) + len(p.name) + len(p.arguments)
				if _, err := addLocation(nil, im, &p); err != nil {
					t.Errorf("%+v: %v", p, err)
				}
				for _, a := range splitArguments(p.arguments) {
					checkOperand(t, im, a)
				}
			}
			if size > len(notes) {
				t.Errorf("%d bytes of names of %d", size, len(notes))
			}
			checkOperand(t, im, argument)
		}
	})
}

// checkOperand reads an argument: what becomes of it is something that the program can do.
func checkOperand(t *testing.T, im *procstate.Image, argument string) {
	o, err := parseArgument(im, 0, argument)
	if err != nil {
		return
	}
	const registers = 34 * 8 // bytes of struct user_regs, of both at most
	fits := func(r register) bool {
		return r == register{} || r.offset >= 0 && r.offset+8 <= registers && (r.bits == 32 || r.bits == 64)
	}
	switch {
	case o.size != 0 && o.size != 1 && o.size != 2 && o.size != 4 && o.size != 8,
		o.size == 0 && o.inMemory, o.size != 0 && o.constant != 0,
		o.offset < 0 || o.offset+o.size > registers,
		!fits(o.base), !fits(o.index), o.indexShift > 9:
		t.Errorf("%s: %+v", argument, o)
	}
}
