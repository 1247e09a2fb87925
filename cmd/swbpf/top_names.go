package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
	"github.com/swbpf/swbpf/profile"
	"github.com/swbpf/swbpf/symbols"
)

// topFunc is a function as it is shown. Functions that are equal are one.
type topFunc struct {
	name   string
	module string // file name of its module
	kind   profile.Kind
}

// topNames knows the functions at places, as far as they have been named. It
// belongs to the goroutine of the screen.
type topNames struct {
	funcs []topFunc
	ids   map[topFunc]uint32
	at    map[*topPlaces][][]uint32 // functions by place, innermost first; at least one

	generation int // changes when all numbers of functions are void
}

func newTopNames() *topNames {
	return &topNames{ids: map[topFunc]uint32{}, at: map[*topPlaces][][]uint32{}}
}

func (n *topNames) id(f topFunc) uint32 {
	id, ok := n.ids[f]
	if !ok {
		id = uint32(len(n.funcs))
		n.funcs = append(n.funcs, f)
		n.ids[f] = id
	}
	return id
}

// learn takes in what was found of places.
func (n *topNames) learn(named []topNamed, s *topSnapshot) {
	for _, nd := range named {
		at, list := n.at[nd.places], s.lists[nd.places]
		if int(nd.place) >= len(at) || int(nd.place) >= len(list) {
			continue // has left the window
		}
		p := &list[nd.place]
		funcs := make([]uint32, 0, len(nd.lines))
		for _, l := range nd.lines {
			f := p.function(l.Start)
			if l.Function != "" {
				f.name = printable(l.Function)
			}
			if l.Kind != profile.Unknown {
				f.kind = l.Kind
			}
			funcs = append(funcs, n.id(f))
		}
		if len(funcs) == 0 {
			funcs = append(funcs, n.id(p.function(p.addr)))
		}
		at[nd.place] = funcs
	}
}

// maxTopFuncs is the number of functions at which all names are forgotten and
// looked up anew, so that code that comes and goes does not add up.
const maxTopFuncs = 1 << 20

// sync makes room for the places of a snapshot, has each stand for its module
// until it is named, and forgets those that left the window. It returns what
// is to be asked of a namer.
func (n *topNames) sync(s *topSnapshot) (unnamed []topNameRequest) {
	if len(n.funcs) > maxTopFuncs {
		generation := n.generation + 1
		*n = *newTopNames()
		n.generation = generation
	}
	for places := range n.at {
		if _, ok := s.lists[places]; !ok {
			delete(n.at, places)
		}
	}
	for places, list := range s.lists {
		at, ask := n.at[places], topNameRequest{places: places, list: list}
		for i := len(at); i < len(list); i++ {
			p := &list[i]
			at = append(at, []uint32{n.id(p.unnamed())})
			if p.image != nil || p.kernel {
				ask.ids = append(ask.ids, uint32(i))
			}
		}
		n.at[places] = at
		if len(ask.ids) > 0 {
			unnamed = append(unnamed, ask)
		}
	}
	return unnamed
}

// unnamed is what stands for a place that is not named yet.
func (p *topPlace) unnamed() topFunc {
	switch {
	case strings.HasPrefix(p.marker, "["):
		return topFunc{p.marker, "", profile.Marker}
	case p.marker != "":
		return topFunc{"[truncated: " + p.marker + "]", "", profile.Marker}
	case p.module == "":
		return topFunc{"[unknown]", "", profile.Unknown}
	case p.name != "":
		return topFunc{printable(p.name), p.module, p.kind}
	}
	return topFunc{p.module, p.module, p.kind}
}

// function is the nameless function that begins at addr.
func (p *topPlace) function(addr uint64) topFunc {
	return topFunc{fmt.Sprintf("%s+%#x", p.module, addr), p.module, p.kind}
}

// topNamer names places in another goroutine: reading the debug information
// of a large file takes a second.
type topNamer struct {
	options  symbols.Options
	requests chan topNameRequest
	answers  chan topNameAnswer

	// Of the goroutine that asks:
	pending []topNameRequest
	busy    bool
}

// topNameRequest asks for the names of some places of a numbering.
type topNameRequest struct {
	places *topPlaces
	list   []topPlace
	ids    []uint32
}

// topNameAnswer are the names in a file. The last one for a request says so.
type topNameAnswer struct {
	named []topNamed
	done  bool
}

func newTopNamer(opt symbols.Options) *topNamer {
	return &topNamer{options: opt, requests: make(chan topNameRequest, 1), answers: make(chan topNameAnswer, 1)}
}

// ask has places named, one request after the other.
func (n *topNamer) ask(more ...topNameRequest) {
	n.pending = append(n.pending, more...)
	if n.busy || len(n.pending) == 0 {
		return
	}
	n.requests <- n.pending[0] // there is room: it is not busy
	n.pending, n.busy = n.pending[1:], true
}

// run answers requests until stop is closed.
func (n *topNamer) run(stop <-chan struct{}) {
	names := newCodeNames(n.options)
	defer names.symbolizer.Close()
	for {
		var r topNameRequest
		select {
		case <-stop:
			return
		case r = <-n.requests:
		}
		// By file, the smallest first: the names of a large one must not keep
		// those of others.
		var order []*procstate.Image
		byFile := map[*procstate.Image][]uint32{}
		for _, id := range r.ids {
			im := r.list[id].image
			if _, ok := byFile[im]; !ok {
				order = append(order, im)
			}
			byFile[im] = append(byFile[im], id)
		}
		slices.SortStableFunc(order, func(a, b *procstate.Image) int { return cmp.Compare(imageSize(a), imageSize(b)) })
		for i := 0; i <= len(order); i++ {
			answer := topNameAnswer{done: i == len(order)}
			if !answer.done {
				for _, id := range byFile[order[i]] {
					answer.named = append(answer.named, topNamed{r.places, id, names.name(&r.list[id])})
				}
			}
			select {
			case <-stop:
				return
			case n.answers <- answer:
			}
		}
	}
}

// imageSize is the size of a file, 0 of the kernel.
func imageSize(im *procstate.Image) int64 {
	if im == nil {
		return 0
	}
	return im.Size()
}

// name names a place.
func (n *codeNames) name(p *topPlace) []profile.Line {
	if p.image == nil {
		return n.kernelName(nil, p.addr)
	}
	return n.fileName(nil, p.image, p.addr)
}
