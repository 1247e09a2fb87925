package loader

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/swbpf/swbpf/internal/testenv"
)

// Paths as the engines make them, by their documentation.
func TestCgroupNames(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for path, want := range map[string][2]string{ // container, unit
		"/":                                     {},
		"/docker/" + id:                         {id, ""}, // Docker, cgroupfs driver
		"/system.slice/docker-" + id + ".scope": {id, ""}, // and systemd driver
		"/system.slice/docker-" + id + ".scope/system.slice/nginx.service":                                          {id, "nginx.service"},
		"/machine.slice/libpod-" + id + ".scope":                                                                    {id, ""}, // Podman
		"/machine.slice/libpod-" + id + ".scope/container":                                                          {id, ""},
		"/libpod_parent/libpod-" + id:                                                                               {id, ""},
		"/system.slice/web.service/libpod-payload-" + id:                                                            {id, "web.service"}, // by Quadlet
		"/machine.slice/libpod-conmon-" + id + ".scope":                                                             {"", "libpod-conmon-" + id + ".scope"},
		"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope":                          {id, "user@1000.service"},
		"/kubepods/besteffort/pod6a1f/" + id:                                                                        {id, ""}, // Kubernetes, cgroupfs driver
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod6a1f.slice/cri-containerd-" + id + ".scope": {id, ""},
		"/kubepods.slice/kubepods-pod6a1f.slice/crio-" + id + ".scope":                                              {id, ""},
		"/kubepods.slice/kubepods-pod6a1f.slice/crio-conmon-" + id + ".scope":                                       {"", "crio-conmon-" + id + ".scope"},
		"/kubepods-burstable-pod6a1f.slice:cri-containerd:" + id:                                                    {id, ""},
		"/system.slice/nerdctl-" + id + ".scope":                                                                    {id, ""},
		"/default/" + id:                                                                                            {id, ""}, // containerd by itself
		"/system.slice/ssh.service":                                                                                 {"", "ssh.service"},
		"/system.slice/system-getty.slice/getty@tty1.service":                                                       {"", "getty@tty1.service"},
		"/user.slice/user-1000.slice/session-3.scope":                                                               {"", "session-3.scope"},
		"/user.slice/user-1000.slice/user@1000.service/app.slice/app-foot@9.service":                                {"", "app-foot@9.service"},
		"/system.slice/_cpu.service":                                                                                {"", "cpu.service"},
		"/init.scope":                                                                                               {"", "init.scope"},
		"/docker/" + id[1:]:                                                                                         {},
		"/docker/" + strings.ToUpper(id):                                                                            {},
		"/system.slice/.service":                                                                                    {},
	} {
		if got := [2]string{ContainerOfCgroup(path), UnitOfCgroup(path)}; got != want {
			t.Errorf("%s: container %q, unit %q; want %q", path, got[0], got[1], want)
		}
	}
}

// A cgroup's ID is the number of its directory, and leads back to it.
func TestCgroupsPath(t *testing.T) {
	c, err := OpenCgroups()
	if err != nil {
		t.Skip(err)
	}
	defer c.Close()
	root, err := pathOf(c.root)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(root, "swbpf-test-*")
	if err != nil {
		t.Skipf("cannot make cgroups: %v", err)
	}
	defer os.Remove(dir)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	if got, want := c.Path(st.Ino), "/"+filepath.Base(dir); got != want {
		t.Errorf("%d is %q, want %q", st.Ino, got, want)
	}
	if err := unix.Stat(root, &st); err != nil {
		t.Fatal(err)
	}
	if got := c.Path(st.Ino); got != "/" {
		t.Errorf("the root, %d, is %q", st.Ino, got)
	}
	if got := c.Path(1 << 40); got != "" {
		t.Errorf("no cgroup is %q", got)
	}
}

// The hierarchy that is mounted nowhere leads from paths to IDs and back, too.
func TestCgroupsUnmounted(t *testing.T) {
	const variable = "SWBPF_TEST_UNMOUNTED"
	if os.Getenv(variable) == "" {
		testCgroups(t) // so that there is one
		cmd := exec.Command("unshare", "--mount", "sh", "-c", `umount --all --types cgroup2; exec "$0" -test.run='^TestCgroupsUnmounted$'`, os.Args[0])
		cmd.Env = append(os.Environ(), variable+"=1")
		testenv.Run(t, cmd)
		return
	}
	if at := cgroupMount(); at != "" {
		t.Fatalf("still at %s", at)
	}
	c, err := OpenCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var paths []string
	c.each("/", func(path string) bool {
		paths = append(paths, path)
		return len(paths) < 5
	})
	if len(paths) < 2 {
		t.Fatalf("only %q", paths)
	}
	for _, path := range paths {
		ids, err := c.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Path(ids[0]); got != path {
			t.Errorf("%s is %q by its ID", path, got)
		}
	}
	root, err := c.Find("/")
	if err != nil || !slices.Contains(c.PIDs(root), os.Getpid()) {
		t.Errorf("processes %v, %v, not %d", c.PIDs(root), err, os.Getpid())
	}
}

// The path of a cgroup that is gone is known until it was not asked for between two
// calls of Forget; one that does not come again takes no memory.
func TestCgroupsForget(t *testing.T) {
	c := Cgroups{root: -1, paths: map[uint64]string{7: "/a", 8: "/b"}}
	c.Forget()
	if got := c.Path(7); got != "/a" {
		t.Errorf("after one call: %q", got)
	}
	c.Forget()
	if got := c.Path(7); got != "/a" || len(c.before) != 1 {
		t.Errorf("asked for in between: %q, with %v", got, c.before)
	}
	if got := c.Path(8); got != "" {
		t.Errorf("not asked for in between: %q", got)
	}
	c.Forget()
	c.Forget()
	if len(c.paths)+len(c.before) != 0 {
		t.Errorf("left: %v, %v", c.paths, c.before)
	}
}

// A cgroup has its path, in the hierarchy or where it is mounted, and what the name of a
// unit or the ID of a container is in all of those that have it.
func TestCgroupsFind(t *testing.T) {
	root, find := testCgroups(t)
	id := strings.Repeat("0123456789abcdef", 4)
	ids := map[string]uint64{}
	for _, dir := range []string{
		"a.slice", "a.slice/swbpf-web.service", "a.slice/swbpf-web.service/inner", "b.slice", "b.slice/swbpf-web.service",
		"docker-" + id + ".scope", "docker-" + id + ".scope/inner", "plain-swbpf",
	} {
		newCgroup(t, root+"/"+dir)
		var st unix.Stat_t
		if err := unix.Stat(root+"/"+dir, &st); err != nil {
			t.Fatal(err)
		}
		ids[dir] = st.Ino
	}
	top := "/" + filepath.Base(root)
	units := []uint64{ids["a.slice/swbpf-web.service"], ids["b.slice/swbpf-web.service"]}
	for name, want := range map[string][]uint64{
		"swbpf-web":                             units,
		"swbpf-web.service":                     units,
		id:                                      {ids["docker-"+id+".scope"]},
		id[:12]:                                 {ids["docker-"+id+".scope"]},
		"plain-swbpf":                           {ids["plain-swbpf"]},
		top + "/a.slice/swbpf-web.service/":     {units[0]},
		root + "/a.slice/../b.slice":            {ids["b.slice"]},
		"/.." + top + "/../" + top + "/b.slice": {ids["b.slice"]},
	} {
		got := find(name)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	p, other := startTarget(t, stackTarget(t), "fill", "64"), startTarget(t, stackTarget(t), "fill", "64")
	enterCgroup(t, p, root+"/a.slice/swbpf-web.service/inner")
	enterCgroup(t, other, root+"/b.slice")
	c, err := OpenCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.PIDs(append(find(top), ids["b.slice"], 1<<40)), []int{min(p.pid, other.pid), max(p.pid, other.pid)}; !slices.Equal(got, want) {
		t.Errorf("processes %d, want %d", got, want)
	}
	if got := c.PIDs(units); !slices.Equal(got, []int{p.pid}) {
		t.Errorf("processes %d in a unit, want %d", got, p.pid)
	}
	for _, name := range []string{"", "swbpf-we", "web-swbpf.service", id[:11], id[1:], top + "/none", top + "/cgroup.procs", "/.." + top + "x"} {
		if ids, err := c.Find(name); err == nil {
			t.Errorf("%q: %d", name, ids)
		}
	}
	c.Close()
	if _, err := c.Find("/"); err == nil {
		t.Error("found in what is closed")
	}
}
