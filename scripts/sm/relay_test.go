package sm

import (
	"reflect"
	"testing"

	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// requestPacket returns a packet with a request to the SA at LID 1, from QP 77 of LID 5.
func requestPacket(tid uint64) *ibwire.Packet {
	mad := make([]byte, madLen)
	mad[offClass], mad[offMethod] = classSA, methodSet
	setTID(mad, tid)
	return &ibwire.Packet{SLID: 5, DLID: 1, SL: 3, PKey: 0x7fff, DestQPN: qpGeneral, SrcQPN: 77, QKey: qkeyGS, Payload: mad}
}

// reply returns ibsim's answer to an envelope, whose transaction ID it has changed.
func reply(to *envelope) *envelope {
	e := *to
	e.dlid, e.slid = to.slid, to.dlid
	e.mad[offMethod] = responseMethod(e.mad[offMethod])
	setTID(e.mad[:], tidOf(e.mad[:])&tidMask|0x0007<<48)
	return &e
}

// An answer goes to the queue pair that asked, with its transaction ID, from the LID that it asked, by the same SL and
// partition.
func TestRelay(t *testing.T) {
	var r relay
	const tid = 0xffee_0000_0000_0042
	out, answer, drop := r.take(requestPacket(tid), &Faults{})
	if out == nil || answer != nil || drop != "" || out.dlid != 1 || out.slid != 5 || out.destQP != 1 || out.fromQP != 1 || tidOf(out.mad[:]) != tid {
		t.Fatalf("relayed as %+v, answered %+v, dropped %q", out, answer, drop)
	}
	got, drop := r.give(reply(out))
	want := &ibwire.Packet{SLID: 1, DLID: 5, SL: 3, PKey: 0x7fff, DestQPN: 77, SrcQPN: 1, QKey: qkeyGS}
	if got == nil || drop != "" {
		t.Fatalf("answer %+v, dropped %q", got, drop)
	}
	if mad := got.Payload; tidOf(mad) != tid || mad[offMethod] != methodGet|responseBit || len(mad) != madLen {
		t.Errorf("answer to transaction %#x with method %#x", tidOf(mad), mad[offMethod])
	}
	got.Payload = nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("answer in %+v, want %+v", got, want)
	}
}

// A request with a GRH has an answer with one, in the opposite direction.
func TestRelayGlobal(t *testing.T) {
	var r relay
	p := requestPacket(1)
	p.Global, p.SGID, p.DGID = true, hca.GID{15: 5}, hca.GID{15: 1}
	out, _, _ := r.take(p, &Faults{})
	if got, _ := r.give(reply(out)); !got.Global || got.SGID != p.DGID || got.DGID != p.SGID {
		t.Errorf("answer in %+v, want a GRH from %v to %v", got, p.DGID, p.SGID)
	}
}

// What is no answer to an open request is dropped.
func TestRelayRefuses(t *testing.T) {
	var r relay
	out, _, _ := r.take(requestPacket(1), &Faults{})
	for want, spoil := range map[Reason]func(e *envelope){
		DropReturned: func(e *envelope) { e.status = 110 },
		DropUnknown:  func(e *envelope) { setTID(e.mad[:], 2) },
	} {
		e := reply(out)
		spoil(e)
		if p, drop := r.give(e); p != nil || drop != want {
			t.Errorf("%+v, dropped %q, want %q", p, drop, want)
		}
	}
	if p, drop := r.give(out); p != nil || drop != DropUnknown {
		t.Errorf("a request from ibsim: %+v, dropped %q, want %q", p, drop, DropUnknown)
	}
}

// A repeated request is one; the oldest of too many is forgotten.
func TestRelayIsBounded(t *testing.T) {
	var r relay
	var first *envelope
	for i := range uint64(maxOpen + 1) {
		for range 3 {
			out, _, _ := r.take(requestPacket(i), &Faults{})
			if i == 0 {
				first = out
			}
		}
	}
	if len(r.open) != maxOpen || len(r.order) != maxOpen {
		t.Errorf("%d requests are open, %d in order, want %d", len(r.open), len(r.order), maxOpen)
	}
	if _, drop := r.give(reply(first)); drop != DropUnknown {
		t.Errorf("the oldest request: dropped %q, want %q", drop, DropUnknown)
	}
}

// Drops are spread evenly, and Busy counts down.
func TestFaults(t *testing.T) {
	for share, want := range map[int]int{-1: 0, 0: 0, 25: 25, 33: 33, 50: 50, 100: 100, 200: 100} {
		var r relay
		f, dropped := Faults{Drop: share}, 0
		for i := range uint64(100) {
			if _, _, drop := r.take(requestPacket(i), &f); drop == DropFault {
				dropped++
			}
		}
		if dropped != want {
			t.Errorf("%d %%: %d of 100 requests dropped, want %d", share, dropped, want)
		}
	}
	var r relay
	f := Faults{Busy: 2}
	for i := range uint64(3) {
		out, answer, _ := r.take(requestPacket(i), &f)
		if busy := answer != nil && statusOf(answer.Payload) == statusBusy; busy != (i < 2) || busy == (out != nil) {
			t.Errorf("request %d: relayed as %+v, answered %+v", i, out, answer)
		}
	}
}

// A request that a test makes in a host's name is answered to the test, once.
func TestRelayForTest(t *testing.T) {
	var r relay
	answers := make(chan []byte, 1)
	r.add(request{tid: 9, reply: answers})
	e := &envelope{}
	e.mad[offMethod] = methodGet
	setTID(e.mad[:], 9)
	for range 2 {
		if p, drop := r.give(reply(e)); p != nil || drop != "" {
			t.Errorf("%+v, dropped %q, want neither", p, drop)
		}
	}
	if mad := <-answers; tidOf(mad) != 9 {
		t.Errorf("answer to transaction %d, want 9", tidOf(mad))
	}
	r.add(request{tid: 10, reply: answers})
	setTID(e.mad[:], 10)
	e.status = 110
	if _, drop := r.give(e); drop != DropReturned || <-answers != nil {
		t.Errorf("a returned request: dropped %q, want %q and an empty answer", drop, DropReturned)
	}
}
