package docker

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// box is a place for the processes of an engine: its own network, mount and process
// namespaces. What they write to /etc, /opt, /run and /var, and the device nodes in /dev/net, exist
// only there.
type box struct {
	*nstest.Namespace
	tb     testing.TB
	dir    string // for the engine's files
	cgroup string // parent of the containers' cgroups
	init   string // process ID of the box's init
}

// enterBox prepares the mounts and becomes the init of the box. /dev/net/tun gets the mode
// that udev gives it, which not every machine has.
const enterBox = `
mount -t tmpfs tmpfs /run
for dir in etc opt var; do
	mkdir -p /run/box/$dir /run/box/$dir.work
	mount -t overlay -o lowerdir=/$dir,upperdir=/run/box/$dir,workdir=/run/box/$dir.work overlay /$dir
done
mount -t tmpfs -o mode=755 tmpfs /dev/net
mknod /dev/net/tun c 10 200
chmod 666 /dev/net/tun
exec tini -s -- sleep infinity
`

// newBox creates a box with the network of a namespace.
func newBox(tb testing.TB, ns *nstest.Namespace) *box {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Fatal("the tests with containers must run as root, which Docker requires")
	}
	dir, err := os.MkdirTemp("", "box-") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		tb.Fatalf("make a folder: %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // Podman's user uses it
		tb.Fatal(err)
	}
	b := &box{Namespace: ns, tb: tb, dir: dir, cgroup: "/" + filepath.Base(dir)}
	cmd := ns.Command("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", enterBox)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		tb.Fatalf("make namespaces: %v", err)
	}
	tb.Cleanup(func() {
		_ = cmd.Wait() // the test's end has killed it
		b.remove()
	})
	children := fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid)
	eventually(tb, "the init of the box runs", func() bool {
		text, _ := os.ReadFile(children)
		b.init = strings.TrimSpace(string(text))
		comm, _ := os.ReadFile("/proc/" + b.init + "/comm")
		return b.init != "" && strings.TrimSpace(string(comm)) == "tini"
	}, func() string { return stderr.String() })
	return b
}

// inBox prepares a program that runs in the box.
func (b *box) inBox(args ...string) *exec.Cmd {
	args = append([]string{"--target", b.init, "--mount", "--pid", "--net", "--"}, args...)
	cmd := exec.CommandContext(b.tb.Context(), "nsenter", args...)
	cmd.WaitDelay = waitDelay
	return cmd
}

// remove removes what the kernel does not remove with the namespaces.
func (b *box) remove() {
	for _, pattern := range []string{"/sys/fs/cgroup" + b.cgroup, "/sys/fs/cgroup/*" + b.cgroup} {
		found, _ := filepath.Glob(pattern)
		for _, top := range found {
			eventually(b.tb, "the cgroups are removed", func() bool { return removeCgroups(top) == nil }, nil)
		}
	}
	if err := os.RemoveAll(b.dir); err != nil {
		b.tb.Errorf("remove the directory: %v", err)
	}
}

// removeCgroups removes a cgroup with those below it, which have no processes.
func removeCgroups(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		if err == nil {
			err = os.Remove(dir)
		}
	}
	return err
}

const (
	// patience is the limit for events that take at most two seconds on an idle machine.
	patience  = 30 * time.Second
	waitDelay = 5 * time.Second // for pipes that a grandchild keeps open
)

// eventually polls until ok; after patience the test fails, and shows the details.
func eventually(tb testing.TB, what string, ok func() bool, details func() string) {
	tb.Helper()
	if nstest.Poll(patience, ok) {
		return
	}
	if details == nil {
		details = func() string { return "" }
	}
	tb.Fatalf("%s: not within %v\n%s", what, patience, details())
}
