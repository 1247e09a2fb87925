package loader

import (
	"slices"
	"strings"

	"github.com/swbpf/swbpf/procstate"
)

// ProbeNames lists the names of events of probes that begin with begun, in order: once that has a file of a uprobe or
// static probe and the colon behind it, or the first letter of a function of the kernel. Before that, and where
// there are none, it is empty.
func ProbeNames(begun string) (names []string) {
	kind, spec, _ := strings.Cut(begun, ":")
	switch kind {
	case "kprobe", "kretprobe":
		if spec != "" {
			names = kernelFunctions()
		}
		begun, spec = spec, kind+":"
	case "uprobe", "uretprobe", "usdt":
		file, _, ok := strings.Cut(spec, ":")
		if !ok || file == "" {
			return nil
		}
		path, err := resolveBinary(file)
		if err != nil {
			return nil
		}
		spec = kind + ":" + file + ":"
		begun = strings.TrimPrefix(begun, spec)
		_ = withImage(begun, path, func(im *procstate.Image) error {
			names = placesOf(im, kind == "usdt")
			return nil
		})
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) })
	slices.Sort(names)
	names = slices.Compact(names)
	for i := range names {
		names[i] = spec + names[i]
	}
	return names
}

// placesOf lists the functions of a file or, with static, its static probes.
func placesOf(im *procstate.Image, static bool) (names []string) {
	if static {
		probes, _ := staticProbes(im)
		for _, p := range probes {
			names = append(names, p.provider+":"+p.name)
		}
		return names
	}
	im.EachSymbol(func(s *procstate.ELFSymbol) bool {
		if off, ok := im.OffsetOfVaddr(s.Value, 1); ok && s.Value != 0 && len(s.Name) > 0 && isFunction(s) && isCode(im, off) {
			names = append(names, string(s.Name))
		}
		return true
	})
	return names
}
