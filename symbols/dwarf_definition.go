package symbols

import (
	"debug/dwarf"
	"hash/maphash"
)

// definitions finds the types of a file by name.
type definitions struct {
	seed maphash.Seed
	at   map[uint64]uint64 // offset in .debug_info by the hash of the qualified name
}

// Limits on the index of types.
const (
	maxDefinitions   = 1 << 20
	definitionMemory = 40 // of one, in bytes
)

// Definition returns the type that a declaration stands for, as another unit
// of the file describes it under the same name. It is t itself where t is no
// declaration, or nothing describes it.
func (t *Type) Definition() *Type {
	if !t.Incomplete || t.entry == nil || t.Name == "" {
		return t
	}
	name := t.QualifiedName()
	e := t.entry
	mu := e.d.lock()
	mu.Lock()
	defer mu.Unlock()
	if t.definition == nil {
		t.definition = t
		if o := e.d.define(name, e.tag); o != nil {
			t.definition = o.asType()
		}
	}
	return t.definition
}

// define reads the entry that describes the type of a qualified name; nil when
// there is none.
func (d *dwarfData) define(name string, tag dwarf.Tag) *die {
	if d.ofTypes {
		d = d.main
	}
	if d.definitions == nil {
		d.readDefinitions()
	}
	off, ok := d.definitions.at[d.definitions.hash(name)]
	if !ok {
		return nil
	}
	e, err := d.dieAt(off)
	if err != nil {
		d.owner.note(err)
		return nil
	}
	if e.tag != tag && !(isClass(e.tag) && isClass(tag)) {
		return nil
	}
	return e
}

func (x *definitions) hash(name string) uint64 { return maphash.String(x.seed, name) }

func isClass(tag dwarf.Tag) bool { return tag == dwarf.TagClassType || tag == dwarf.TagStructType }

// readDefinitions makes the index: of types with a name that stand by
// themselves or in a namespace. Of several that share a name the first counts.
func (d *dwarfData) readDefinitions() {
	d.definitions = &definitions{seed: maphash.MakeSeed(), at: map[uint64]uint64{}}
	d.readUnits(d.info.size)
	for _, u := range d.units {
		if u.tag == dwarf.TagTypeUnit {
			continue // found by signature
		}
		d.allowEntries(u)
		root := &die{}
		if err := d.readEntry(u, u.root, root, false); err != nil {
			d.owner.note(err)
			continue
		}
		if err := d.addDefinitions(root, "", 0); err != nil {
			d.owner.note(err)
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
				d.definitions.at[key] = c.off
			}
		}
		return failed == nil
	})
	if err == nil {
		err = failed
	}
	return err
}
