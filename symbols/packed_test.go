package symbols

import (
	"errors"
	"testing"
)

// A compressed section that is forgotten again and again is not had for ever.
func TestUnpackedAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.c", fuzzSource)
	run(t, dir, "gcc", "-g3", "-gz=zlib", "-c", "-o", "a.o", "a.c")
	im := open(t, dir+"/a.o")
	h, _ := im.Section(".debug_str")
	z, err := im.Packed(h)
	if err != nil || z == nil {
		t.Fatalf("%v, %v", z, err)
	}
	defer func(n uint64) { maxUnpacked = n }(maxUnpacked)
	maxUnpacked = 0
	s := &packedSection{z: z, owner: New(Options{})}
	var b [1]byte
	for n := range 2 * unpackedAgain {
		for off := uint64(0); off < z.Size(); off += z.PartSize() {
			err = s.read(b[:], off)
		}
		if (err == nil) != (n < unpackedAgain) || err != nil && !errors.Is(err, ErrMemory) {
			t.Fatalf("the %d. time: %v", n+1, err)
		}
		for len(s.parts) > 0 {
			s.parts[0].drop()
		}
	}
}
