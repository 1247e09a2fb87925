package symbols

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// lineSection is a .debug_line of version 4 with one file, a.c, and a program.
// headerLength is added to the true length of the header.
func lineSection(headerLength int, lineRange, opcodeBase byte, program ...byte) []byte {
	le := binary.LittleEndian
	head := []byte{1, 1, 1, 0xfb, lineRange, opcodeBase} // min_inst, max_ops, is_stmt, line_base -5
	head = append(head, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1)
	head = append(head, "\x00a.c\x00\x00\x00\x00\x00"...)
	body := le.AppendUint16(nil, 4)
	body = le.AppendUint32(body, uint32(len(head)+headerLength))
	body = append(append(body, head...), program...)
	return append(le.AppendUint32(nil, uint32(len(body))), body...)
}

// setAddress is DW_LNE_set_address.
func setAddress(a uint64) []byte { return binary.LittleEndian.AppendUint64([]byte{0, 9, 2}, a) }

func testLines(section []byte) (*lineTable, error) {
	d := &dwarfData{base: 0x1000, codeRanges: []codeRange{{0x1000, 0x2000}}, line: dwarfSection{r: bytes.NewReader(section), size: uint64(len(section)), budget: &budget{}}}
	return d.compileLines(&unit{enc: encoding{version: 4, addrSize: 8}})
}

func TestLineProgram(t *testing.T) {
	join := func(parts ...[]byte) (b []byte) {
		for _, p := range parts {
			b = append(b, p...)
		}
		return b
	}
	end := []byte{0, 1, 1}                                                               // DW_LNE_end_sequence
	row := func(advance, line byte) []byte { return []byte{13 + advance*14 + line + 5} } // special opcode
	for _, tc := range []struct {
		name    string
		program []byte
		want    string // offset:line, or offset: for the end of a sequence
	}{
		{"one", join(setAddress(0x1000), row(0, 1), row(2, 1), []byte{2, 4}, end), "0:2 2:3 6:"},
		{"last row at an address counts", join(setAddress(0x1000), row(0, 1), row(0, 5), row(2, 1), []byte{2, 1}, end), "0:7 2:8 3:"},
		{"two in reverse", join(setAddress(0x1100), row(0, 0), []byte{2, 16}, end, setAddress(0x1000), row(0, 3), []byte{2, 16}, end), "0:4 10: 100:1 110:"},
		{"adjacent", join(setAddress(0x1000), row(0, 0), []byte{2, 16}, end, setAddress(0x1010), row(0, 3), []byte{2, 16}, end), "0:1 10:4 20:"},
		{"discarded at 0", join(setAddress(0), row(0, 7), []byte{2, 0x80, 0x40}, end, setAddress(0x1000), row(0, 3), []byte{2, 16}, end), "0:4 10:"},
		{"discarded at -1", join(setAddress(^uint64(0)), row(0, 7), []byte{2, 1}, end), ""},
		{"the same code twice", join(setAddress(0x1000), row(0, 0), []byte{2, 16}, end, setAddress(0x1000), row(0, 3), []byte{2, 16}, end), "0:1 10:"},
		{"goes back", join(setAddress(0x1010), row(0, 0), setAddress(0x1000), row(0, 0), []byte{2, 32}, end), "10:"},
		{"const_add_pc, fixed_advance_pc, advance_line", join(setAddress(0x1000), row(0, 0), []byte{8, 1, 9, 4, 0, 3, 0x7f, 1}, []byte{2, 1}, end), "0:1 11:1 15:0 16:"},
		{"no end", join(setAddress(0x1000), row(0, 0), row(4, 1)), ""},
		{"nothing", nil, ""},
	} {
		tab, err := testLines(lineSection(0, 14, 13, tc.program...))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		var got []string
		for i, off := range tab.offs {
			if tab.files[i] == none {
				got = append(got, fmt.Sprintf("%x:", off))
			} else {
				got = append(got, fmt.Sprintf("%x:%d", off, tab.lines[i]))
			}
		}
		if g := strings.Join(got, " "); g != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, g, tc.want)
		}
	}
}

func TestLineHeader(t *testing.T) {
	for _, tc := range []struct {
		name    string
		section []byte
	}{
		{"header ends before its fields do", lineSection(-30, 14, 13)},
		{"header ends after the table", lineSection(1, 14, 13)},
		{"line_range 0", lineSection(0, 0, 13)},
		{"opcode_base 0", lineSection(0, 14, 0)},
		{"cut short", lineSection(0, 14, 13)[:20]},
		{"empty", nil},
	} {
		if _, err := testLines(tc.section); !errors.Is(err, errDWARF) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestImplicitConstants reads values that abbreviations hold, small and large.
func TestImplicitConstants(t *testing.T) {
	values := []int64{0, 1, -1, 1<<15 - 1, -1 << 15, 1 << 15, -1<<15 - 1, 1 << 40, -1 << 63, 1<<63 - 1}
	b := []byte{1, 0x34, 0} // code 1, a variable, no children
	for _, v := range values {
		b = append(b, 0x1c, 0x21) // DW_AT_const_value, DW_FORM_implicit_const
		for v < -64 || v > 63 {
			b = append(b, byte(v)|0x80)
			v >>= 7
		}
		b = append(b, byte(v)&0x7f)
	}
	table, complete, err := parseAbbrevs(append(b, 0, 0, 0), encoding{version: 5, addrSize: 8})
	if err != nil || !complete {
		t.Fatal(complete, err)
	}
	a := table.get(1)
	for i, want := range values {
		if got := a.read(table.enc, &cursor{}, &a.attrs[i]); got != (value{formImplicit, uint64(want)}) {
			t.Errorf("%d: %+v", want, got)
		}
	}
}
