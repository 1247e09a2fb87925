package procstate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"
)

// Of a version of Go that is not known yet the stacks are, as long as the code of its runtime
// uses the same fields.
func TestGoStacksOfLaterVersion(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		program, err := os.ReadFile(buildGoMain(t, "local", arch))
		if err != nil {
			t.Fatal(err)
		}
		image := func(b []byte) *Image {
			im, err := NewImageBytes(b, "later")
			if err != nil {
				t.Fatal(err)
			}
			return im
		}
		known, err := GoStacksOf(image(program))
		if err != nil {
			t.Fatal(err)
		}
		later := []byte(known.Version)
		copy(later[len("go1."):], "99")
		program = bytes.ReplaceAll(program, []byte(known.Version), later)
		im := image(program)
		if _, err := GoRuntimeOf(im); !errors.Is(err, ErrGoVersion) {
			t.Errorf("%s: GoRuntimeOf %s: %v", arch, later, err)
		}
		want := *known
		want.Version, want.VDSOSP = string(later), 0
		want.Status, want.ID, want.WaitSince, want.WaitReason, want.LockedM, want.ParentID, want.GoPC, want.StartPC = 0, 0, 0, 0, 0, 0, 0, 0
		rt, err := GoStacksOf(im)
		if err != nil || *rt != want {
			t.Errorf("%s: %+v, %v, want %+v", arch, rt, err, want)
		}

		comparesCurG := func(at uint32) []byte {
			if arch == "arm64" {
				return binary.LittleEndian.AppendUint32(nil, 0xf9400086|at/8<<10)
			}
			return binary.LittleEndian.AppendUint32([]byte{0x48, 0x3b, 0x83}, at)
		}
		pattern, moved := comparesCurG(known.CurG), comparesCurG(known.CurG+8)
		if rt, err := GoStacksOf(image(bytes.ReplaceAll(program, pattern, moved))); !errors.Is(err, ErrGoVersion) {
			t.Errorf("%s: with curg elsewhere %+v, %v", arch, rt, err)
		}
	}
}
