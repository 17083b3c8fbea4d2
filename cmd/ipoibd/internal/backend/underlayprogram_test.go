package backend

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"ipoibd/bpf"
	linux "ipoibd/link/kernel"
	"ipoibd/link/linktest/nstest"
)

// The program is at the ingress of the underlay for which the HCA was opened last, and nowhere else. It ends with its
// process, unless another one continues. Without a fast path, what a killed process left is removed.
func TestUnderlayProgram(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	ns := nstest.New(t)
	index := map[string]int{}
	ns.Run("ip", "link", "add", "old", "type", "veth", "peer", "name", "new")
	for _, name := range []string{"old", "new"} {
		ns.Do(func() {
			netdev, err := net.InterfaceByName(name)
			must(t, err)
			index[name] = netdev.Index
		})
	}
	at := func() (names []string) {
		for _, name := range []string{"old", "new"} {
			if strings.Contains(ns.Run("tc", "filter", "show", "dev", name, "ingress"), "ipoibd") {
				names = append(names, name)
			}
		}
		return names
	}
	becomes := func(when, want string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); strings.Join(at(), ",") != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the program is at %q, want %q", when, at(), want)
			}
		}
	}
	program := nstest.Program(t, ebpf.SchedCLS, 0)
	none := bpf.NoFastPath(bpf.ErrNotLoaded)
	for _, c := range []struct {
		name   string
		path   *bpf.FastPath
		given  bool
		first  string // where the program is after the HCA was opened on "old"
		second string // and then on "new"
		last   string // and after the process has exited
	}{
		{"another process continues", &bpf.FastPath{AtUnderlay: program}, true, "old", "new", "new"},
		{"the next process", &bpf.FastPath{AtUnderlay: program}, false, "old,new", "new", ""},
		{"none loaded", none, false, "new", "", ""},
		{"none wanted", nil, false, "new", "", ""},
	} {
		if c.second == "" { // as a killed process leaves it
			ns.Do(func() { must(t, linux.AttachProgram(index["new"], linux.Ingress, program)) })
		}
		p := newUnderlayProgram(c.path, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ns.Do(func() { p.run(ctx) })
		}()
		p.setUnderlay(index["old"])
		becomes(c.name+", first", c.first)
		p.setUnderlay(index["new"]) // it has got the name of the underlay
		becomes(c.name+", second", c.second)
		if c.given {
			p.giveUp()
		}
		stop()
		<-ended
		becomes(c.name+", last", c.last)
	}
}
