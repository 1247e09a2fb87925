package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// differenceKind is a way in which a peer answers otherwise.
type differenceKind struct {
	peer   *namer
	kind   string // what differs: "line", "named there only"
	reason string // "" when there is none
}

// rule is a peer's, by which it answers otherwise.
type rule struct {
	peer   *namer
	reason string
}

// ruleUse is what a rule comes to in all files.
type ruleUse struct {
	kinds       map[string]int // addresses by what differs
	files       int
	least, most float64 // shares of a file's addresses
	in          string  // the file with the most
}

// differences are those of all files.
type differences struct {
	files map[*namer]int // that a peer answered for
	rules map[rule]*ruleUse
}

func newDifferences() *differences {
	return &differences{files: map[*namer]int{}, rules: map[rule]*ruleUse{}}
}

// add adds those of a file.
func (d *differences) add(c *comparison) {
	for _, p := range c.file.peer {
		if c.failed[p] == nil {
			d.files[p]++
		}
	}
	count := map[rule]int{}
	for k, n := range c.kinds {
		r := rule{k.peer, k.reason}
		if d.rules[r] == nil {
			d.rules[r] = &ruleUse{kinds: map[string]int{}}
		}
		d.rules[r].kinds[k.kind] += n
		count[r] += n
	}
	for r, n := range count {
		u, share := d.rules[r], float64(n)/float64(r.peer.asked(len(c.addrs)))
		if u.files++; u.files == 1 || share < u.least {
			u.least = share
		}
		if u.files == 1 || share > u.most {
			u.most, u.in = share, c.file.name
		}
	}
}

// write writes the table of them: by peers, those first that come to most.
func (d *differences) write(r *report) {
	r.header("program", "answers otherwise by", "what differs", "files", "of their addresses", "most in")
	rules := slices.SortedFunc(maps.Keys(d.rules), func(a, b rule) int {
		return cmp.Or(cmp.Compare(a.peer.name, b.peer.name), cmp.Compare(d.rules[b].most, d.rules[a].most), cmp.Compare(a.reason, b.reason))
	})
	for _, k := range rules {
		u := d.rules[k]
		kinds := slices.SortedFunc(maps.Keys(u.kinds), func(a, b string) int {
			return cmp.Or(u.kinds[b]-u.kinds[a], cmp.Compare(a, b))
		})
		shares := shareText(u.most)
		if least := shareText(u.least); least != shares {
			shares = least + " to " + shares
		}
		r.row(k.peer.name, cmp.Or(k.reason, "no rule that is known"), strings.Join(kinds, ", "),
			fmt.Sprintf("%d of %d", u.files, d.files[k.peer]), shares, u.in)
	}
}

// shareText is in percent; a share that is not 0 does not look like it.
func shareText(share float64) string {
	if share < 0.0005 {
		return "< 0.1 %"
	}
	return fmt.Sprintf("%.1f %%", 100*share)
}
