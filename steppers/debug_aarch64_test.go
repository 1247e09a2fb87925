//go:build linux && amd64

package steppers

import (
	"bufio"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swbpf/swbpf/internal/testenv"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// gdbStub speaks GDB's remote protocol with qemu's emulation of a program.
type gdbStub struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func (g *gdbStub) ask(packet string) string {
	g.t.Helper()
	sum := byte(0)
	for i := range len(packet) {
		sum += packet[i]
	}
	fmt.Fprintf(g.conn, "+$%s#%02x", packet, sum)
	if _, err := g.r.ReadString('$'); err != nil {
		g.t.Fatalf("%s: %v", packet, err)
	}
	reply, err := g.r.ReadString('#')
	if err != nil {
		g.t.Fatalf("%s: %v", packet, err)
	}
	if _, err := g.r.Discard(2); err != nil {
		g.t.Fatalf("%s: %v", packet, err)
	}
	return reply[:len(reply)-1]
}

// registers returns x0 to x30, SP and PC.
func (g *gdbStub) registers() procstate.Regs {
	g.t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(g.ask("g")[:33*16], "x", "0"))
	if err != nil {
		g.t.Fatal(err)
	}
	var regs procstate.Regs
	for i := range 33 {
		regs.Set(procstate.Reg(i), binary.LittleEndian.Uint64(b[8*i:]))
	}
	return regs
}

// memory reads memory; what cannot be read is left out at the end.
func (g *gdbStub) memory(dst []byte, addr uint64, n int) []byte {
	g.t.Helper()
	for n > 0 {
		size := min(n, 2000)
		b, err := hex.DecodeString(g.ask(fmt.Sprintf("m%x,%x", addr, size)))
		if err != nil || len(b) == 0 {
			break
		}
		dst = append(dst, b...)
		addr += uint64(len(b))
		n -= len(b)
	}
	return dst
}

// startARM64 runs a program under qemu up to its main function.
func startARM64(t *testing.T, path string) *gdbStub {
	t.Helper()
	testenv.Needs(t, "qemu-aarch64")
	socket := filepath.Join(t.TempDir(), "gdb")
	cmd := exec.Command("qemu-aarch64", "-cpu", "max", "-g", socket, path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	var conn net.Conn
	var err error
	for range 12000 {
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g := &gdbStub{t, conn, bufio.NewReader(conn)}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Name == "main" {
			at := fmt.Sprintf("0,%x,4", s.Value)
			if r := g.ask("Z" + at); r != "OK" {
				t.Fatalf("breakpoint: %q", r)
			}
			g.ask("c")
			g.ask("z" + at)
			if regs := g.registers(); regs.Raw(procstate.ARM64.PC) != s.Value {
				t.Fatalf("stopped at %#x", regs.Raw(procstate.ARM64.PC))
			}
		}
	}
	return g
}

// TestDebugEveryInstructionARM64 is TestDebugEveryInstruction for AArch64, in
// emulation: with and without signed return addresses.
func TestDebugEveryInstructionARM64(t *testing.T) {
	for _, protection := range []string{"none", "standard", "pac-ret+leaf+b-key"} {
		t.Run(protection, func(t *testing.T) {
			t.Parallel()
			testenv.Needs(t, "aarch64-linux-gnu-gcc")
			path := filepath.Join(t.TempDir(), "arm64")
			cmd := exec.Command("aarch64-linux-gnu-gcc", "-O2", "-fomit-frame-pointer", "-static",
				"-mbranch-protection="+protection, "testdata/debug/arm64.c", "-o", path)
			testenv.Run(t, cmd)
			everyInstructionARM64(t, path)
		})
	}
}

func everyInstructionARM64(t *testing.T, path string) {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	img, err := procstate.NewImage(file, st.Size(), path)
	if err != nil {
		t.Fatal(err)
	}
	space := &procstate.AddressSpace{}
	for _, s := range img.Segments() {
		if s.Flags&elf.PF_X != 0 {
			const page = 4095
			space.Insert(&procstate.Mapping{Start: s.Vaddr &^ page, End: (s.Vaddr + s.Memsz + page) &^ page, Offset: s.Off &^ page, Path: path, Image: img})
		}
	}
	arch := procstate.ARM64
	g := startARM64(t, path)
	snap := procstate.NewSnapshot(arch, 1, path, space)
	w := unwind.NewWalker(snap, unwind.NewGroup(NewDebug(unwind.NewTables())), nil)
	var stack []byte
	var regs procstate.Regs
	capture := func() {
		regs = g.registers()
		sp := regs.Raw(arch.SP)
		stack = g.memory(stack[:0], sp, 8000)
		snap.Reset(1, &regs, []procstate.Region{{Addr: sp, Data: stack}})
	}
	capture()
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	if err != nil || len(frames) < 3 {
		t.Fatalf("%d frames, %v", len(frames), err)
	}
	var shadow []shadowEntry // bottom first
	for i := len(frames) - 1; i > 0; i-- {
		shadow = append(shadow, shadowEntry{ra: frames[i].PC(), cfa: frames[i].SP()})
	}
	bottom := len(shadow)
	bad, calls, walked := 0, 0, 0
	for len(shadow) >= bottom && walked < 20000 {
		pc, sp := regs.Raw(arch.PC), regs.Raw(arch.SP)
		code := make([]byte, 4)
		if err := img.ReadVaddr(code, pc); err != nil {
			t.Fatalf("code at %#x: %v", pc, err)
		}
		insn := binary.LittleEndian.Uint32(code)
		g.ask("s")
		capture()
		now := regs.Raw(arch.PC)
		switch {
		case insn>>26 == 0x25 || insn&0xfffffc1f == 0xd63f0000: // bl, blr
			shadow = append(shadow, shadowEntry{ra: pc + 4, cfa: sp})
			calls++
		case insn&0xfffffc1f == 0xd65f0000 || insn&0xfffffbff == 0xd65f0bff: // ret, retaa, retab
			if last := shadow[len(shadow)-1]; now == last.ra && regs.Raw(arch.SP) == last.cfa {
				shadow = shadow[:len(shadow)-1]
			} else {
				t.Fatalf("%#x returns to %#x, not to %#x", pc, now, last.ra)
			}
		}
		frames, err = w.WalkStack(frames[:0], procstate.DefaultThread)
		walked++
		// The linkage table has no CFI on AArch64.
		if plt, _ := img.Section(".plt"); now-plt.Vaddr < plt.Size {
			if err != unwind.NoUnwindInfo {
				t.Errorf("at %#x, in the linkage table: %v", now, err)
			}
			continue
		}
		if err != nil || !sameChain(frames, shadow) {
			if bad++; bad <= 10 {
				t.Errorf("at %#x, after %#x (%08x): %d frames, expected %d: %v", now, pc, insn, len(frames), len(shadow)+1, err)
			}
		}
	}
	if bad > 0 || walked < 2000 || calls < 50 || len(shadow) >= bottom {
		t.Errorf("%d of %d walks are wrong, %d calls", bad, walked, calls)
	}
	t.Logf("%d walks, %d calls", walked, calls)
}
