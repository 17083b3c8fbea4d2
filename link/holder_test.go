package link

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"ipoibd/link/linktest/nstest"
)

// The alias names the holder, unless the host has chosen another alias. A process that has exited, or belongs to
// another PID namespace, is not reported as the holder.
func TestAliasNamesTheHolder(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	exited := exec.Command("true")
	must(t, exited.Run())
	find := func() netlink.Link {
		l, err := netlink.LinkByName("ib0")
		must(t, err)
		return l
	}
	const chosen, like = AliasPrefix + " uplink", AliasPrefix + ": process 7 of the plant"
	for _, c := range []struct {
		was      string // before Open
		pid      int    // that the alias names
		held     string // while it is open
		unheld   string // after Close
		restored bool   // an inspection signs again
	}{
		{AliasPrefix, 0, signature(os.Getpid()), AliasPrefix, true},
		{signature(os.Getppid()), os.Getppid(), signature(os.Getpid()), AliasPrefix, true},
		{signature(exited.Process.Pid), 0, signature(os.Getpid()), AliasPrefix, true},
		{fmt.Sprintf("ipoibd: process %d of pid:[1]", os.Getppid()), 0, signature(os.Getpid()), AliasPrefix, true},
		{"ipoibd: process 7 of ", 0, signature(os.Getpid()), AliasPrefix, true}, // from where /proc is not mounted
		{chosen, 0, chosen, chosen, false},
		{like, 0, like, like, false},
	} {
		tap, _, err := Open(Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500})
		must(t, err)
		must(t, tap.Close())
		must(t, netlink.LinkSetAlias(find(), c.was))
		if pid := holder(find()); pid != c.pid {
			t.Errorf("%q names process %d, want %d", c.was, pid, c.pid)
		}
		tap, _, err = Open(Spec{Name: "ib0", MAC: [6]byte{2}, MTU: 1500})
		must(t, err)
		if got := find().Attrs().Alias; got != c.held {
			t.Errorf("%q becomes %q, want %q", c.was, got, c.held)
		}
		if c.restored { // as after a hand-over from another process
			must(t, netlink.LinkSetAlias(find(), signature(exited.Process.Pid)))
			if f, err := tap.Inspect(); err != nil || len(f.Restored) > 0 || holder(find()) != os.Getpid() {
				t.Errorf("Inspect = %+v, %v; alias %q", f, err, find().Attrs().Alias)
			}
		}
		must(t, tap.Close())
		if got := find().Attrs().Alias; got != c.unheld {
			t.Errorf("%q stays, want %q", got, c.unheld)
		}
		must(t, Delete("ib0"))
	}
	if !strings.HasPrefix(signature(1), "ipoibd: process 1 of pid:[") {
		t.Error(signature(1))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
