package linktest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/link"
)

func beginsDown(t *testing.T, r *rig) {
	s := r.state()
	if !s.Present || s.Index <= 0 || s.Name != r.dev.Name() || s.MTU != 1500 || !strings.HasPrefix(s.Alias, link.AliasPrefix) {
		t.Errorf("state = %+v", s)
	}
	if s.Up || s.Carrier || s.Master != 0 || len(s.Addrs) != 0 {
		t.Errorf("state = %+v, want it down, without master and addresses", s)
	}
	if s.MAC[0]&3 != 2 {
		t.Errorf("MAC = % x, want a local unicast address", s.MAC)
	}
}

func carrierShows(_ *testing.T, r *rig) {
	r.host.SetUp(true)
	r.await("up without carrier", func(s link.State) bool { return s.Up && !s.Carrier })
	r.ok(r.dev.SetCarrier(true))
	r.await("carrier", func(s link.State) bool { return s.Up && s.Carrier })
	r.host.SetUp(false)
	r.await("down", func(s link.State) bool { return !s.Up && !s.Carrier })
	r.host.SetUp(true)
	r.await("carrier again", func(s link.State) bool { return s.Up && s.Carrier })
	r.ok(r.dev.SetCarrier(false))
	r.await("no carrier", func(s link.State) bool { return s.Up && !s.Carrier })
}

func readsInOrder(_ *testing.T, r *rig) {
	r.running()
	var want [][]byte
	for i, length := range []int{60, 22, 1514, 61, 1000} {
		r.host.Send(frame(i, length))
		want = append(want, withHeader(frame(i, length)))
	}
	r.wantFrames(r.read(len(want), 8), want...)
}

func writesInOrder(t *testing.T, r *rig) {
	r.running()
	want := [][]byte{frame(0, 60), frame(1, 1514), frame(2, 22)}
	var out [][]byte
	for _, f := range want {
		out = append(out, withHeader(f))
	}
	before, kernel := r.dev.Counters(), r.kernel()
	n, err := r.write(out...)
	r.ok(err)
	if n != len(want) {
		t.Errorf("wrote %d, want %d", n, len(want))
	}
	r.wantFrames(r.recv(len(want)), want...)
	if got := r.dev.Counters().Written - before.Written; got != 3 {
		t.Errorf("Written rose by %d, want 3", got)
	}
	for limit := time.After(patience); r.kernel().RxBytes-kernel.RxBytes != 60+1514+22; {
		select {
		case <-limit:
			t.Fatalf("RxBytes rose by %d, want %d", r.kernel().RxBytes-kernel.RxBytes, 60+1514+22)
		case <-time.After(time.Millisecond):
		}
	}
}

func readsBatch(t *testing.T, r *rig) {
	r.running()
	const frames, most = 7, 3
	for i := range frames {
		r.host.Send(frame(i, 100))
	}
	for i, f := range r.read(frames, most) {
		r.wantFrames([][]byte{f}, withHeader(frame(i, 100)))
	}
	if n := r.dev.Counters().Read; n < frames {
		t.Errorf("Read = %d, want %d at least", n, frames)
	}
}

func dropsTooLong(t *testing.T, r *rig) {
	r.running()
	const room = link.HeaderLen + 300
	r.host.Send(frame(0, 301))
	r.host.Send(frame(1, 300))
	bufs, sizes := buffers(4, room)
	for {
		n, err := r.dev.ReadBatch(bufs, sizes)
		r.ok(err)
		i := slices.IndexFunc(bufs[:n], isTest)
		if i < 0 {
			continue
		}
		r.wantFrames([][]byte{bufs[i][:sizes[i]]}, withHeader(frame(1, 300)))
		break
	}
	if n := r.dev.Counters().Drops.ReadTooLong; n != 1 {
		t.Errorf("ReadTooLong = %d, want 1", n)
	}
}

func countsRefused(t *testing.T, r *rig) {
	good := withHeader(frame(0, 60))
	if n, err := r.write(good, good); n != 0 || err != nil {
		t.Errorf("wrote %d, %v to an interface that is down; want 0, nil", n, err)
	}
	r.running()
	short := [][]byte{{}, make([]byte, 3), make([]byte, link.HeaderLen), good[:link.HeaderLen+13], good}
	if n, err := r.write(short...); n != 1 || err != nil {
		t.Errorf("wrote %d, %v; want 1, nil", n, err)
	}
	r.wantFrames(r.recv(1), frame(0, 60))
	if d := r.dev.Counters().Drops; d != (link.Drops{WriteInvalid: 4, WriteDown: 2}) {
		t.Errorf("drops = %+v, want 4 invalid and 2 down", d)
	}
}

func wakeEndsRead(t *testing.T, r *rig) {
	for range 20 {
		done := make(chan error)
		go func() {
			bufs, sizes := buffers(1, 2000)
			n, err := r.dev.ReadBatch(bufs, sizes)
			if n != 0 {
				t.Errorf("ReadBatch = %d frames, want none", n)
			}
			done <- err
		}()
		r.dev.Wake()
		r.within("ReadBatch after Wake", done, nil)
	}
}

func wakeIsKept(t *testing.T, r *rig) {
	r.dev.Wake()
	r.dev.Wake()
	bufs, sizes := buffers(1, 2000)
	if n, err := r.dev.ReadBatch(bufs, sizes); n != 0 || err != nil {
		t.Errorf("ReadBatch = %d, %v, want 0, nil", n, err)
	}
	r.running()
	r.host.Send(frame(1, 60))
	r.wantFrames(r.read(1, 1), withHeader(frame(1, 60)))
}

// within waits for the result of a call.
func (r *rig) within(what string, done <-chan error, want error) {
	r.t.Helper()
	select {
	case err := <-done:
		if want == nil {
			r.ok(err)
		} else {
			r.wantErr(what, err, want)
		}
	case <-time.After(patience):
		r.t.Fatalf("%s does not end", what)
	}
}

func closeEnds(t *testing.T, r *rig) {
	done := make(chan error)
	go func() {
		bufs, sizes := buffers(1, 2000)
		_, err := r.dev.ReadBatch(bufs, sizes)
		done <- err
	}()
	ch, err := r.dev.Watch(t.Context())
	r.ok(err)
	r.ok(r.dev.Close())
	r.within("ReadBatch after Close", done, link.ErrClosed)
	r.drained(ch)
	r.ok(r.dev.Close())
	bufs, sizes := buffers(1, 2000)
	_, err = r.dev.ReadBatch(bufs, sizes)
	r.wantErr("ReadBatch", err, link.ErrClosed)
	r.writesNone(link.ErrClosed)
	_, err = r.dev.SetOffloads(link.AllOffloads)
	r.wantErr("SetOffloads", err, link.ErrClosed)
	r.wantErr("SetCarrier", r.dev.SetCarrier(true), link.ErrClosed)
	_, err = r.dev.Inspect()
	r.wantErr("Inspect", err, link.ErrClosed)
	_, err = r.dev.State()
	r.wantErr("State", err, link.ErrClosed)
	_, err = r.dev.Watch(t.Context())
	r.wantErr("Watch", err, link.ErrClosed)
	_, err = r.dev.KernelCounters()
	r.wantErr("KernelCounters", err, link.ErrClosed)
	r.dev.Wake()
}

// drained waits until a watch has ended.
func (r *rig) drained(ch <-chan link.State) {
	r.t.Helper()
	for limit := time.After(patience); ; {
		select {
		case _, open := <-ch:
			if !open {
				return
			}
		case <-limit:
			r.t.Fatal("the watch does not end")
		}
	}
}

func watchTells(t *testing.T, r *rig) {
	ch, err := r.dev.Watch(t.Context())
	r.ok(err)
	r.awaitOn(ch, "first state", func(s link.State) bool { return s.Present && !s.Up })
	r.host.SetMTU(1400)
	r.awaitOn(ch, "MTU 1400", func(s link.State) bool { return s.MTU == 1400 })
	r.host.SetUp(true)
	r.awaitOn(ch, "up", func(s link.State) bool { return s.Up })
	r.host.AddAddr(addr4)
	r.awaitOn(ch, "IPv4 address", func(s link.State) bool { return slices.Contains(s.Addrs, addr4) })
	r.host.AddAddr(addr6)
	s := r.awaitOn(ch, "IPv6 address", func(s link.State) bool { return slices.Contains(s.Addrs, addr6) })
	self := s.SelfAddrs()
	if !slices.Contains(self, addr4) || !slices.Contains(self, addr6) {
		t.Errorf("SelfAddrs = %v", self)
	}
	r.host.DelAddr(addr4)
	r.awaitOn(ch, "IPv4 address gone", func(s link.State) bool { return !slices.Contains(s.Addrs, addr4) })
}

func watchKeepsLatest(t *testing.T, r *rig) {
	ch, err := r.dev.Watch(t.Context())
	r.ok(err)
	for mtu := 1300; mtu <= 1400; mtu++ {
		r.host.SetMTU(mtu)
	}
	seen := 0
	r.awaitOn(ch, "the last MTU", func(s link.State) bool { seen++; return s.MTU == 1400 })
	if seen > 102 {
		t.Errorf("%d states for 101 changes", seen)
	}
}

func watchEnds(t *testing.T, r *rig) {
	ctx, cancel := context.WithCancel(t.Context())
	a, err := r.dev.Watch(ctx)
	r.ok(err)
	b, err := r.dev.Watch(t.Context())
	r.ok(err)
	cancel()
	r.drained(a)
	r.host.SetUp(true)
	r.awaitOn(b, "up, on the other watch", func(s link.State) bool { return s.Up })
}

func deletionIsReported(t *testing.T, r *rig) {
	ch, err := r.dev.Watch(t.Context())
	r.ok(err)
	done := make(chan error)
	go func() {
		bufs, sizes := buffers(1, 2000)
		_, err := r.dev.ReadBatch(bufs, sizes)
		done <- err
	}()
	r.host.Delete()
	s := r.awaitOn(ch, "absence", func(s link.State) bool { return !s.Present })
	if s.Index != 0 || s.Up || s.Carrier {
		t.Errorf("state = %+v, want a zero one", s)
	}
	r.within("ReadBatch after deletion", done, link.ErrGone)
	r.writesNone(link.ErrGone)
	_, err = r.dev.SetOffloads(link.AllOffloads)
	r.wantErr("SetOffloads", err, link.ErrGone)
	_, err = r.dev.KernelCounters()
	r.wantErr("KernelCounters", err, link.ErrGone)
	r.wantErr("SetCarrier", r.dev.SetCarrier(true), link.ErrGone)
	_, err = r.dev.Inspect()
	r.wantErr("Inspect", err, link.ErrGone)
	r.ok(r.dev.Close())
}

func inspectRestores(t *testing.T, r *rig) {
	r.running()
	mac := r.state().MAC
	r.inspect()
	q := r.host.Attach()
	for what, change := range map[link.Property]func(){
		link.PropertyMAC:         func() { r.host.SetMAC([6]byte{2, 9}) },
		link.PropertyCarrier:     func() { q.SetCarrier(false) },
		link.PropertyHeader:      func() { q.SetHeaderLen(12) },
		link.PropertyPersistence: func() { q.SetPersistent(false) },
		link.PropertyOffloads:    func() { q.SetOffloads(link.AllOffloads) },
	} {
		change()
		r.inspect(what)
		r.inspect()
	}
	if s := r.state(); s.MAC != mac || !s.Carrier {
		t.Errorf("state = %+v, want MAC % x and carrier", s, mac)
	}
	q.Detach()
	r.host.Send(frame(0, 60))
	r.wantFrames(r.read(1, 1), withHeader(frame(0, 60)))

	q = r.host.Attach()
	r.ok(r.dev.SetCarrier(false))
	q.SetCarrier(true)
	r.inspect(link.PropertyCarrier)
	if s := r.state(); s.Carrier {
		t.Error("a carrier that another process raised stays up")
	}
	q.Detach()
}

func inspectCounts(_ *testing.T, r *rig) {
	r.running()
	ch, err := r.dev.Watch(r.t.Context())
	r.ok(err)
	r.awaitOn(ch, "no foreign queue", func(s link.State) bool { return s.Foreign == 0 })
	a := r.host.Attach()
	r.awaitOn(ch, "a foreign queue", func(s link.State) bool { return s.Foreign == 1 })
	b := r.host.Attach()
	if n := r.inspect().Foreign; n != 2 {
		r.t.Errorf("%d foreign queues, want 2", n)
	}
	a.Detach()
	b.Detach()
	r.awaitOn(ch, "no foreign queue again", func(s link.State) bool { return s.Foreign == 0 })
	if n := r.inspect().Foreign; n != 0 {
		r.t.Errorf("%d foreign queues, want none", n)
	}
}

// inspect checks that an inspection restores exactly these properties.
func (r *rig) inspect(want ...link.Property) link.Findings {
	r.t.Helper()
	f, err := r.dev.Inspect()
	r.ok(err)
	got := []link.Property{}
	for _, c := range f.Restored {
		got = append(got, c.What)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("restored %v, want %v", f.Restored, want)
	}
	if st, err := r.dev.State(); err != nil || f.MTU != st.MTU || f.Carrier != st.Carrier {
		r.t.Errorf("found MTU %d, carrier %t; the state is %+v, %v", f.MTU, f.Carrier, st, err)
	}
	return f
}

// noAllocation measures only the device: the copies that the host of a fake allocates are not
// part of the contract. So it reads an empty batch after Wake, and writes frames that are
// refused.
func noAllocation(t *testing.T, r *rig) {
	bufs, sizes := buffers(4, 2000)
	down := [][]byte{withHeader(frame(0, 60)), withHeader(frame(1, 60))}
	sliced, accepted := [][][]byte{down}, make([]bool, 1)
	if n := testing.AllocsPerRun(100, func() {
		r.dev.Wake()
		_, _ = r.dev.ReadBatch(bufs, sizes)
		_, _ = r.dev.WriteVectors(sliced, accepted)
	}); n != 0 {
		t.Errorf("%v allocations per round, want 0", n)
	}
}
