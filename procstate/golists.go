package procstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrNoGoroutines is returned where the list of goroutines of a Go program is
// not found, or is none.
var ErrNoGoroutines = errors.New("the runtime's list of goroutines is not known")

// goLists tells where a Go program keeps its goroutines, in link-time addresses.
// Symbols are not asked, which many programs lack: functions of the runtime
// that use the lists tell.
type goLists struct {
	allgs uint64 // the slice runtime.allgs

	// reasons are the places at which runtime.waitReasonStrings may be: the
	// first that holds such strings is it.
	reasons []uint64
}

// maxReasonPlaces bounds goLists.reasons.
const maxReasonPlaces = 32

type goListsCache struct {
	once  sync.Once
	lists *goLists
	err   error
}

// goListsOf returns where the goroutines of a Go program are. The first call
// finds that out, further ones return the same.
func goListsOf(im *Image) (*goLists, error) {
	c := &im.goLists
	c.once.Do(func() {
		if c.lists, c.err = findGoLists(im); c.err != nil {
			c.err = fmt.Errorf("%s: %w", im.Path, c.err)
		}
	})
	return c.lists, c.err
}

func findGoLists(im *Image) (*goLists, error) {
	t, err := Pclntab(im)
	if err != nil {
		return nil, err
	}
	defer t.Forget() // it was read from the front, for names that few ask for
	refs := goRefsAMD64
	if im.arch == ARM64 {
		refs = goRefsARM64
	}
	l := &goLists{}
	for i, left := 0, 3; i < t.Len() && left > 0; i++ {
		f, ok := t.At(i)
		if !ok {
			continue
		}
		switch f.Name() {
		case "runtime.forEachG":
			loads, _ := refs(goCode(im, &f), f.Entry)
			for _, at := range loads { // its address and its length
				if l.allgs == 0 && slices.Contains(loads, at+8) {
					l.allgs = at
				}
			}
			left--
		case "runtime.waitReason.String", "runtime.goroutineheader":
			_, addresses := refs(goCode(im, &f), f.Entry)
			l.reasons = append(l.reasons, addresses[:min(len(addresses), maxReasonPlaces-len(l.reasons))]...)
			left--
		}
	}
	if l.allgs == 0 {
		return nil, ErrNoGoroutines
	}
	return l, nil
}

// goCode reads the code of a function, at most 4 KiB of it; nil when it cannot
// be read.
func goCode(im *Image, f *GoFunc) []byte {
	code := make([]byte, min(f.End-f.Entry, 4096))
	if im.ReadVaddr(code, f.Entry) != nil {
		return nil
	}
	return code
}

// goRefsAMD64 finds, in code at a link-time address, the words that are loaded
// into registers relative to RIP, and the addresses that are made so. Bytes in
// the middle of instructions can look alike.
func goRefsAMD64(code []byte, vaddr uint64) (loads, addresses []uint64) {
	const length, load, lea = 7, 0x8b, 0x8d
	for i := 0; i+length <= len(code); i++ {
		if code[i]&^4 != 0x48 || code[i+2]&0xc7 != 0x05 { // REX.W, and disp32(%rip)
			continue
		}
		at := vaddr + uint64(i) + length + uint64(int32(binary.LittleEndian.Uint32(code[i+3:])))
		switch code[i+1] {
		case load:
			loads = append(loads, at)
		case lea:
			addresses = append(addresses, at)
		}
	}
	return loads, addresses
}

// goRefsARM64 is goRefsAMD64 for addresses that are made by ADRP, with an ADD or
// the offset of a load.
func goRefsARM64(code []byte, vaddr uint64) (loads, addresses []uint64) {
	const (
		adrp = 0x90000000 // adrp xd, page
		add  = 0x91000000 // add xd, xn, #imm12
		ldr  = 0xf9400000 // ldr xt, [xn, #(8*imm12)]
		ldp  = 0xa9400000 // ldp xt, xt2, [xn, #(8*imm7)]

		ofADRP, ofImm12, ofLDP = 0x9f000000, 0xffc00000, 0xffc00000 // what is not in operands
	)
	var held [32]uint64 // by register; 0 is not known
	for i := 0; i+4 <= len(code); i += 4 {
		in := binary.LittleEndian.Uint32(code[i:])
		d, n, imm12 := in&31, in>>5&31, uint64(in>>10&0xfff)
		switch {
		case in&ofADRP == adrp:
			pages := int64(int32(in<<8)>>13)<<2 | int64(in>>29&3)
			held[d] = (vaddr+uint64(i))&^0xfff + uint64(pages<<12)
		case in&ofImm12 == add && held[n] != 0:
			held[d] = held[n] + imm12
			addresses = append(addresses, held[d])
		case in&ofImm12 == ldr && held[n] != 0:
			loads = append(loads, held[n]+8*imm12)
			held[d] = 0
		case in&ofLDP == ldp && held[n] != 0:
			at := held[n] + uint64(int64(int32(in<<10)>>25)*8)
			loads = append(loads, at, at+8)
			held[d], held[in>>10&31] = 0, 0
		}
	}
	return loads, addresses
}
