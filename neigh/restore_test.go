package neigh

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// A table that continues another one knows its peers: it requests the handles of the used ones at once,
// and then the data path needs neither a resolution nor the slow path. It asks nobody.
func TestRestored(t *testing.T) {
	now := time.Unix(1e9, 0)
	peer := func(n byte, used bool) PeerInfo {
		gid := hca.GIDFromAddr(netip.AddrFrom4([4]byte{192, 0, 2, n}))
		return PeerInfo{MAC: plainMAC(gid), GID: gid, QPN: 0x100 + hca.QPN(n), IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, n})}, Used: used}
	}
	used, heard := peer(7, true), peer(8, false)
	used.SentBytes, used.HeardBytes = 100, 200
	bad := []PeerInfo{peer(9, true), peer(10, true), peer(11, true), used, peer(12, true)}
	bad[0].QPN = hca.QPNGSI
	bad[1].MAC = ipoib.Broadcast
	bad[2].GID = hca.GID{0xff}
	bad[4].MAC = used.MAC

	table := New(Config{})
	table.Step(now, Restored{Peers: append([]PeerInfo{used, heard}, bad...)}, nil)
	got := table.Peers()
	if len(got) != 2 {
		t.Fatalf("%d peers, want 2: %+v", len(got), got)
	}
	for _, p := range got {
		if p.Used && (p.SentBytes != used.SentBytes || p.HeardBytes != used.HeardBytes) {
			t.Errorf("%d and %d bytes, want those of the former table", p.SentBytes, p.HeardBytes)
		}
	}
	self := ipoib.NewAddr(0x99, hca.GIDFromAddr(netip.MustParseAddr("192.0.2.1")))
	var snapshot *Snapshot
	var asked []CreateAH
	handle := func(actions []Action) {
		for _, a := range actions {
			switch a := a.(type) {
			case Publish:
				snapshot = a.Snapshot
			case CreateAH:
				asked = append(asked, a)
			case SendFabric:
				t.Errorf("a message: %x", a.Msg)
			}
		}
	}
	handle(table.Step(now, Attached{Self: self, MTU: 1500}, nil))
	if len(asked) != 1 || asked[0].DGID != used.GID || table.Asked() != 1 {
		t.Fatalf("handles %+v requested, %d under way; want that of %v", asked, table.Asked(), used.GID)
	}
	handle(table.Step(now, AHReady{ID: asked[0].ID}, nil))
	now = now.Add(10 * time.Millisecond)
	handle(table.Step(now, Tick{}, nil))
	if to, _, ok := snapshot.Unicast(used.MAC); !ok || to.QPN != used.QPN || table.Asked() != 0 || !table.Shown() {
		t.Errorf("frames for the used peer go to %+v, %v", to, ok)
	}
	if _, _, ok := snapshot.Unicast(heard.MAC); ok {
		t.Error("a peer without a handle is in the snapshot")
	}
	handle(table.Step(now, Attached{Self: self, MTU: 1400}, nil))
	if len(asked) != 1 {
		t.Errorf("handles are requested again: %+v", asked)
	}
}

// However many peers are restored, the table keeps to its bounds.
func TestRestoredIsBounded(t *testing.T) {
	var list []PeerInfo
	for n := range 3000 {
		info := PeerInfo{GID: hca.GID{0x20, 1}, QPN: hca.QPN(n + 2), MAC: ipoib.MAC{2, byte(n >> 8), byte(n)}, Used: n%2 == 0}
		if n >= 1000 {
			info.GID[14], info.GID[15] = byte(n>>8), byte(n)
		}
		list = append(list, info)
	}
	table := New(Config{MaxPeers: 1024, MaxHeard: 512})
	table.Step(time.Unix(1e9, 0), Restored{Peers: list}, nil)
	if s := table.Stats(); s.Heard > 512 || s.Used > 512 || s.Heard+s.Used < 1000 {
		t.Errorf("%d heard and %d used peers", s.Heard, s.Used)
	}
	if n := len(table.peers.live.byGID[hca.GID{0x20, 1}]); n != maxPeersPerGID {
		t.Errorf("%d peers of one GID", n)
	}
}
