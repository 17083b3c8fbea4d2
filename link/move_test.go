package link_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"ipoibd/link"
	"ipoibd/link/linktest"
	"ipoibd/link/linktest/nstest"
)

const patience = 20 * time.Second

// moveTo moves ib0 out of the test's own namespace.
func moveTo(tb testing.TB, ns *nstest.Namespace) {
	tb.Helper()
	f, err := os.Open(ns.Path())
	must(tb, err)
	defer f.Close()
	l, err := netlink.LinkByName("ib0")
	must(tb, err)
	must(tb, netlink.LinkSetNsFd(l, int(f.Fd())))
}

// awaitState receives states until one is as wanted.
func awaitState(tb testing.TB, states <-chan link.State, what string, ok func(link.State) bool) link.State {
	tb.Helper()
	var last link.State
	for limit := time.After(patience); ; {
		select {
		case s, open := <-states:
			if !open {
				tb.Fatalf("watch ended before: %s", what)
			}
			if last = s; ok(s) {
				return s
			}
		case <-limit:
			tb.Fatalf("no state with: %s; the last was %+v", what, last)
		}
	}
}

// away is the host of a container that the interface was moved to.
type away struct {
	*host
	ns *nstest.Namespace
}

func newAway(tb testing.TB) away {
	tb.Helper()
	h := away{ns: nstest.New(tb)}
	moveTo(tb, h.ns)
	h.ns.Do(func() { h.host = newHost(tb) })
	return h
}

func (h away) SetUp(up bool)          { h.ns.Do(func() { h.host.SetUp(up) }) }
func (h away) SetMTU(mtu int)         { h.ns.Do(func() { h.host.SetMTU(mtu) }) }
func (h away) SetMAC(mac [6]byte)     { h.ns.Do(func() { h.host.SetMAC(mac) }) }
func (h away) Delete()                { h.ns.Do(h.host.Delete) }
func (h away) AddAddr(p netip.Prefix) { h.ns.Do(func() { h.host.AddAddr(p) }) }
func (h away) DelAddr(p netip.Prefix) { h.ns.Do(func() { h.host.DelAddr(p) }) }
func (h away) Send(frame []byte)      { h.ns.Do(func() { h.host.Send(frame) }) }

func (h away) SendOffloaded(header [link.HeaderLen]byte, frame []byte) {
	h.ns.Do(func() { h.host.SendOffloaded(header, frame) })
}

func (h away) Attach() (q linktest.Queue) {
	h.ns.Do(func() { q = h.host.Attach() })
	return q
}

// An interface in a container passes the conformance suite.
func TestMovedTAPConforms(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	linktest.Run(t, func(t *testing.T) (link.Device, linktest.Host) {
		tap, _ := openTAP(t, spec("ib0"))
		return tap, newAway(t)
	})
}

// A watch follows the interface from container to container and back home, even if its name
// and index change.
func TestFollowsMoves(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	states, err := tap.Watch(t.Context())
	must(t, err)
	home := awaitState(t, states, "present", func(s link.State) bool { return s.Present })

	first, second := nstest.New(t), nstest.New(t)
	for i := range home.Index {
		first.Run("ip", "link", "add", "d"+strconv.Itoa(i), "type", "bridge") // takes the index
	}
	moveTo(t, first)
	s := awaitState(t, states, "another index", func(s link.State) bool { return s.Index != home.Index })
	if !s.Present || s.Name != "ib0" || s.MAC != home.MAC || !strings.HasPrefix(s.Alias, link.AliasPrefix) {
		t.Errorf("state after the move: %+v", s)
	}
	inContainer(t, tap, states, first, "192.0.2.1/24")

	first.Run("ip", "link", "set", "eth0", "netns", second.Path(), "name", "ib9")
	awaitState(t, states, "another name", func(s link.State) bool { return s.Name == "ib9" && !s.Up })
	inContainer(t, tap, states, second, "192.0.2.2/24")

	second.Run("ip", "link", "set", "eth0", "netns", strconv.Itoa(os.Getpid()), "name", "ib0")
	s = awaitState(t, states, "home", func(s link.State) bool { return s.Name == "ib0" && !s.Up })
	if !s.Present || len(s.Addrs) != 0 {
		t.Errorf("state at home: %+v", s)
	}
	must(t, tap.SetMTU(1280))
	awaitState(t, states, "MTU at home", func(s link.State) bool { return s.MTU == 1280 })
}

// inContainer uses the interface like a container, with the name eth0 and in a bridge, and
// checks what the TAP reports.
func inContainer(t *testing.T, tap *link.TAP, states <-chan link.State, ns *nstest.Namespace, cidr string) {
	t.Helper()
	s, err := tap.State()
	must(t, err)
	ns.Run("ip", "link", "set", s.Name, "name", "eth0")
	ns.Run("ip", "link", "set", "eth0", "up")
	must(t, tap.SetCarrier(true))
	prefix := netip.MustParsePrefix(cidr)
	ns.Run("ip", "address", "add", cidr, "dev", "eth0")
	has := func(s link.State) bool { return s.Carrier && slices.Contains(s.Addrs, prefix) }
	if s := awaitState(t, states, "address in the container", has); s.Name != "eth0" {
		t.Errorf("state: %+v", s)
	}
	must(t, tap.SetMTU(1300))
	awaitState(t, states, "MTU in the container", func(s link.State) bool { return s.MTU == 1300 })

	ns.Run("ip", "neighbour", "add", "192.0.2.77", "lladdr", "02:00:00:00:00:77", "dev", "eth0")
	list, err := tap.Neighbours()
	must(t, err)
	want := link.Neighbour{IP: netip.MustParseAddr("192.0.2.77"), MAC: [6]byte{2, 0, 0, 0, 0, 0x77}}
	if !slices.Contains(list, want) {
		t.Errorf("Neighbours = %v, want %v in it", list, want)
	}

	ns.Run("ip", "link", "add", "br0", "type", "bridge")
	ns.Run("ip", "link", "set", "eth0", "master", "br0")
	ns.Run("ip", "address", "add", "198.51.100.1/24", "dev", "br0")
	above := netip.MustParsePrefix("198.51.100.1/24")
	awaitState(t, states, "address of the bridge", func(s link.State) bool { return slices.Contains(s.Above, above) })
	ns.Run("ip", "link", "set", "eth0", "nomaster")
	awaitState(t, states, "out of the bridge", func(s link.State) bool { return s.Master == 0 && len(s.Above) == 0 })
}

// Following the interface does not keep its container alive: the kernel deletes the
// interface with the container, up or down. Watch reports that, and the next start creates
// the interface again.
func TestContainerDestroyed(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, state := range []string{"up", "down"} {
		t.Run(state, func(t *testing.T) {
			tap, _ := openTAP(t, spec("ib0"))
			states, err := tap.Watch(t.Context())
			must(t, err)
			container := nstest.New(t)
			moveTo(t, container)
			must(t, tap.SetCarrier(true))
			container.Run("ip", "link", "set", "ib0", state, "mtu", "1300")
			awaitState(t, states, "in the container", func(s link.State) bool { return s.MTU == 1300 && s.Up == (state == "up") })
			ctx, cancel := context.WithCancel(t.Context())
			var client sync.WaitGroup
			client.Go(func() {
				for ctx.Err() == nil {
					_, _ = tap.KernelCounters() // must not keep the container
					time.Sleep(time.Millisecond)
				}
			})

			start := time.Now()
			container.Close()
			awaitState(t, states, "absence", func(s link.State) bool { return !s.Present })
			cancel()
			client.Wait()
			t.Logf("reported %v after the end of the container", time.Since(start).Round(time.Millisecond))
			bufs, sizes := [][]byte{make([]byte, 100)}, make([]int, 1)
			for err == nil {
				_, err = tap.ReadBatch(bufs, sizes)
			}
			if !errors.Is(err, link.ErrGone) {
				t.Errorf("ReadBatch = %v, want ErrGone", err)
			}
			must(t, tap.Close())
			if _, adopted := openTAP(t, spec("ib0")); adopted {
				t.Error("adopted an interface that was deleted")
			}
		})
	}
}

// An interface that is held from outside is held in the container too. Once it was
// left there, a start in the container adopts it. Outside, where its name is free, a
// start creates another one.
func TestOwnedFromOutside(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	container := nstest.New(t)
	moveTo(t, container)
	container.Do(func() {
		if _, _, err := link.Open(spec("ib0")); !errors.Is(err, link.ErrOwned) {
			t.Errorf("Open in the container = %v, want ErrOwned", err)
		}
		if err := link.Delete("ib0"); !errors.Is(err, link.ErrOwned) {
			t.Errorf("Delete in the container = %v, want ErrOwned", err)
		}
	})
	if _, adopted := openTAP(t, spec("ib0")); adopted {
		t.Error("outside: adopted")
	}
	must(t, tap.Close())
	container.Do(func() {
		inside, adopted, err := link.Open(spec("ib0"))
		must(t, err)
		if !adopted {
			t.Error("in the container: not adopted")
		}
		must(t, inside.Close())
	})
}

// Remove removes the interface whatever its name and namespace, and no other interface.
func TestRemove(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}))
	container := nstest.New(t)
	for _, c := range []struct {
		what string
		do   func()
	}{
		{"at home", func() {}},
		{"in a container", func() { moveTo(t, container) }},
		{"renamed there", func() {
			moveTo(t, container)
			container.Run("ip", "link", "set", "ib0", "name", "eth0")
		}},
		{"deleted before", func() { must(t, netlink.LinkDel(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "ib0"}})) }},
	} {
		tap, _ := openTAP(t, spec("ib0"))
		c.do()
		if err := tap.Remove(); err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if err := tap.Remove(); !errors.Is(err, link.ErrClosed) {
			t.Errorf("%s: Remove again = %v, want ErrClosed", c.what, err)
		}
		here, err := netlink.LinkList()
		must(t, err)
		var there []netlink.Link
		container.Do(func() { there, err = netlink.LinkList() })
		must(t, err)
		if len(here) != 2 || len(there) != 1 {
			t.Errorf("%s: %d interfaces here, %d there; want lo and eth0, and lo", c.what, len(here), len(there))
		}
	}
}

// If the container may not be entered, the interface is reported as not present, because its
// state is unknown.
func TestMovedBeyondReach(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	_, says := holdElsewhere(t, "ib0", "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
	moveTo(t, nstest.New(t))
	hears(t, says, "absent")
}

// A hundred moves leave no goroutine, no descriptor and no thread.
func TestMovesLeakNothing(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	tap, _ := openTAP(t, spec("ib0"))
	ctx, cancel := context.WithCancel(t.Context())
	states, err := tap.Watch(ctx)
	must(t, err)
	container := nstest.New(t)
	mtu := 1300
	cycle := func() {
		mtu++
		moveTo(t, container)
		container.Run("ip", "link", "set", "ib0", "mtu", strconv.Itoa(mtu))
		awaitState(t, states, "there", func(s link.State) bool { return s.MTU == mtu })
		container.Run("ip", "link", "set", "ib0", "netns", strconv.Itoa(os.Getpid()))
		mtu++
		must(t, tap.SetMTU(mtu))
		awaitState(t, states, "here", func(s link.State) bool { return s.MTU == mtu })
	}
	cycle() // what the runtime and the libraries open once
	goroutines, files, threads := runtime.NumGoroutine(), openFiles(t), len(threadNamespaces(t))
	for range 50 {
		cycle()
	}
	t.Logf("%d goroutines, %d descriptors, %d threads", goroutines, files, threads)
	requireNoMore(t, goroutines, files)
	const spare = 8 // the runtime's own
	own := threadNamespaces(t)
	if len(own) > threads+spare {
		t.Errorf("%d threads, were %d", len(own), threads)
	}
	if slices.Sort(own); own[0] != own[len(own)-1] {
		t.Errorf("threads are in the namespaces %q", own)
	}
	cancel()
	for range states {
	}
}

// threadNamespaces names the network namespace of each thread.
func threadNamespaces(t *testing.T) (names []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/task")
	must(t, err)
	for _, task := range list {
		name, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if err == nil { // a thread may have ended
			names = append(names, name)
		}
	}
	return names
}
