package symbols

import (
	"slices"
	"sort"

	"github.com/swbpf/swbpf/procstate"
)

// maxJITImages bounds what is kept of the object files of one process, in bytes:
// there are no names for the code of those that came when there were more.
const maxJITImages = 64 << 20

// jitImages are the object files that a process has registered for the code that it
// generates. They stay when the process has unregistered them, until their place
// is taken by others.
type jitImages struct {
	s       *Symbolizer
	objects *procstate.JITObjects
	code    []jitCode // in order of address, without overlaps
	size    int64
}

// jitCode is code at the run-time addresses [start, end). Link-time addresses of the
// image are run-time addresses.
type jitCode struct {
	start, end uint64
	image      *procstate.Image
}

// update takes over what the process has registered since the last time.
func (j *jitImages) update() {
	j.objects.Begin()
	for _, im := range j.objects.Linked() {
		segments := im.Segments()
		j.remove(func(c jitCode) bool {
			return slices.ContainsFunc(segments, func(s procstate.Segment) bool { return c.start < s.Vaddr+s.Memsz && s.Vaddr < c.end })
		})
		if j.size+im.Size() > maxJITImages {
			continue
		}
		j.size += im.Size()
		for _, s := range segments {
			if end := s.Vaddr + s.Memsz; j.at(s.Vaddr) == nil && j.next(s.Vaddr) >= end {
				j.code = slices.Insert(j.code, j.index(s.Vaddr), jitCode{s.Vaddr, end, im})
			}
		}
	}
}

// remove forgets the images with code of which gone is true.
func (j *jitImages) remove(gone func(jitCode) bool) {
	var images []*procstate.Image
	for _, c := range j.code {
		if gone(c) && !slices.Contains(images, c.image) {
			images = append(images, c.image)
			j.size -= c.image.Size()
			j.s.forgetFile(c.image)
		}
	}
	if len(images) > 0 {
		j.code = slices.DeleteFunc(j.code, func(c jitCode) bool { return slices.Contains(images, c.image) })
	}
}

// index returns the number of ranges that start at an address or below.
func (j *jitImages) index(addr uint64) int {
	return sort.Search(len(j.code), func(i int) bool { return j.code[i].start > addr })
}

// next returns where the first range above an address starts.
func (j *jitImages) next(addr uint64) uint64 {
	if i := j.index(addr); i < len(j.code) {
		return j.code[i].start
	}
	return ^uint64(0)
}

// at returns the image of the code at an address, nil when there is none.
func (j *jitImages) at(addr uint64) *procstate.Image {
	if i := j.index(addr) - 1; i >= 0 && addr < j.code[i].end {
		return j.code[i].image
	}
	return nil
}

// forgetFile drops what is known of a file that will not be asked for again.
func (s *Symbolizer) forgetFile(im *procstate.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, im)
}
