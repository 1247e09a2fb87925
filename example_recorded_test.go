package swbpf_test

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/swbpf/swbpf"
	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/unwind"
)

// recording is what is kept of a stack.
type recording struct {
	Known, ThreadPointer uint64
	Regs                 [procstate.MaxRegs]uint64
	Memory               []procstate.Region
	Files                []procstate.FileRef // that were mapped
	Offsets              []uint64            // of what of them was
}

// record writes the stack of a process's initial thread to w.
func record(c *procstate.Capture, w io.Writer) error {
	var regs procstate.Regs
	if err := c.Registers(procstate.DefaultThread, &regs); err != nil {
		return err
	}
	r := recording{Known: regs.Known(), ThreadPointer: regs.ThreadPointer, Memory: c.Regions(procstate.DefaultThread)}
	for i := range r.Regs {
		r.Regs[i] = regs.Raw(procstate.Reg(i))
	}
	code, ok := c.Libraries().(*procstate.AddressSpace)
	if !ok {
		return errors.ErrUnsupported
	}
	for _, m := range code.Mappings() {
		f := procstate.FileRef{Path: m.Path, Start: m.Start, End: m.End}
		if m.Image != nil {
			f.Dev, f.Inode = m.Image.ID.Dev, m.Image.ID.Inode
		}
		r.Files, r.Offsets = append(r.Files, f), append(r.Offsets, m.Offset)
	}
	return gob.NewEncoder(w).Encode(&r)
}

// replay walks a stack that was recorded, by the files that are still there.
func replay(from io.Reader) (*unwind.Walker, []unwind.Frame, error) {
	var r recording
	if err := gob.NewDecoder(from).Decode(&r); err != nil {
		return nil, nil, err
	}
	code := new(procstate.AddressSpace)
	for i := range r.Files {
		code.Insert(procstate.SharedImages().NewMapping(code, &r.Files[i], r.Offsets[i]))
	}
	regs := procstate.Regs{ThreadPointer: r.ThreadPointer}
	for i, v := range r.Regs {
		if r.Known>>i&1 != 0 {
			regs.Set(procstate.Reg(i), v)
		}
	}
	state := procstate.NewSnapshot(nil, 0, "", code)
	state.Reset(1, &regs, r.Memory)
	w := swbpf.With(state, nil, nil)
	frames, err := w.WalkStack(nil, procstate.DefaultThread)
	return w, frames, err
}

// A stack is recorded, and walked later, when the process need not be there any more.
func ExampleWith_recorded() {
	c, err := procstate.CaptureProcess(4711, procstate.CaptureOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if err := record(c, &file); err != nil {
		log.Fatal(err)
	}
	w, frames, err := replay(&file)
	for i := range frames {
		sym, _ := w.Name(&frames[i])
		fmt.Println(sym.Name)
	}
	fmt.Println(unwind.ReasonOf(err))
}
