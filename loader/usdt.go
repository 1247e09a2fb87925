package loader

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// parseUSDT looks up the event "usdt:FILE:PROVIDER:NAME", called name: a static probe at
// all its locations. It may be "usdt:FILE:NAME" where only one provider has such a probe.
func parseUSDT(name, spec string, pids []int) (Event, error) {
	file, probe, ok := cutLast(spec)
	provider := ""
	if f, p, has := cutLast(file); has {
		file, provider = f, p
	}
	if !ok || file == "" {
		return Event{}, fmt.Errorf("event %s: should be usdt:FILE:PROVIDER:NAME", name)
	}
	return newUprobe(name, file, false, pids, func(im *procstate.Image, places []place) ([]place, error) {
		found, err := findStaticProbe(im, name, "usdt:"+file+":", provider, probe)
		if err != nil {
			return nil, err
		}
		for i := range found {
			if places, err = addLocation(places, im, &found[i]); err != nil {
				return nil, fmt.Errorf("event %s: %w", name, err)
			}
		}
		if len(places) == 0 {
			return nil, fmt.Errorf("event %s: none of its locations in %s is code", name, im.Path)
		}
		return places, nil
	})
}

// cutLast cuts s at its last colon.
func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// findStaticProbe returns the locations of a probe; provider may be "", if all are of
// one. event names the event in errors, and prefix is what those of the file begin with.
func findStaticProbe(im *procstate.Image, event, prefix, provider, probe string) ([]staticProbe, error) {
	all, err := staticProbes(im)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", event, err)
	}
	if len(all) == 0 {
		return nil, &UnknownEventError{Name: event, Why: im.Path + " has no static probes (USDT)"}
	}
	var found []staticProbe
	var names, providers []string
	for _, p := range all {
		if p.name == probe && (p.provider == provider || provider == "") {
			found = append(found, p)
			providers = append(providers, prefix+p.provider+":"+probe)
		}
		names = append(names, p.provider+":"+p.name)
	}
	slices.Sort(providers)
	providers = slices.Compact(providers)
	switch {
	case len(providers) == 1:
		return found, nil
	case len(providers) > 1:
		return nil, fmt.Errorf("event %s: which of %s?", event, strings.Join(providers, ", "))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	unknown := &UnknownEventError{Name: event, Why: im.Path + " has no probe " + probe}
	if provider != "" {
		unknown.Why = im.Path + " has no probe " + provider + ":" + probe
		if own := ofProvider(names, provider); len(own) > 0 {
			names = own
		} else {
			probe = provider + ":" + probe
		}
	}
	for _, near := range nearNames(probe, names) {
		unknown.Near = append(unknown.Near, prefix+near)
	}
	if len(unknown.Near) == 0 {
		unknown.Why += "; it has " + someOf(names)
	}
	return nil, unknown
}

// ofProvider returns those of the names that are of a provider.
func ofProvider(names []string, provider string) (own []string) {
	for _, name := range names {
		if strings.HasPrefix(name, provider+":") {
			own = append(own, name)
		}
	}
	return own
}

// maxListed bounds how many names are listed in an error.
const maxListed = 24

// someOf lists names, and how many more there are.
func someOf(names []string) string {
	if len(names) <= maxListed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), len(names)-maxListed)
}

// addLocation adds the place of a probe's location, unless it is there already, or not in
// code: then it is of a function that the linker has left out.
func addLocation(places []place, im *procstate.Image, s *staticProbe) ([]place, error) {
	p := place{pc: s.pc, arguments: s.arguments}
	var ok bool
	if p.offset, ok = im.OffsetOfVaddr(s.pc, 1); !ok || !isCode(im, p.offset) {
		return places, nil
	}
	if s.semaphore != 0 {
		// The kernel counts in a page of the file that is mapped to be written.
		if p.semaphore, ok = im.OffsetOfVaddr(s.semaphore, 2); !ok || p.semaphore == 0 || !isWritable(im, p.semaphore) {
			return places, fmt.Errorf("the semaphore at %#x of %s is in none of its pages that can be written", s.semaphore, im.Path)
		}
	}
	i := slices.IndexFunc(places, func(q place) bool { return q.offset == p.offset })
	switch {
	case i < 0:
		return append(places, p), nil
	case places[i] != p:
		return places, fmt.Errorf("%s has two notes of it at %#x that differ", im.Path, s.pc)
	}
	return places, nil
}

// isWritable reports whether a file offset is in a segment that can be written.
func isWritable(im *procstate.Image, off uint64) bool {
	return slices.ContainsFunc(im.Segments(), func(s procstate.Segment) bool {
		return s.Flags&elf.PF_W != 0 && off-s.Off < s.Filesz
	})
}

// semaphoreConfig returns what the configuration of a uprobe event adds for a semaphore
// at a file offset (since Linux 4.20).
func semaphoreConfig(offset uint64) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(pmuDir, "uprobe", "format", "ref_ctr_offset"))
	if err != nil {
		return 0, fmt.Errorf("semaphore: %w", err)
	}
	first, last, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(string(b), "config:")), "-")
	low, err1 := strconv.ParseUint(first, 10, 6)
	high, err2 := strconv.ParseUint(last, 10, 6)
	switch {
	case err1 != nil || err2 != nil || high < low:
		return 0, fmt.Errorf("semaphore: its bits are %q", b)
	case offset>>(high-low+1) != 0:
		return 0, fmt.Errorf("semaphore: offset %#x in the file is larger than the kernel can be told", offset)
	}
	return offset << low, nil
}
