package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/linktest/nstest"
)

// The command that status and log suggest if another process has a queue is safe to
// copy to a shell, and finds the process, with any name that a container gives to
// ib0.
func TestSuggestedCommandQuotesTheName(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a := newHosts(t, 1)[0]
	a.join()
	const name = "$(touch${IFS}x)"
	a.Run("ip", "link", "set", ifName, "down")
	a.Run("ip", "link", "set", ifName, "name", name)
	a.Run("ip", "link", "set", name, "up")
	a.Do(func() {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		req, err := unix.NewIfreq(name)
		if err != nil {
			t.Fatal(err)
		}
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			t.Fatal(err)
		}
	})
	var after string
	eventually(t, repairLimit, "a command with the new name is suggested", func() (found bool) {
		_, after, found = strings.Cut(a.iface().Reason, "`")
		return found && strings.Contains(after, "touch")
	})
	command, _, _ := strings.Cut(after, "`")
	cmd := a.Command("sh", "-c", command)
	cmd.Dir = t.TempDir()
	out, _ := cmd.Output()
	if _, err := os.Stat(filepath.Join(cmd.Dir, "x")); err == nil {
		t.Errorf("%s executes the name of the interface", command)
	}
	if !strings.Contains(string(out), "/fdinfo/") {
		t.Errorf("%s finds no process", command)
	}
}
