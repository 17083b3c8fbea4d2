package iface

import (
	"testing"
	"time"

	"ipoibd/neigh"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

// TestGuestsLeaveRoomForTheHost: the frames of a guest that fill the slow path do not crowd out those of the host.
func TestGuestsLeaveRoomForTheHost(t *testing.T) {
	own, guest := ipoib.MAC{2, 1}, ipoib.MAC{2, 2}
	known := new(ud.Snapshot)
	table := neigh.New(neigh.Config{})
	for _, a := range table.Step(time.Now(), neigh.HostMAC{MAC: own}, nil) {
		if p, ok := a.(neigh.Publish); ok {
			known.Publish(p.Snapshot)
		}
	}
	s := newSlowPath(known)
	frame := func(src ipoib.MAC) []byte {
		f := make([]byte, 60)
		copy(f[6:], src[:])
		return f
	}
	taken := 0
	for range 2 * slowItems {
		if s.FromHost(frame(guest)) {
			taken++
		}
	}
	if taken != slowItems {
		t.Errorf("%d frames of the guest were taken, want %d", taken, slowItems)
	}
	if !s.FromHost(frame(own)) {
		t.Error("a frame of the host was refused")
	}
}
