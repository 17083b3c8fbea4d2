package softqp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"ipoibd/hca"
)

// The bytes of a datagram are correct, field by field (IBA 9.2, 9.3.1). The tests of
// package roce check the ICRC.
func TestDatagramBytes(t *testing.T) {
	r := rtsRig(t)
	copy(r.tx, "hello")
	wr := hca.SendWR{
		ID: 1, SGList: []hca.SGE{r.txSGE(0, 2), r.txSGE(0, 0), r.txSGE(2, 3)},
		UD: hca.UDDest{QPN: 0xabcdef, QKey: 0x01020304}, Flags: hca.SendSolicited,
	}
	if err := r.PostSend(&wr, ahTo(peer4)); err != nil {
		t.Fatal(err)
	}
	b := r.fill()
	d := &b.Trains()[0]
	const want = "64" + "f0" + "ffff" + // UD SEND only; solicited, migrated, pad 3, version 0; P_Key
		"00" + "abcdef" + "00" + "fffffe" + // reserved, destination QP, reserved, PSN
		"01020304" + "00" + "001234" + // Q_Key, reserved, source QP
		"68656c6c6f" + "000000" // payload, padding
	got := d.Data
	if h := hex.EncodeToString(got[:len(got)-4]); h != want {
		t.Errorf("datagram\n%s, want\n%s", h, want)
	}
	parse(t, r.env, d)
	if d.Src != own4 || d.Dst != peer4 || d.TTL != 9 || d.TOS != 0x20 {
		t.Errorf("datagram from %v to %v, TTL %d, TOS %#x", d.Src, d.Dst, d.TTL, d.TOS)
	}
}

// A message of every length and in any number of pieces is complete, padded to four bytes,
// and refers to the payload in place.
func TestDatagramLengths(t *testing.T) {
	for _, to := range []netip.Addr{peer4, peer6} {
		r := rtsRig(t)
		for n := range 70 {
			for pieces := 1; pieces <= MaxSGE; pieces++ {
				r.sendPieces(to, n, pieces)
			}
		}
	}
}

func (r *rig) sendPieces(to netip.Addr, n, pieces int) {
	r.Helper()
	var sges []hca.SGE
	for i := range pieces {
		from, end := n*i/pieces, n*(i+1)/pieces
		sges = append(sges, r.txSGE(from, end-from))
	}
	wr := hca.SendWR{SGList: sges, UD: hca.UDDest{QPN: 1, QKey: 2}}
	if err := r.PostSend(&wr, ahTo(to)); err != nil {
		r.Fatal(err)
	}
	b := r.fill()
	d := &b.Trains()[0]
	if u := parse(r, r.env, d); !bytes.Equal(u.Payload, r.tx[:n]) || len(d.Data)%4 != 0 {
		r.Fatalf("%d bytes in %d pieces: %x", n, pieces, u.Payload)
	}
	r.Finish(b, 1)
	r.wantSent(outcome{0, hca.WCSuccess})
}

// A transport that accepts one or two datagrams at a time receives each once, in order,
// with consecutive PSNs across the wrap.
func TestPartialSends(t *testing.T) {
	r := rtsRig(t)
	for i := range 7 {
		r.send(uint64(i), peer4, 4*i)
	}
	var psns []uint32
	var done []outcome
	for i := 0; r.waiting() > 0; i++ {
		b := r.fill()
		n := min(i%3, len(b.Trains()))
		for j := range n {
			u := parse(t, r.env, &b.Trains()[j])
			if len(u.Payload) != 4*len(psns) {
				t.Fatalf("datagram %d has %d bytes", len(psns), len(u.Payload))
			}
			psns = append(psns, u.PSN)
		}
		r.Finish(b, n)
		done = append(done, outcomes(r.SendDone())...)
	}
	if want := []uint32{0xfffffe, 0xffffff, 0, 1, 2, 3, 4}; !slices.Equal(psns, want) {
		t.Errorf("PSNs %#x, want %#x", psns, want)
	}
	for i, o := range done {
		if o != (outcome{uint64(i), hca.WCSuccess}) {
			t.Errorf("completion %d: %v, want success, in order", i, o)
		}
	}
	if got := r.Query().SQPSN; got != 5 {
		t.Errorf("next PSN %d, want 5", got)
	}
}

// Replication sends a copy to each peer, no matter how many the transport accepts at a
// time, but not to this port and not to addresses of the other family. Each copy has its
// own ICRC and PSN, and the hop limit of unicast, because routers may be on the path. Each
// peer of the other family is counted as skipped once.
func TestReplication(t *testing.T) {
	const peers = 2*hca.Batch + 5
	list := []netip.Addr{own4, peer6}
	for i := range peers {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	want := append(slices.Clone(list[2:]), peer4)
	others := []int{hca.Batch / 2, hca.Batch + 2, hca.Batch + 2, len(list)} // between copies, two in a row, at the end
	for i := range others {
		list = slices.Insert(list, others[i]+i, peer6)
	}
	for _, take := range []int{1, 3, hca.Batch - 1, hca.Batch} {
		r := rtsRig(t)
		r.env.Replicate = true
		r.send(1, group, 10)
		r.send(2, peer4, 10)
		var got []netip.Addr
		loops, skipped := 0, 0
		for r.waiting() > 0 {
			b := r.fill(list...)
			n := min(take, len(b.Trains()))
			for i := range n {
				d := &b.Trains()[i]
				parse(t, r.env, d)
				got = append(got, d.Dst)
				if d.Dst != peer4 && d.TTL != 0 {
					t.Errorf("the copy for %v has TTL %d, want the system's default", d.Dst, d.TTL)
				}
			}
			r.Finish(b, n)
			skipped += b.Skipped
			if b.Tail == TailLoop && n == len(b.Trains()) {
				loops++
			}
		}
		if !slices.Equal(got, want) || loops != 1 || skipped != 1+len(others) {
			t.Errorf("%d at a time: %d copies, %d loops, %d peers skipped, want %d, 1 and %d",
				take, len(got), loops, skipped, len(want), 1+len(others))
		}
		r.wantSent(outcome{1, hca.WCSuccess}, outcome{2, hca.WCSuccess})
	}
}

// A list of peers or of own addresses that changes while copies go out neither skips nor
// repeats a peer, and skipped peers of the other family are counted once. The next
// request uses the new list.
func TestReplicationOverAChangingList(t *testing.T) {
	var list []netip.Addr
	for i := range 2*hca.Batch + 5 {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	list = slices.Insert(list, hca.Batch, peer6)
	shorter, longer := list[10:], append([]netip.Addr{peer4, netip.MustParseAddr("10.0.2.1")}, list...)
	for name, later := range map[string][]netip.Addr{"shorter": shorter, "longer": longer, "empty": nil} {
		r := rtsRig(t)
		r.env.Replicate = true
		r.send(1, group, 10)
		var got []netip.Addr
		skipped, now := 0, list
		for r.waiting() > 0 {
			b := r.fill(now...)
			for i := range b.Trains() {
				got = append(got, b.Trains()[i].Dst)
			}
			r.Finish(b, len(b.Trains()))
			skipped += b.Skipped
			now = later
			r.env.GIDs = append(slices.Clone(r.env.GIDs), GID{Addr: list[3], MaxPayload: 1448}) // a copy has gone there
		}
		if want := slices.Concat(list[:hca.Batch], list[hca.Batch+1:]); !slices.Equal(got, want) || skipped != 1 {
			t.Errorf("%s: %d copies, want %d, %d peers skipped", name, len(got), len(want), skipped)
		}
		r.send(2, group, 10)
		if n, want := len(r.fill(later...).Trains()), min(len(later), hca.Batch); n != want {
			t.Errorf("%s: the next request begins with %d copies, want %d", name, n, want)
		}
	}
}

// Every request starts its copies with the first peer, even if the request before it was
// flushed or dropped half-way.
func TestReplicationStartsWithTheFirstPeer(t *testing.T) {
	list := []netip.Addr{peer4, netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")}
	for name, between := range map[string]func(*rig){
		"done":  func(r *rig) { r.Finish(r.fill(list...), 3) },
		"ERR":   func(r *rig) { r.Finish(r.fill(list...), 2); r.become(hca.QPErr); r.Reset(); r.up(hca.QPRTS) },
		"RESET": func(r *rig) { r.Finish(r.fill(list...), 2); r.Reset(); r.up(hca.QPRTS) },
	} {
		r := rtsRig(t)
		r.env.Replicate = true
		r.send(1, group, 10)
		between(r)
		r.send(2, group, 10)
		if got := len(r.fill(list...).Trains()); got != 3 {
			t.Errorf("%s: %d copies, want 3", name, got)
		}
	}
}

// How sends end that do not become a datagram.
func TestTails(t *testing.T) {
	for name, c := range map[string]struct {
		spoil  func(*rig)
		to     netip.Addr
		size   int
		tail   Tail
		reason Reason
		n      int
		status hca.WCStatus
	}{
		"unicast":           {to: peer4, size: 1448, tail: TailNone, n: 1},
		"IPv6":              {to: peer6, size: 1428, tail: TailNone, n: 1},
		"too long":          {to: peer4, size: 1449, tail: TailFail, reason: FailSendLength, status: hca.WCLocLenErr},
		"too long for IPv6": {to: peer6, size: 1429, tail: TailFail, reason: FailSendLength, status: hca.WCLocLenErr},
		"outside memory":    {to: peer4, size: rigMem + 1, tail: TailFail, reason: FailSendAccess, status: hca.WCLocProtErr},
		"own address":       {to: own4, size: 1, tail: TailLoop},
		"multicast":         {to: group, size: 1, tail: TailLoop, n: 1},
		"port down":         {spoil: func(r *rig) { r.env.Up = false }, to: peer4, tail: TailDrop, reason: DropPortDown},
		"GID gone":          {spoil: func(r *rig) { r.env.GIDs[0] = GID{} }, to: peer4, tail: TailDrop, reason: DropNoSource},
		"table shrunk":      {spoil: func(r *rig) { r.env.GIDs = nil }, to: peer4, tail: TailDrop, reason: DropNoSource},
		"family":            {spoil: func(r *rig) { r.env.GIDs[0].Addr = own6 }, to: peer4, tail: TailDrop, reason: DropNoSource},
		"bad, port down": {
			spoil: func(r *rig) { r.env.Up = false }, to: peer4, size: rigMem + 1,
			tail: TailFail, reason: FailSendAccess, status: hca.WCLocProtErr,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rtsRig(t)
			if c.spoil != nil {
				c.spoil(r)
			}
			r.send(1, c.to, c.size)
			b := r.fill()
			if b.Tail != c.tail || b.Reason != c.reason || len(b.Trains()) != c.n {
				t.Fatalf("tail %v, reason %v, %d datagrams", b.Tail, b.Reason, len(b.Trains()))
			}
			r.Finish(b, c.n)
			r.wantSent(outcome{1, c.status})
		})
	}
}

// The looped-back message equals the one that would have been sent.
func TestLoopMessage(t *testing.T) {
	r := rtsRig(t)
	wr := hca.SendWR{SGList: []hca.SGE{r.txSGE(0, 3), r.txSGE(3, 4)}, UD: hca.UDDest{QPN: 5, QKey: hca.QKeyControlled | 9}}
	if err := r.PostSend(&wr, ahTo(own4)); err != nil {
		t.Fatal(err)
	}
	l := &r.fill().Loop
	got := fmt.Sprintf("%v>%v %v>%v %#x %#x ttl %d tos %d udp %d %x", l.Path.Src, l.Path.Dst, l.SrcQPN, l.DestQPN,
		uint32(l.QKey), uint16(l.PKey), l.TTL, l.TOS, l.UDPLen, bytes.Join(l.Payload, nil))
	want := fmt.Sprintf("10.0.0.1>10.0.0.1 0x001234>0x000005 0xb1b 0xffff ttl 9 tos 32 udp 32 %x", r.tx[:7])
	if got != want || l.Len != 7 {
		t.Errorf("loop\n%s, want\n%s", got, want)
	}
}

// A send carries the P_Key of the QP's own index, and new attributes apply immediately.
func TestKeysOnTheWire(t *testing.T) {
	r := newRig(t, defaultSpec())
	a := hca.QPAttr{State: hca.QPInit, PKeyIndex: 1, Port: 1, QKey: 4}
	if err := r.Modify(a, hca.AttrState|hca.AttrPKeyIndex|hca.AttrPort|hca.AttrQKey, r.env); err != nil {
		t.Fatal(err)
	}
	for s := hca.QPInit; s < hca.QPRTS; s++ {
		if err := r.step(s, s+1); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ asked, want hca.QKey }{{0x7fffffff, 0x7fffffff}, {hca.QKeyControlled, 4}, {0xffffffff, 4}} {
		if err := r.PostSend(&hca.SendWR{UD: hca.UDDest{QKey: c.asked}}, ahTo(peer4)); err != nil {
			t.Fatal(err)
		}
		b := r.fill()
		if u := parse(t, r.env, &b.Trains()[0]); u.QKey != c.want || u.PKey != 0x8001 {
			t.Errorf("Q_Key %#x was sent as %#x, P_Key %#x", uint32(c.asked), uint32(u.QKey), uint16(u.PKey))
		}
		r.Finish(b, 1)
	}
}

// Only RTS sends.
func TestOnlyRTSSends(t *testing.T) {
	for s := hca.QPState(0); s < hca.NumQPState; s++ {
		r := rtsRig(t)
		r.send(1, peer4, 1)
		r.becomeSend(s)
		b := r.fill()
		if sent := len(b.Trains()) > 0; sent != (s == hca.QPRTS) || b.Tail != TailNone {
			t.Errorf("%v: sent %v, tail %v, want sends only in RTS", s, sent, b.Tail)
		}
	}
}

// A batch that is used again sends like a new one: what it held before has no effect.
func TestReusedBatchIsLikeANewOne(t *testing.T) {
	stale := datagram{ends: true, resumes: true, seg: 9, next: 9, skipped: 9}
	for name, c := range map[string]struct {
		to        netip.Addr
		replicate bool
	}{
		"unicast": {to: peer4}, "own address": {to: own4}, "multicast": {to: group}, "replicated": {group, true},
	} {
		type result struct {
			sent    []outcome
			skipped int
			at      progress
			psn     uint32
		}
		var results [2]result
		for i := range results {
			r := rtsRig(t)
			r.env.Replicate = c.replicate
			if i == 1 {
				r.batch.after = stale
				for k := range r.batch.datagrams {
					r.batch.datagrams[k] = stale
				}
			}
			r.send(1, c.to, 8)
			r.send(2, peer4, 8)
			b := r.fill(peer6, peer4)
			r.Finish(b, len(b.Trains()))
			results[i] = result{outcomes(r.SendDone()), b.Skipped, r.QP.send.at, r.Query().SQPSN}
		}
		if !reflect.DeepEqual(results[0], results[1]) {
			t.Errorf("%s: %+v, with a new batch %+v", name, results[1], results[0])
		}
	}
}
