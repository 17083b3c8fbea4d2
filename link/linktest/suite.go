package linktest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"ipoibd/link"
)

// EtherType is the EtherType of the suite's frames: IEEE Std 802 local experimental
// EtherType 1, which no host sends on its own.
const EtherType = 0x88b5

// patience bounds the wait for expected events. It is long, because only a failing test
// waits that long.
const patience = 20 * time.Second

// Factory returns a device in the state of a new interface after link.Open, with MTU 1500,
// and the host behind it. It registers their cleanup.
type Factory func(t *testing.T) (link.Device, Host)

// Run runs the conformance suite of link.Device.
func Run(t *testing.T, factory Factory) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *rig)
	}{
		{"BeginsDownWithoutCarrier", beginsDown},
		{"CarrierShowsWhileUp", carrierShows},
		{"ReadsFramesInOrder", readsInOrder},
		{"WritesFramesInOrder", writesInOrder},
		{"WritesSlicesOfFrames", writesVectors},
		{"RefusesInvalidSlices", refusesVectors},
		{"ReadsNoMoreThanTheBatch", readsBatch},
		{"DropsFramesLongerThanTheBuffer", dropsTooLong},
		{"CountsRefusedFrames", countsRefused},
		{"WakeEndsARead", wakeEndsRead},
		{"WakeIsKeptForTheNextRead", wakeIsKept},
		{"CloseEndsEverything", closeEnds},
		{"WatchTellsChanges", watchTells},
		{"WatchKeepsTheLatest", watchKeepsLatest},
		{"WatchEnds", watchEnds},
		{"DeletionIsReported", deletionIsReported},
		{"InspectRestoresWhatOthersChange", inspectRestores},
		{"InspectCountsForeignQueues", inspectCounts},
		{"OffloadsAreThoseThatTheKernelTakes", offloadsStepDown},
		{"LargeFramesPassWithOffloads", largeFramesPass},
		{"InspectKeepsOffloads", inspectKeepsOffloads},
		{"NoAllocationPerFrame", noAllocation},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newRig(t, factory)) })
	}
}

// rig is a device and its host under test.
type rig struct {
	t    *testing.T
	dev  link.Device
	host Host
}

func newRig(t *testing.T, factory Factory) *rig {
	t.Helper()
	dev, host := factory(t)
	return &rig{t, dev, host}
}

// running sets the interface up and its carrier on.
func (r *rig) running() {
	r.t.Helper()
	r.host.SetUp(true)
	r.ok(r.dev.SetCarrier(true))
	r.await("carrier", func(s link.State) bool { return s.Carrier })
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// write writes frames, each as one slice.
func (r *rig) write(frames ...[]byte) (int, error) {
	each := make([][][]byte, len(frames))
	for i := range frames {
		each[i] = frames[i : i+1]
	}
	return r.dev.WriteVectors(each, make([]bool, len(frames)))
}

func (r *rig) state() link.State {
	r.t.Helper()
	s, err := r.dev.State()
	r.ok(err)
	return s
}

func (r *rig) kernel() link.KernelCounters {
	r.t.Helper()
	k, err := r.dev.KernelCounters()
	for limit := time.Now().Add(patience); err != nil && time.Now().Before(limit); k, err = r.dev.KernelCounters() {
		time.Sleep(10 * time.Millisecond) // another process holds the rtnl lock
	}
	r.ok(err)
	return k
}

// await waits for a state with a new watch.
func (r *rig) await(what string, ok func(link.State) bool) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	ch, err := r.dev.Watch(ctx)
	r.ok(err)
	r.awaitOn(ch, what, ok)
}

func (r *rig) awaitOn(ch <-chan link.State, what string, ok func(link.State) bool) (s link.State) {
	r.t.Helper()
	for limit := time.After(patience); ; {
		select {
		case next, open := <-ch:
			if !open {
				r.t.Fatalf("watch ended before: %s", what)
			}
			if s = next; ok(s) {
				return s
			}
		case <-limit:
			r.t.Fatalf("no state with: %s; the last was %+v", what, s)
		}
	}
}

// frame returns the i-th test frame of a length in bytes, 22 at least.
func frame(i, length int) []byte {
	f := make([]byte, length)
	copy(f, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, EtherType >> 8, EtherType & 0xff})
	binary.BigEndian.PutUint64(f[14:], uint64(i))
	for j := 22; j < length; j++ {
		f[j] = byte(i + j)
	}
	return f
}

// withHeader returns a frame with an empty virtio header in front.
func withHeader(f []byte) []byte { return append(make([]byte, link.HeaderLen), f...) }

// read returns the next n test frames with their headers, read at most `most` per batch. It
// ignores frames that the host sends on its own.
func (r *rig) read(n, most int) (got [][]byte) {
	r.t.Helper()
	wake := time.AfterFunc(patience, r.dev.Wake)
	defer wake.Stop()
	bufs, sizes := buffers(most, 10000)
	for len(got) < n {
		k, err := r.dev.ReadBatch(bufs, sizes)
		r.ok(err)
		if k == 0 {
			r.t.Fatalf("read %d frames, want %d", len(got), n)
		}
		for i := range k {
			if isTest(bufs[i][:sizes[i]]) {
				got = append(got, bytes.Clone(bufs[i][:sizes[i]]))
			}
		}
	}
	return got
}

func buffers(n, length int) ([][]byte, []int) {
	bufs := make([][]byte, n)
	for i := range bufs {
		bufs[i] = make([]byte, length)
	}
	return bufs, make([]int, n)
}

func isTest(f []byte) bool {
	const at = link.HeaderLen + 12
	return len(f) >= at+2 && binary.BigEndian.Uint16(f[at:]) == EtherType
}

func (r *rig) wantFrames(got [][]byte, want ...[]byte) {
	r.t.Helper()
	if len(got) != len(want) {
		r.t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			r.t.Errorf("frame %d:\n got % x\nwant % x", i, got[i], want[i])
		}
	}
}

// recv returns the next n frames that the host received.
func (r *rig) recv(n int) (got [][]byte) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for range n {
		f, err := r.host.Recv(ctx)
		r.ok(err)
		got = append(got, f)
	}
	return got
}

func (r *rig) wantErr(what string, err, want error) {
	r.t.Helper()
	if !errors.Is(err, want) {
		r.t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

var (
	addr4 = netip.MustParsePrefix("198.51.100.1/24")
	addr6 = netip.MustParsePrefix("2001:db8:1::1/64")
)
