package soft

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// Each reason for a drop, in front of a QP and inside it, is counted by name.
func TestDropsAreCounted(t *testing.T) {
	group := netip.MustParseAddr("239.9.9.9")
	type fields = func(*roce.BTH, *roce.DETH, *roce.Path)
	for _, c := range []struct {
		counter string
		fields  fields
		cut     func([]byte) []byte
	}{
		{"rx_delivered", nil, nil},
		{"rx_drop_short", nil, func(b []byte) []byte { return b[:roce.HeaderLen+roce.ICRCLen-1] }},
		{"rx_drop_short", nil, func(b []byte) []byte { return nil }},
		{"rx_drop_pad", nil, func(b []byte) []byte { return b[:len(b)-1] }},
		{"rx_drop_pad", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.Pad = 3 }, func(b []byte) []byte { return b[:24] }},
		// No receive is long enough for this, but it must not move the QP to ERR.
		{"rx_drop_too_long", nil, func(b []byte) []byte { return append(b, make([]byte, hca.MaxMTU)...) }},
		{"rx_drop_version", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.Version = 1 }, nil},
		{"rx_drop_opcode", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.Opcode = 4 }, nil},
		{"rx_drop_immediate", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.Opcode = 0x65 }, nil},
		{"rx_drop_icrc", nil, func(b []byte) []byte { b[21] ^= 1; return b }},
		{"rx_drop_no_qp", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN ^= 1 << 20 }, nil},
		{"rx_drop_no_qp", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN = 0 }, nil},
		{"rx_drop_no_qp", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN = hca.QPNMulticast }, nil},
		{"rx_drop_gsi", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN = hca.QPNGSI }, nil},
		{"rx_drop_pkey", func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.PKey = 0x8001 }, nil},
		{"rx_drop_qkey", func(_ *roce.BTH, d *roce.DETH, _ *roce.Path) { d.QKey++ }, nil},
		{"rx_drop_not_attached", func(h *roce.BTH, _ *roce.DETH, p *roce.Path) { h.DestQPN, p.Dst = hca.QPNMulticast, group }, nil},
		{"rx_drop_group_qpn", func(_ *roce.BTH, _ *roce.DETH, p *roce.Path) { p.Dst = group }, nil},
	} {
		bubble(t, nil, func(r *rig) {
			r.postRecv(1)
			p := r.message(c.fields)
			if c.cut != nil {
				p.Data = c.cut(p.Data)
			}
			r.port.Inject(p)
			synctest.Wait()
			r.wantCounts(map[string]uint64{"rx_packets": 1, "rx_bytes": uint64(len(p.Data)), c.counter: 1})
			r.wantAccounted()
		})
	}
}

// Every received unicast packet is counted in exactly one of the counters in rxEnds and
// rxReasons.
var (
	rxEnds = []counter{
		rxDelivered, dropShort, dropVersion, dropOpcode, dropImmediate, dropPad, dropTooLong, dropICRC, dropOwnSource, dropUnknownPeer,
		dropNoQP, dropGSI, dropNotAttached, dropGroupQPN,
	}
	rxReasons = []softqp.Reason{
		softqp.DropQPState, softqp.DropPKey, softqp.DropQKey, softqp.DropNoRecv,
		softqp.FailRecvLength, softqp.FailRecvAccess,
	}
)

// wantAccounted checks that every packet received was counted once.
func (r *rig) wantAccounted() {
	r.Helper()
	var sum uint64
	for _, end := range rxEnds {
		sum += r.dev.count(end)
	}
	for _, end := range rxReasons {
		sum += r.dev.countReason(end)
	}
	if got := r.dev.count(rxPackets); got != sum {
		r.Errorf("%d packets received, but %d counted as delivered or dropped", got, sum)
	}
}

func TestNoReceivePosted(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.port.Inject(r.message(nil))
		time.Sleep(soleLimit)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"rx_drop_no_recv": 1, "rx_delivered": 0})
	})
}

// A burst longer than the receive queue loses nothing when the owner of the QP posts
// receives again within a few milliseconds.
func TestReceivesPostedInTimeLoseNothing(t *testing.T) {
	const burst = 4 * rigDepth
	bubble(t, nil, func(r *rig) {
		r.postRecv(rigDepth)
		for range burst {
			r.port.Inject(r.message(nil))
		}
		wc := make([]hca.WC, rigDepth)
		for range 2 * burst / rigDepth {
			time.Sleep(backPressure / 2)
			r.postRecv(have(r.recv.Poll(wc))(t))
		}
		r.wantCounts(map[string]uint64{"rx_delivered": burst, "rx_drop_no_recv": 0})
		r.wantAccounted()
	})
}

// A QP without posted receives delays messages for another QP once, for a few
// milliseconds. Once its owner has posted receives again, messages wait for it again.
func TestQPWithoutReceivesHoldsOthersUpOnce(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		idle := have(r.pd.CreateQP(r.qp.Spec(), r.send, r.recv))(t)
		second := *r
		second.qp = idle
		second.up()
		const n = rigSlots
		r.postRecv(n)
		for range n {
			r.port.Inject(second.message(nil))
			r.port.Inject(r.message(nil))
		}
		start := time.Now()
		for r.counted("rx_delivered") < n && time.Since(start) < time.Second {
			time.Sleep(100 * time.Microsecond)
		}
		if took := time.Since(start); took > 2*backPressure {
			t.Errorf("another QP's messages took %v", took)
		}
		r.wantCounts(map[string]uint64{"rx_delivered": n, "rx_drop_no_recv": n})
		second.postRecv(1)
		r.port.Inject(second.message(nil))
		r.port.Inject(second.message(nil))
		time.Sleep(backPressure / 2)
		second.postRecv(1)
		time.Sleep(backPressure)
		r.wantCounts(map[string]uint64{"rx_delivered": n + 2, "rx_drop_no_recv": n})
		r.wantAccounted()
		if err := idle.Close(); err != nil {
			t.Error(err)
		}
	})
}

// If the transport does not know a packet's identification, it is solved for, which is
// counted.
func TestUnseenIdentification(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(8)
		for _, id := range []uint16{0, 63, 64, 0xffff} {
			p := r.message(func(_ *roce.BTH, _ *roce.DETH, p *roce.Path) { p.ID = id })
			p.ID, p.IDKnown = 0, false
			r.port.Inject(p)
		}
		wrong := r.message(nil)
		wrong.ID = 1 // known, but not the sender's
		r.port.Inject(wrong)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"icrc_id_low": 2, "icrc_id_solved": 2, "rx_delivered": 4, "rx_drop_icrc": 1})
	})
}

// If the ICRC of a datagram is right only with a high identification, and its source has
// used low ones so far, the datagram counts as damaged, because random damage can have
// the same effect. A source that really starts to use high ones loses one datagram.
func TestUnusualIdentificationIsDamage(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(256)
		send := func(src netip.Addr, ids ...uint16) {
			for _, id := range ids {
				p := r.message(func(_ *roce.BTH, _ *roce.DETH, p *roce.Path) { p.Src, p.ID = src, id })
				p.ID, p.IDKnown = 0, false
				r.port.Inject(p)
			}
			synctest.Wait()
		}
		const low = 198
		send(rigPeer, slices.Repeat([]uint16{0, 0, 3, 0, 7, 63}, low/6)...) // more than idHabitual
		send(rigPeer, 77)
		r.wantCounts(map[string]uint64{"icrc_id_low": low, "icrc_id_solved": 0, "rx_delivered": low, "rx_drop_icrc": 1})
		send(rigPeer, 99, 100, 0, 101)
		r.wantCounts(map[string]uint64{"icrc_id_low": low + 1, "icrc_id_solved": 3, "rx_delivered": low + 4, "rx_drop_icrc": 1})
		send(testV4b, 1000, 0, 2000) // uses random identifications from the start
		r.wantCounts(map[string]uint64{"icrc_id_low": low + 2, "icrc_id_solved": 5, "rx_delivered": low + 7, "rx_drop_icrc": 1})
		r.wantAccounted()
	})
}

// A source that counts its identifications, by destination as Linux does, loses nothing when
// its counters wrap, in any order of the datagrams.
func TestCountedIdentificationsAreUsual(t *testing.T) {
	src := netip.MustParseAddr("10.1.2.3")
	for seed := range uint64(1000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var ids idHabits
		var counters [3]uint16
		for i := range counters {
			counters[i] = uint16(65500 + rnd.IntN(36))
		}
		for range 900 {
			i := rnd.IntN(len(counters))
			id := counters[i]
			counters[i]++
			if id < 64 {
				ids.low(src)
			} else if ids.unusual(src) {
				t.Fatalf("seed %d: identification %d of counter %d is taken for damage", seed, id, i)
			}
		}
	}
}

// A damaged or forged datagram in the name of an unknown source does not erase the
// recorded habit of another source in the same slot.
func TestStrangersDoNotEraseAHabit(t *testing.T) {
	honest, stranger := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.9.9.3")
	var ids idHabits
	for range idHabitual {
		ids.low(honest)
	}
	if ids.intact(stranger) || ids.unusual(stranger) {
		t.Error("an unknown source has the habit of another source")
	}
	if !ids.intact(honest) || !ids.unusual(honest) {
		t.Error("the habit was erased")
	}
	ids.low(stranger)
	if !ids.intact(stranger) || ids.intact(honest) {
		t.Error("an unknown source with a low identification did not get the slot")
	}
}

// Two datagrams that would be right if they came from one other address indicate a NAT;
// damaged ones, however many, do not.
func TestNATSuspect(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		rnd := rand.New(rand.NewPCG(1, 1))
		for range 100 {
			p := r.message(nil)
			p.Data[24+rnd.IntN(4)] ^= byte(1 + rnd.IntN(255))
			p.Data[20+rnd.IntN(4)] = byte(rnd.Uint32())
			r.port.Inject(p)
		}
		synctest.Wait()
		if _, _, ok := r.dev.NATSuspect(); ok || r.counted("rx_drop_icrc") != 100 {
			t.Fatalf("damaged datagrams caused a NAT suspicion: %v, %d wrong ICRCs", ok, r.counted("rx_drop_icrc"))
		}
		inside := netip.MustParseAddr("192.168.7.7")
		translated := func(psn uint32) {
			p := r.message(func(h *roce.BTH, _ *roce.DETH, p *roce.Path) { p.Src, h.PSN = inside, psn })
			p.Src = rigPeer
			r.port.Inject(p)
		}
		for range 5 {
			translated(0) // the same datagram again proves nothing
		}
		synctest.Wait()
		if _, _, ok := r.dev.NATSuspect(); ok {
			t.Error("a repeated datagram caused a NAT suspicion")
		}
		translated(1)
		translated(2)
		synctest.Wait()
		if seen, sender, ok := r.dev.NATSuspect(); !ok || seen != rigPeer || sender != inside {
			t.Errorf("suspected sender %v, true sender %v, reported %v", seen, sender, ok)
		}
		r.wantCounts(map[string]uint64{"nat_suspected": 2, "rx_drop_icrc": 107})
	})
}

// A datagram from the wire with a source address of the port itself is dropped before
// any other check, whatever its destination. Once the port has lost the address, such a
// datagram is accepted.
func TestOwnSourceIsDropped(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(4)
		group := netip.MustParseAddr("239.9.9.9")
		if err := r.qp.AttachMulticast(hca.MulticastGroup{MGID: hca.GIDFromAddr(group)}); err != nil {
			t.Fatal(err)
		}
		forge := func(src, dst netip.Addr, to hca.QPN) {
			r.port.Inject(r.message(func(h *roce.BTH, _ *roce.DETH, p *roce.Path) {
				p.Src, p.Dst, h.DestQPN = src, dst, to
			}))
			synctest.Wait()
		}
		forge(testV4, group, hca.QPNMulticast)
		forge(testV4, testV4, r.qp.Num())
		forge(testV6, testV6, r.qp.Num())
		forge(testV4, testV4, r.qp.Num()^1<<20)
		r.wantCounts(map[string]uint64{"rx_own_source": 4, "rx_delivered": 0})
		r.port.DelAddr(testV6)
		synctest.Wait()
		forge(testV6, testV6, r.qp.Num())
		forge(rigPeer, testV4, r.qp.Num())
		r.wantCounts(map[string]uint64{"rx_own_source": 4, "rx_delivered": 2})
		r.wantAccounted()
		if s, _ := r.dev.Strays(); s != (hca.Strays{}) {
			t.Errorf("strays %+v, want none", s)
		}
		if err := r.qp.DetachMulticast(hca.MulticastGroup{MGID: hca.GIDFromAddr(group)}); err != nil {
			t.Fatal(err)
		}
	})
}

// Forged datagrams in the name of a peer do not look like a NAT when the peer's own
// datagrams arrive intact.
func TestForgedNATOfAPeer(t *testing.T) {
	bubble(t, nil, func(r *rig) {
		r.postRecv(1)
		intact := r.message(nil)
		intact.IDKnown = false // as with sockets
		r.port.Inject(intact)
		for psn := range uint32(10) {
			p := r.message(func(h *roce.BTH, _ *roce.DETH, p *roce.Path) {
				p.Src, h.PSN = netip.MustParseAddr("192.168.7.7"), psn
			})
			p.Src, p.IDKnown = rigPeer, false
			r.port.Inject(p)
		}
		synctest.Wait()
		if seen, sender, ok := r.dev.NATSuspect(); ok {
			t.Errorf("suspected sender %v, true sender %v", seen, sender)
		}
		r.wantCounts(map[string]uint64{"nat_suspected": 0, "rx_drop_icrc": 10, "rx_delivered": 1})
	})
}

// Frames from addresses that are not in the list of peers are dropped, and the list may
// change at any time.
func TestKnownPeersOnly(t *testing.T) {
	var peers []netip.Addr
	only := func(c *Config) {
		c.Peers, c.KnownPeersOnly = func() []netip.Addr { return peers }, true
	}
	bubble(t, only, func(r *rig) {
		r.postRecv(4)
		for _, list := range [][]netip.Addr{{testV4b}, {testV4b, rigPeer}, {}} {
			peers = list
			r.port.Inject(r.message(nil))
			synctest.Wait()
		}
		r.wantCounts(map[string]uint64{"rx_drop_unknown_peer": 2, "rx_delivered": 1})
	})
}

// Replicated multicast goes to every peer, where each QP that is attached to a group
// receives it. Without a list of peers no copy is sent.
func TestReplicatedMulticast(t *testing.T) {
	peers := []netip.Addr{testV4, testV4b, rigPeer}
	replicate := func(c *Config) { c.Peers = func() []netip.Addr { return peers } }
	group := hca.GIDFromAddr(netip.MustParseAddr("239.9.9.9"))
	bubble(t, replicate, func(r *rig) {
		other := newRigOn(t, r.fabric, "b", replicate, testV4b)
		plain := newRigOn(t, r.fabric, "c", nil, rigPeer)
		for _, e := range []*rig{r, other, plain} {
			e.postRecv(4)
		}
		for _, e := range []*rig{r, other} {
			if err := e.qp.AttachMulticast(hca.MulticastGroup{MGID: group}); err != nil {
				t.Fatal(err)
			}
		}
		ah := r.ah(group.Addr())
		r.sendOn(ah, hca.QPNMulticast)
		synctest.Wait()
		r.wantCounts(map[string]uint64{"tx_packets": 2, "tx_looped": 1, "rx_delivered": 1})
		other.wantCounts(map[string]uint64{"rx_delivered": 1, "wire_rx_packets": 1})
		plain.wantCounts(map[string]uint64{"rx_delivered": 0, "rx_drop_no_qp": 1})
		for _, e := range []*rig{r, other} {
			if err := e.qp.DetachMulticast(hca.MulticastGroup{MGID: group}); err != nil {
				t.Fatal(err)
			}
		}
		_ = ah.Close()
		other.close()
		plain.close()
	})
}

// sendOn posts one send of five bytes.
func (r *rig) sendOn(ah hca.AH, to hca.QPN) {
	r.Helper()
	wr := hca.SendWR{SGList: []hca.SGE{r.mr.SGE(0, 5)}, UD: hca.UDDest{AH: ah, QPN: to, QKey: rigQKey}}
	if _, err := r.qp.PostSend([]hca.SendWR{wr}); err != nil {
		r.Fatal(err)
	}
}

// FuzzReceive checks that the receive path accepts any input without a crash, and
// accounts for every packet.
func FuzzReceive(f *testing.F) {
	seed := newRig(f, nil)
	for _, change := range []func(*roce.BTH, *roce.DETH, *roce.Path){
		nil,
		func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN = hca.QPNGSI },
		func(h *roce.BTH, _ *roce.DETH, _ *roce.Path) { h.DestQPN = hca.QPNMulticast },
		func(_ *roce.BTH, d *roce.DETH, _ *roce.Path) { d.QKey = 0 },
	} {
		p := seed.message(change)
		f.Add(p.Data, uint16(0), true, false)
		f.Add(p.Data[:len(p.Data)-3], uint16(7), false, true)
	}
	loop := &receiver{lane: seed.dev.lanes[0], to: delivery{lane: seed.dev.lanes[0]}}
	seed.postRecv(1)
	wc := make([]hca.WC, 4)
	f.Fuzz(func(t *testing.T, data []byte, id uint16, known, reseal bool) {
		r := *seed
		r.TB = t
		p := transport.Packet{Src: rigPeer, Dst: testV4, SrcPort: 0xc001, ID: id, IDKnown: known, Data: data}
		if reseal && len(data) >= roce.HeaderLen+roce.ICRCLen {
			body := len(data) - roce.ICRCLen
			path := roce.Path{Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, ID: id}
			roce.PutICRC(data[body:], roce.ICRC(&path, data[:body]))
		}
		loop.pkts[0], loop.next, loop.n = p, 0, 1
		if _, err := loop.batch(nil); err != nil {
			t.Fatal(err)
		}
		r.wantAccounted()
		if n := have(r.recv.Poll(wc))(t); n > 0 {
			r.restore(wc[0].Status)
		}
	})
}

// restore brings the QP back up if needed, and replaces a completed receive.
func (r *rig) restore(s hca.WCStatus) {
	r.Helper()
	if s != hca.WCSuccess {
		if err := r.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState); err != nil {
			r.Fatal(err)
		}
		r.up()
	}
	r.postRecv(1)
}
