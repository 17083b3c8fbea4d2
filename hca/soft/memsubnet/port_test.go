package memsubnet_test

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/hca/soft/memsubnet"
)

// A new port is as a subnet manager configures it.
func TestNewPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := attach(t, memsubnet.New(memfabric.New(1), memsubnet.SM{LID: 2, SL: 3}), "a", 4)
		got, err := a.dev.QueryPort(1)
		a.must(err)
		want := hca.PortAttr{
			State: hca.PortActive, MaxMTU: 4096, ActiveMTU: 2048, LinkLayer: hca.LinkLayerInfiniBand,
			LID: 4, SMLID: 2, SMSL: 3, SubnetTimeout: 18, GUID: hca.GUID{0x10, 7: 4}, PKeys: []hca.PKey{0xffff},
			GIDs: []hca.GIDEntry{{GID: hca.GID{0xfe, 0x80, 8: 0x10, 15: 4}, Type: hca.GIDTypeIB, MaxPayload: 2048}},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("port %+v, want %+v", got, want)
		}
		if attr := a.dev.Attr(); attr.NodeGUID != want.GUID || attr.MaxQueues != 1 ||
			attr.Transport != hca.TransportHardware {
			t.Errorf("device %+v", attr)
		}
		if _, ok := any(a.dev).(hca.StrayReporter); ok {
			t.Error("the device has capabilities of the software HCA")
		}
	})
}

// The view of a port is what the test sets, and each change has its events. The software HCA's own events about its
// port do not appear.
func TestChangesHaveEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a := attach(t, s, "a", 4)
		type attr = hca.PortAttr
		for _, c := range []struct {
			name   string
			change func(*attr)
			events []hca.EventType
		}{
			{"nothing", func(*attr) {}, nil},
			{"LID", func(p *attr) { p.LID = 8 }, []hca.EventType{hca.EventLIDChange}},
			{"LMC", func(p *attr) { p.LMC = 1 }, []hca.EventType{hca.EventLIDChange}},
			{"prefix", func(p *attr) { p.GIDs[0].GID[1] = 0xc0 }, []hca.EventType{hca.EventGIDChange}},
			{"P_Keys", func(p *attr) { p.PKeys = []hca.PKey{0x7fff, 0x8001} }, []hca.EventType{hca.EventPKeyChange}},
			{"SM LID", func(p *attr) { p.SMLID = 9 }, []hca.EventType{hca.EventSMChange}},
			{"SM SL", func(p *attr) { p.SMSL = 9 }, []hca.EventType{hca.EventSMChange}},
			{"subnet time-out", func(p *attr) { p.SubnetTimeout = 12 }, nil},
			{"down", func(p *attr) { p.State = hca.PortDown }, []hca.EventType{hca.EventPortErr}},
			{"INIT", func(p *attr) { p.State = hca.PortInit }, nil},
			{"all, then ACTIVE", func(p *attr) {
				p.State, p.LID, p.LMC, p.SMLID, p.GIDs[0].GID[1], p.PKeys = hca.PortActive, 4, 0, 1, 0x80, []hca.PKey{0xffff}
			}, []hca.EventType{
				hca.EventGIDChange, hca.EventLIDChange, hca.EventPKeyChange, hca.EventSMChange, hca.EventPortActive,
			}},
			{"MTU", func(p *attr) { p.ActiveMTU = 1024 }, []hca.EventType{hca.EventGIDChange}},
		} {
			want := a.port.Attr()
			c.change(&want)
			for i := range want.GIDs {
				want.GIDs[i].MaxPayload = int(want.ActiveMTU)
			}
			a.port.Change(c.change)
			got, err := a.dev.QueryPort(1)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: port %+v, want %+v (%v)", c.name, got, want, err)
			}
			a.wantEvents(c.events...)
		}
		a.port.Emit(hca.EventClientReregister, hca.EventSMChange)
		s.MoveSM(5, 6)
		a.wantEvents(hca.EventClientReregister, hca.EventSMChange, hca.EventSMChange)
		if p := a.port.Attr(); p.SMLID != 5 || p.SMSL != 6 {
			t.Errorf("subnet manager at %d, SL %d", p.SMLID, p.SMSL)
		}
	})
}

// The events of the HCA itself are passed on: here that it is gone. Its verbs fail.
func TestDeviceIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := attach(t, subnet(t), "a", 4)
		a.dev.Netdev().Remove()
		a.wantEvents(hca.EventDeviceFatal)
		if _, err := a.dev.QueryPort(1); !errors.Is(err, hca.ErrIO) {
			t.Errorf("query port: %v", err)
		}
		a.port.Change(func(p *hca.PortAttr) { p.LID, p.ActiveMTU = 8, 4096 })
		if p := a.port.Attr(); p.LID != 8 || p.GIDs[0].MaxPayload != 4096 {
			t.Errorf("port %+v", p)
		}
	})
}

// A port that is not ACTIVE neither sends nor receives, not even what is on the way; its sends complete.
func TestInactivePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfabric.New(1)
		s := memsubnet.New(f, memsubnet.SM{LID: 1})
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		for _, state := range []hca.PortState{hca.PortDown, hca.PortInit, hca.PortArmed} {
			b.port.Change(func(p *hca.PortAttr) { p.State = state })
			a.send(a.to(b), "to b")
			b.send(b.to(a), "from b")
			b.send(b.to(b), "b to itself")
			b.port.Change(func(p *hca.PortAttr) { p.State = hca.PortActive })
			a.want()
			b.want()
		}
		f.SetConditions(memfabric.Conditions{Delay: 10 * settle})
		a.send(a.to(b), "on the way")
		b.port.Change(func(p *hca.PortAttr) { p.State = hca.PortDown })
		time.Sleep(10 * settle)
		b.want()
		b.port.Change(func(p *hca.PortAttr) { p.State = hca.PortActive })
		f.SetConditions(memfabric.Conditions{})
		a.send(a.to(b), "in time")
		b.want("in time")
		wantDrops(t, s, map[memsubnet.Drop]uint64{memsubnet.DropInactive: 10})
	})
}

// P_Keys match if they name one partition and one of them is full. The port drops those that fit none of its table, the
// queue pair the others.
func TestPKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		for _, c := range []struct {
			sender   hca.PKey
			receiver []hca.PKey // the queue pair uses the first
			arrives  bool
			atPort   uint64
		}{
			{0xffff, []hca.PKey{0xffff}, true, 0},
			{0x7fff, []hca.PKey{0xffff}, true, 0},
			{0xffff, []hca.PKey{0x7fff}, true, 0},
			{0x7fff, []hca.PKey{0x7fff}, false, 1},
			{0x8001, []hca.PKey{0xffff}, false, 1},
			{0x8001, []hca.PKey{0xffff, 0x0001}, false, 0},
			{0x8001, []hca.PKey{0x0001, 0xffff}, true, 0},
		} {
			a.port.Change(func(p *hca.PortAttr) { p.PKeys = []hca.PKey{c.sender} })
			b.port.Change(func(p *hca.PortAttr) { p.PKeys = c.receiver })
			before := s.Dropped(memsubnet.DropPKey)
			sentBefore, _ := a.port.Packets(c.sender)
			_, receivedBefore := b.port.Packets(c.sender)
			a.send(a.to(b), "x")
			if c.arrives {
				b.want("x")
			} else {
				b.want()
			}
			sent, _ := a.port.Packets(c.sender)
			_, received := b.port.Packets(c.sender)
			if dropped := s.Dropped(memsubnet.DropPKey) - before; dropped != c.atPort ||
				sent-sentBefore != 1 || received-receivedBefore != 1-c.atPort {
				t.Errorf("%+v: %d dropped, %d sent, %d received", c, dropped, sent-sentBefore, received-receivedBefore)
			}
		}
	})
}

// Queue pairs refer to P_Keys by index, so a table that is turned round exchanges the partitions.
func TestPKeyChangesItsIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		for _, keys := range [][]hca.PKey{
			{0xffff, 0x8001}, {0x8001, 0xffff}, {0, 0, 0xffff, 0x8001}, {0x8001, 0, 0x8002, 0, 0xffff}, {0xffff},
		} {
			b.port.Change(func(p *hca.PortAttr) { p.PKeys = keys })
			for i, key := range keys {
				b.up(uint16(i), qkey)
				a.send(a.to(b), "x")
				if key == hca.PKeyDefault {
					b.want("x")
				} else {
					b.want()
				}
			}
		}
	})
}

// Messages are as long as the active MTU permits.
func TestMTU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		for _, mtu := range []hca.MTU{4096, 256, 2048} {
			for _, h := range []*host{a, b} {
				h.port.Change(func(p *hca.PortAttr) { p.ActiveMTU = mtu })
			}
			text := strings.Repeat("x", int(mtu))
			a.send(a.to(b), text)
			b.want(text)
			if mtu < hca.MaxMTU {
				a.post(a.to(b), []byte(text+"y"))
				if wcs := a.next(a.sendCQ); len(wcs) != 1 || wcs[0].Status != hca.WCLocLenErr {
					t.Errorf("MTU %d: completions %+v", mtu, wcs)
				}
				a.up(0, qkey)
			}
		}
	})
}

// A port keeps its attributes and memberships when its HCA is closed, or lost with its netdev, and opened again.
func TestReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a := attach(t, s, "a", 4)
		b := &host{T: t, port: s.Attach("b", hca.GUID{7: 1}, 8), lid: 8}
		s.Join(4, mgid, mlid, false)
		s.Join(8, mgid, mlid, false)
		for _, text := range []string{"first", "second"} {
			b.open()
			b.must(b.qp.AttachMulticast(group))
			a.send(a.toGroup(group), text)
			b.want(text)
			b.must(b.qp.DetachMulticast(group))
			b.must(b.dev.Netdev().Close())
			b.port.Change(func(p *hca.PortAttr) { p.SMSL++ })
		}
		defer func() {
			if recover() == nil {
				t.Error("two ports have one GUID")
			}
		}()
		s.Attach("c", hca.GUID{7: 1}, 12)
	})
}

// The events of a port go to the HCA that is open, even if an earlier one is closed late, or it could not be closed.
func TestEventsGoToTheOpenHCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := subnet(t).Attach("a", hca.GUID{1}, 4)
		open := func() *host {
			dev, err := p.Open(nil)
			h := &host{T: t, dev: dev}
			h.must(err)
			return h
		}
		first := open()
		first.must(first.dev.Netdev().Close())
		second := open()
		first.must(first.dev.Close())
		p.Emit(hca.EventSMChange)
		second.wantEvents(hca.EventSMChange)
		pd, err := second.dev.AllocPD()
		second.must(err)
		if err := second.dev.Close(); !errors.Is(err, hca.ErrBusy) {
			t.Errorf("close: %v", err)
		}
		p.Emit(hca.EventSMChange)
		second.wantEvents(hca.EventSMChange)
		second.must(pd.Close())
		second.must(second.dev.Close())
		p.Emit(hca.EventSMChange) // no one gets it
	})
}

// A receive whose memory the user changes before its completion cannot be completed, because the number of its headers
// is lost.
func TestChangedReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		a.send(a.to(b), "x")
		clear(b.mr.Bytes())
		defer func() {
			if recover() == nil {
				t.Error("the change was not noticed")
			}
		}()
		_, _ = b.recvCQ.Poll(make([]hca.WC, 1))
	})
}

// All methods may be called concurrently.
func TestConcurrentUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := subnet(t)
		a, b := attach(t, s, "a", 4), attach(t, s, "b", 8)
		b.attachTo(group)
		rounds := func(f func(i int)) func() {
			return func() {
				for i := range 200 {
					f(i)
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				}
			}
		}
		toB, toAll := a.to(b), a.toGroup(group)
		var wg sync.WaitGroup
		wg.Go(rounds(func(int) { a.post(toB, nil); a.post(toAll, nil) }))
		wg.Go(rounds(func(int) { _, _ = a.sendCQ.Poll(make([]hca.WC, 64)) }))
		slot := 0
		wg.Go(rounds(func(int) {
			n, _ := b.recvCQ.Poll(make([]hca.WC, 64))
			for range n {
				b.postRecv(slot % receives)
				slot++
			}
		}))
		wg.Go(rounds(func(i int) { b.port.Change(func(p *hca.PortAttr) { p.LMC = uint8(i % 3); p.PKeys[0] ^= 0x8000 }) }))
		wg.Go(rounds(func(i int) { s.Join(4, mgid, mlid, true); s.Join(8, mgid, mlid, i%2 == 0) }))
		wg.Go(rounds(func(int) { s.Leave(8, mgid, mlid); s.MoveSM(2, 3); b.port.Packets(hca.PKeyDefault) }))
		wg.Wait()
		if sent, _ := a.port.Packets(hca.PKeyDefault); sent < 200 || b.events() == nil {
			t.Errorf("%d packets sent", sent)
		}
	})
}
