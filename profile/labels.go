package profile

import (
	"cmp"
	"slices"
	"strconv"
)

// Label is a fact about samples beside their process and thread, by which a
// profile can be cut: {"cpu", "3"}, {"container", "4f5e…"}. The keys "pid",
// "tid" and "comm" are taken: Thread has them.
type Label struct{ Key, Value string }

// Labels returns the number of a set of labels for use in a Thread. It is the
// same number for the same set, in whatever order, and 0 for the empty one.
// The Builder keeps each set once; who asks per sample should remember it, until Reset.
func (b *Builder) Labels(labels ...Label) uint32 {
	b.init()
	set := make([]Label, len(labels))
	for i, l := range labels {
		set[i] = Label{validText(l.Key), validText(l.Value)}
	}
	slices.SortFunc(set, compareLabels)
	set = slices.Compact(set)
	var key []byte
	for _, l := range set {
		key = strconv.AppendQuote(key, l.Key)
		key = strconv.AppendQuote(key, l.Value)
	}
	id, ok := b.labelIDs[string(key)]
	if !ok {
		id = uint32(len(b.labels))
		b.labels = append(b.labels, set)
		b.labelIDs[string(key)] = id
	}
	return id
}

func compareLabels(x, y Label) int {
	return cmp.Or(cmp.Compare(x.Key, y.Key), cmp.Compare(x.Value, y.Value))
}

// orderLabels sorts the sets of labels and leaves out those of no thread. It
// returns their new numbers by old ones.
func (b *Builder) orderLabels(p *Profile) []uint32 {
	used := make([]bool, len(b.labels))
	for i := range b.threads.all {
		used[b.labelsOf(&b.threads.all[i])] = true
	}
	var order []int
	for i := 1; i < len(used); i++ {
		if used[i] {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(x, y int) int { return slices.CompareFunc(b.labels[x], b.labels[y], compareLabels) })
	p.labels = append(p.labels, nil)
	renumbered := make([]uint32, len(b.labels))
	for _, old := range order {
		renumbered[old] = uint32(len(p.labels))
		p.labels = append(p.labels, b.labels[old])
	}
	return renumbered
}

// labelsOf takes numbers that no call of Labels returned for no labels.
func (b *Builder) labelsOf(t *Thread) uint32 {
	if t.Labels >= uint32(len(b.labels)) {
		return 0
	}
	return t.Labels
}
