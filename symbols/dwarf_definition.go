package symbols

import (
	"debug/dwarf"
	"hash/maphash"
	"slices"
)

// definitions finds the types of a program by name, those in its split files
// included.
type definitions struct {
	seed maphash.Seed
	at   map[uint64]definition // by the hash of the qualified name
}

// definition is where a type is described.
type definition struct {
	in  *dwarfData
	off uint64 // in its .debug_info
}

// Limits on the index of types.
const (
	maxDefinitions   = 1 << 20
	definitionMemory = 48   // of one, in bytes
	maxSplitFiles    = 1024 // that are open for it; each is a descriptor
)

// wantedTypes are types of a program that are to be read later.
type wantedTypes struct {
	d      *dwarfData
	golang bool // those that have a description at run time, not definitions
}

// DeferTypes makes [Type.Definition] leave types as they are, and
// [Type.RuntimeType] find none, where all debug information of a program had to
// be read for them, until ReadTypes is called: for the time in which a process
// stands still.
func (s *Symbolizer) DeferTypes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deferred = true
}

// ReadTypes ends what DeferTypes began and reads what was left. It reports
// whether anything was.
func (s *Symbolizer) ReadTypes() bool {
	s.mu.Lock()
	wanted := s.wanted
	s.deferred, s.wanted = false, nil
	s.mu.Unlock()
	for _, w := range wanted {
		d := w.d
		d.lock()
		switch {
		case w.golang && d.goTypes == nil:
			d.readGoTypes()
		case !w.golang && d.definitions == nil:
			d.readDefinitions()
		}
		d.unlock()
	}
	return len(wanted) > 0
}

// defers reports whether the types of a program are to be read later.
func (s *Symbolizer) defers(w wantedTypes) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deferred && !slices.Contains(s.wanted, w) {
		s.wanted = append(s.wanted, w)
	}
	return s.deferred
}

// Definition returns the type that a declaration stands for, as another unit
// of the file describes it under the same name. It is t itself where t is no
// declaration, or nothing describes it.
func (t *Type) Definition() *Type {
	if !t.Incomplete || t.entry == nil || t.Name == "" {
		return t
	}
	name := t.QualifiedName()
	e := t.entry
	e.d.lock()
	defer e.d.unlock()
	if t.definition == nil {
		d := e.d.program()
		if d.definitions == nil && d.owner.defers(wantedTypes{d, false}) {
			return t
		}
		t.definition = t
		if o := d.define(name, e.tag); o != nil {
			t.definition = o.asType()
		}
	}
	return t.definition
}

// define reads the entry that describes the type of a qualified name; nil when
// there is none.
func (d *dwarfData) define(name string, tag dwarf.Tag) *die {
	if d.definitions == nil {
		d.readDefinitions()
	}
	at, ok := d.definitions.at[d.definitions.hash(name)]
	if !ok {
		return nil
	}
	e, err := at.in.dieAt(at.off)
	if err != nil {
		d.note(err)
		return nil
	}
	if e.tag != tag && !(isClass(e.tag) && isClass(tag)) {
		return nil
	}
	return e
}

// program returns the file that d is a split file of, or the type units.
func (d *dwarfData) program() *dwarfData {
	for d.main != nil {
		d = d.main
	}
	return d
}

func (x *definitions) hash(name string) uint64 { return maphash.String(x.seed, name) }

func isClass(tag dwarf.Tag) bool { return tag == dwarf.TagClassType || tag == dwarf.TagStructType }

// readDefinitions makes the index: of types with a name that stand by
// themselves or in a namespace. Of several that share a name the first counts.
func (d *dwarfData) readDefinitions() {
	d.definitions = &definitions{seed: maphash.MakeSeed(), at: map[uint64]definition{}}
	d.readUnits(d.info.size)
	for _, u := range d.units {
		if u.tag == dwarf.TagTypeUnit {
			continue // found by signature
		}
		in := d
		if u.dwoName.form != 0 {
			if _, open := d.splits[u.off]; !open && d.dwp == nil && len(d.splits) >= maxSplitFiles {
				continue
			}
			split := d.split(u)
			if split == nil {
				continue
			}
			in, u = split.data, split.unit
		}
		in.allowEntries(u)
		root := &die{}
		if err := in.readEntry(u, u.root, root, false); err != nil {
			d.note(err)
			continue
		}
		if err := d.addDefinitions(root, "", 0); err != nil {
			d.note(err)
		}
	}
	d.owner.budget.charge(definitionMemory * len(d.definitions.at))
}

// addDefinitions adds the types among the children of an entry.
func (d *dwarfData) addDefinitions(e *die, prefix string, depth int) error {
	if depth > maxUnitDepth {
		return errDWARF
	}
	var failed error
	err := e.eachChild(func(c *die) bool {
		switch c.tag {
		case dwarf.TagNamespace:
			inner := c.string(dwarf.AttrName)
			if inner == "" {
				return true // unnamed: of its unit only
			}
			failed = d.addDefinitions(c, prefix+inner+"::", depth+1)
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType, dwarf.TagEnumerationType:
			if c.has(dwarf.AttrDeclaration) || c.get(dwarf.AttrByteSize).value.form == 0 {
				return true
			}
			name := c.string(dwarf.AttrName)
			if name == "" || len(d.definitions.at) >= maxDefinitions {
				return true
			}
			key := d.definitions.hash(prefix + name)
			if _, known := d.definitions.at[key]; !known {
				d.definitions.at[key] = definition{c.d, c.off}
			}
		}
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	return err
}
