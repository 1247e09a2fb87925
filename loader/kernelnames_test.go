package loader

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/swbpf/swbpf/internal/testenv"
)

// The kernel names its functions as /proc/kallsyms does: at their beginnings and behind,
// by one of those names where a function has several.
func TestKernelNames(t *testing.T) {
	kernelTest(t)
	k, err := OpenKernelNames()
	if err != nil && !kernelSince(5, 16) {
		testenv.Lacks(t, "%v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	names := readKallsyms(t)
	asked := 0
	for addr, at := range names {
		if addr%97 != 0 { // all take too long
			continue
		}
		asked++
		for _, off := range []uint64{0, 1} {
			name, offset, ok := k.Lookup(addr + off)
			if !ok || !at[name] || offset != off {
				t.Fatalf("%#x+%d: %q+%#x, %v, want one of %v", addr, off, name, offset, ok, at)
			}
		}
	}
	if asked < 100 {
		t.Fatalf("%d functions asked for, of %d", asked, len(names))
	}
	for _, addr := range []uint64{0, 1, 0x400000, 1 << 63, ^uint64(0)} {
		if name, _, ok := k.Lookup(addr); ok {
			t.Errorf("%#x has the name %q", addr, name)
		}
	}
}

// readKallsyms returns the names of the kernel's own functions of at least two bytes, by
// address.
func readKallsyms(t *testing.T) map[uint64]map[string]bool {
	t.Helper()
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, all := map[uint64]map[string]bool{}, map[uint64]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Fields(lines.Text())
		addr, err := strconv.ParseUint(field[0], 16, 64)
		if err != nil || addr == 0 {
			t.Fatalf("%q", lines.Text())
		}
		if all[addr] = true; len(field) > 3 {
			continue // of a module
		}
		if names[addr] == nil {
			names[addr] = map[string]bool{}
		}
		names[addr][field[2]] = true
		if !strings.ContainsAny(field[1], "tTwW") {
			names[addr] = nil
		}
	}
	for addr := range names {
		if names[addr] == nil || all[addr+1] {
			delete(names, addr)
		}
	}
	return names
}

func TestParseDescription(t *testing.T) {
	for _, c := range []struct {
		text, name string
		offset     uint64
	}{
		{"vfs_read+0x0/0x2e0", "vfs_read", 0},
		{"do_one.isra.0.cold+0x1f/0x20 [virtio_net]", "do_one.isra.0.cold", 0x1f},
		{"bpf_prog_0123456789abcdef_on+0x10/0x79 [bpf]", "bpf_prog_0123456789abcdef_on", 0x10},
		{"a+0x1+0x2/0x3", "a+0x1", 2},
		{text: "0xffffffffc0203000"}, {text: ""}, {text: "+0x1/0x2"}, {text: "a+0x1"}, {text: "a+0x/0x2"}, {text: "a+0xg/0x2"},
		{text: "a+0x11111111111111111/0x2"},
	} {
		name, offset, ok := parseDescription([]byte(c.text))
		if name != c.name || offset != c.offset || ok != (c.name != "") {
			t.Errorf("%q: %q+%#x, %v", c.text, name, offset, ok)
		}
	}
}
