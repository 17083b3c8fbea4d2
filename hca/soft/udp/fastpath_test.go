package udp

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/bpf"
	"ipoibd/hca/soft/transport"
	"ipoibd/link/linktest/nstest"
)

// A gate that is added does not hide a change of the underlay from the reader of the state.
func TestAddGateHidesNoChange(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	const limit = 10 * time.Second
	ns, _ := nstest.Pair(t, 1500)
	var tr *Transport
	ns.Do(func() {
		fds, err := bpf.LoadFastPath()
		var fast *bpf.FastPath
		if err == nil {
			fast, err = bpf.OpenFastPath(fds)
		}
		if err == nil {
			tr, err = Open(Config{Netdev: nstest.Dev, FastPath: fast})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	defer tr.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	now := tr.State()
	for !slices.ContainsFunc(now.Addrs, netip.Addr.IsLinkLocalUnicast) { // the last one
		var err error
		if now, err = tr.WaitChange(ctx); err != nil {
			t.Fatal(err)
		}
	}
	added := netip.MustParseAddr("192.0.2.77")
	ns.Run("ip", "address", "add", added.String()+"/24", "dev", nstest.Dev)
	for end := time.Now().Add(limit); !tr.watch.HasAddr(added); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watcher does not see the new address")
		}
	}
	g, err := tr.AddGate(transport.GateSpec{Netdev: tr.watch.index + 1, Addr: now.Addrs[1], Num: 2, Ports: []uint16{tr.SrcPort()}})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := tr.WaitChange(ctx); err != nil || !slices.Contains(s.Addrs, added) {
		t.Errorf("the new address is not reported: %v, %v", s.Addrs, err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}
