package linktest_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/link"
	"ipoibd/link/linktest"
)

func TestFakeConforms(t *testing.T) {
	linktest.Run(t, func(t *testing.T) (link.Device, linktest.Host) {
		f := linktest.NewFake("ib0")
		t.Cleanup(func() { _ = f.Close() })
		return f, f
	})
}

// A blocked reader of the fake is durably blocked, so an hour passes immediately. Close
// leaves no goroutine in the bubble.
func TestFakeInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := linktest.NewFake("ib0")
		states, err := f.Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Hour)
			f.SetUp(true)
			_ = f.SetCarrier(true)
			f.Send(make([]byte, 60))
		}()
		sizes := make([]int, 1)
		n, err := f.ReadBatch([][]byte{make([]byte, 100)}, sizes)
		if n != 1 || err != nil || sizes[0] != 70 {
			t.Errorf("ReadBatch = %d, %v, size %d; want 1, nil, 70", n, err, sizes[0])
		}
		synctest.Wait()
		if s := <-states; !s.Carrier {
			t.Errorf("state = %+v, want the latest", s)
		}
		_ = f.Close()
	})
}

func TestFakeMaster(t *testing.T) {
	f := linktest.NewFake("ib0")
	defer f.Close()
	own, above := netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")
	f.AddAddr(own)
	f.SetMaster(9, above)
	f.SetMAC([6]byte{2, 9})
	s, err := f.State()
	if err != nil || s.Master != 9 || s.MAC != [6]byte{2, 9} {
		t.Errorf("State = %+v, %v", s, err)
	}
	want := []netip.Prefix{own, above}
	if got := s.SelfAddrs(); !slices.Equal(got, want) {
		t.Errorf("SelfAddrs = %v, want %v", got, want)
	}
}

func TestFakeMovedAway(t *testing.T) {
	f := linktest.NewFake("ib0")
	defer f.Close()
	f.SetUp(true)
	f.MoveAway()
	if s, err := f.State(); err != nil || s.Present || s.Up {
		t.Errorf("State = %+v, %v; want a zero one", s, err)
	}
	if err := f.SetCarrier(false); err != nil {
		t.Errorf("SetCarrier: %v", err)
	}
}

func TestFakeQueuesAreBounded(t *testing.T) {
	f := linktest.NewFake("ib0")
	defer f.Close()
	f.SetUp(true)
	_ = f.SetCarrier(true)
	const surplus = 5
	const length = 1000 // of either queue
	out := make([]byte, link.HeaderLen+60)
	for range length + surplus {
		f.Send(out[link.HeaderLen:])
		_, _ = f.WriteVectors([][][]byte{{out}}, make([]bool, 1))
	}
	c := f.Counters()
	k, err := f.KernelCounters()
	if err != nil || k.TxDropped != surplus || c.Drops.WriteNoMem != surplus {
		t.Errorf("counters %+v, %+v, %v; want %d drops each way", c, k, err, surplus)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range length {
		if _, err := f.Recv(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Recv(ctx); err == nil {
		t.Error("the queue holds too many frames")
	}
}
