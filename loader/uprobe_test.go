package loader

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// fileOffset is where a symbol is in a file, by the standard library's reader.
func fileOffset(t *testing.T, path, symbol string) uint64 {
	t.Helper()
	vaddr := symbolValue(t, path, symbol)
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && vaddr >= p.Vaddr && vaddr < p.Vaddr+p.Filesz {
			return vaddr - p.Vaddr + p.Off
		}
	}
	t.Fatalf("%s is in no segment", symbol)
	return 0
}

func TestParseUprobe(t *testing.T) {
	kernelTest(t)
	path := stackTarget(t)
	main := fileOffset(t, path, "main")
	for _, c := range []struct {
		event  string
		offset uint64
	}{
		{"uprobe:" + path + ":main", main},
		{"uprobe:" + path + ":main+0x4", main + 4},
		{"uprobe:" + path + ":main+4", main + 4},
		{"uretprobe:" + path + ":main", main},
		{"uprobe:" + path + ":0x" + strconv.FormatUint(main, 16), main},
	} {
		e, err := ParseEvent(c.event)
		if err != nil {
			t.Error(err)
			continue
		}
		onReturn := strings.HasPrefix(c.event, "uret")
		if !e.IsUprobe() || e.IsTracepoint() || e.IsTimer() || e.Name != c.event || len(e.places) != 1 || e.places[0].offset != c.offset || e.places[0].file != path || (e.config != 0) != onReturn {
			t.Errorf("%s: %+v, want offset %#x", c.event, e, c.offset)
		}
	}
	testenv.Needs(t, "strip")
	bare := filepath.Join(t.TempDir(), "bare")
	testenv.Run(t, exec.Command("strip", "-o", bare, path))
	for _, c := range []struct{ event, want string }{
		{"uprobe:", "should be"},
		{"uprobe:main", "should be"},
		{"uprobe::main", "should be"},
		{"uprobe:" + path + ":", "should be"},
		{"uprobe:/does/not/exist:main", "no such file"},
		{"uprobe:no-library-is-called-so:main", "no library or program"},
		{"uprobe:/dev/null:main", "/dev/null"},
		{"uprobe:" + path + ":main+x", "not an offset"},
		{"uprobe:" + path + ":main+0x100000", "bytes only"},
		{"uprobe:" + path + ":0xzz", "not an offset"},
		{"uprobe:" + path + ":0x0", "not code"},
		{"uprobe:" + path + ":0x7fffffffffffffff", "not code"},
		{"uprobe:libc.so.6:strlen", "chosen among"},
		{"uprobe:libc.so.6:completely-different-from-all", "libc.so.6 has no function completely-different-from-all"},
		{"uprobe:" + bare + ":main", bare + " names no functions; give the place by its offset"},
	} {
		if _, err := ParseEvent(c.event); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.event, err, c.want)
		}
	}
	_, err := ParseEvent("uprobe:libc:mallocc")
	var unknown *UnknownEventError
	if !errors.As(err, &unknown) || !slices.Contains(unknown.Near, "uprobe:libc:malloc") {
		t.Errorf("misspelt function: %v", err)
	}
}

// Libraries are found where the dynamic loader's own tool finds them.
func TestResolveBinary(t *testing.T) {
	out, err := exec.Command("/sbin/ldconfig", "-p").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, path, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if name, flags, _ := strings.Cut(name, " "); ok && name == "libc.so.6" && strings.Contains(flags, "64") {
			for _, n := range []string{"libc.so.6", "libc"} {
				if got, err := resolveBinary(n); err != nil || got != path {
					t.Errorf("%s is %s, %v; want %s", n, got, err, path)
				}
			}
		}
	}
	want, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := resolveBinary("cat"); err != nil || got != want {
		t.Errorf("cat is %s, %v; want %s", got, err, want)
	}
}

func TestDamagedLDCache(t *testing.T) {
	cache, err := os.ReadFile(ldCachePath)
	if err != nil {
		t.Fatal(err)
	}
	if findInLDCache(cache, "libc.so.6") == "" {
		t.Fatal("no libc.so.6")
	}
	for n := range min(len(cache), 200) {
		findInLDCache(cache[:n], "libc.so.6")
	}
	b := slices.Clone(cache)
	start := strings.Index(string(b), ldCacheMagic)
	binary.LittleEndian.PutUint32(b[start+len(ldCacheMagic):], ^uint32(0))
	if findInLDCache(b, "no-such-library") != "" {
		t.Error("found what is not there")
	}
	for i := start + ldCacheHeader; i+12 < len(b); i += ldCacheEntry {
		binary.LittleEndian.PutUint32(b[i+4:], ^uint32(0))
	}
	if path := findInLDCache(b, "libc.so.6"); path != "" {
		t.Errorf("found %s behind the end", path)
	}
}

// Of an exactly known number of calls each is a sample or a counted loss.
func TestUprobeAccount(t *testing.T) {
	const calls = 2000
	for _, c := range []struct {
		name, kind string
		cfg        Config
	}{
		{"calls", "uprobe", Config{}},
		{"returns", "uretprobe", Config{}},
		{"tiny ring", "uprobe", Config{RingBytes: 4096}},
		{"every seventh", "uprobe", Config{Period: 7}},
		{"followed", "uprobe", Config{FollowChildren: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.Event = mustParse(t, c.kind+":libc.so.6:syscall")
			cmd, s := started(t, c.cfg, stackTarget(t), "getppid", strconv.Itoa(calls))
			finish(t, cmd, s)
			st := stats(t, s)
			if got := st.Samples + st.Lost() + st.SkippedPeriod; got != calls {
				t.Errorf("%d calls accounted for, want %d: %+v", got, calls, st)
			}
			read := uint64(0)
			drain(t, s, func(p *Sample) {
				read++
				if int(p.PID) != cmd.PID() || !p.HasUser() || len(p.Regions) == 0 || p.Weight != s.Period() {
					t.Errorf("sample of process %d with weight %d, %d regions", p.PID, p.Weight, len(p.Regions))
					return
				}
				pc := p.Regs.Raw(p.Arch.PC)
				if (pc&4095 == c.cfg.Event.places[0].offset&4095) != (c.kind == "uprobe") {
					t.Errorf("PC %#x in a %s at offset %#x", pc, c.kind, c.cfg.Event.places[0].offset)
				}
			})
			if read != st.Samples || (c.cfg.RingBytes != 0) != (st.LostRingFull > 0) || read == 0 {
				t.Errorf("%d samples read: %+v", read, st)
			}
		})
	}
}
