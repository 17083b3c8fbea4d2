package sm

import (
	"ipoibd/hca"
	"ipoibd/scripts/vm/ibwire"
)

// maxOpen bounds the requests of a port without an answer; then the oldest is forgotten. The kernel has
// far fewer, and gives each up after some seconds.
const maxOpen = 256

// Faults are what the switch does to the hosts' requests to the SA. The zero value relays all.
type Faults struct {
	// Drop is the share that is lost, in percent, spread evenly: 50 drops every second request.
	Drop int
	// Busy is how many of the others are answered with "busy".
	Busy int
}

// request is a request to the SA that has no answer yet.
type request struct {
	tid    uint64
	qpn    hca.QPN
	lid    uint16 // of the sender, with its path bits
	dlid   uint16
	sl     uint8
	pkey   hca.PKey
	global bool
	sgid   hca.GID // of the sender
	dgid   hca.GID
	reply  chan<- []byte // with room for one; of a request that a test made, else nil
}

// relay passes a port's requests to ibsim and finds the senders of what it answers.
type relay struct {
	open  map[uint64]request // by tidMask
	order []uint64           // of their arrival
	due   int                // percent of the next drop
}

// take decides on a request: relayed by the returned envelope, dropped, or answered by the returned packet.
func (r *relay) take(p *ibwire.Packet, f *Faults) (out *envelope, answer *ibwire.Packet, drop Reason) {
	if r.due += min(max(f.Drop, 0), 100); r.due >= 100 {
		r.due -= 100
		return nil, nil, DropFault
	}
	req := request{
		tid: tidOf(p.Payload), qpn: p.SrcQPN, lid: p.SLID, dlid: p.DLID, sl: p.SL, pkey: p.PKey,
		global: p.Global, sgid: p.SGID, dgid: p.DGID,
	}
	if f.Busy > 0 {
		f.Busy--
		mad := append([]byte(nil), p.Payload...)
		mad[offMethod] = responseMethod(mad[offMethod])
		setStatus(mad, statusBusy)
		return nil, req.answer(mad), ""
	}
	r.add(req)
	return &envelope{dlid: p.DLID, slid: p.SLID, destQP: qpGeneral, fromQP: qpGeneral, mad: [madLen]byte(p.Payload)}, nil, ""
}

// responseMethod returns the method of the response to a request (IBA 13.4.5).
func responseMethod(method byte) byte {
	if method == methodSet {
		method = methodGet // both are answered with GetResp
	}
	return method | responseBit
}

// add remembers a request. One with the same ID, a repetition, replaces the first.
func (r *relay) add(req request) {
	key := req.tid & tidMask
	if r.open == nil {
		r.open = map[uint64]request{}
	}
	if _, ok := r.open[key]; !ok {
		if len(r.order) == maxOpen {
			delete(r.open, r.order[0])
			r.order = r.order[1:]
		}
		r.order = append(r.order, key)
	}
	r.open[key] = req
}

// give returns the packet for the sender of the request that an envelope answers, or sends the answer to the test that
// made it. A request stays open, because the host may have repeated it, and so expects an answer to each.
func (r *relay) give(e *envelope) (*ibwire.Packet, Reason) {
	req, ok := r.open[tidOf(e.mad[:])&tidMask]
	switch {
	case e.status != 0:
		if ok && req.reply != nil {
			req.give(nil)
		}
		return nil, DropReturned
	case !ok || e.mad[offMethod]&responseBit == 0:
		return nil, DropUnknown
	}
	mad := append([]byte(nil), e.mad[:]...)
	setTID(mad, req.tid)
	if req.reply != nil {
		req.give(mad)
		return nil, ""
	}
	return req.answer(mad), ""
}

// give sends the answer to a test, nil if ibsim has returned the request. The test wants only the first.
func (r *request) give(mad []byte) {
	select {
	case r.reply <- mad:
	default:
	}
}

// answer returns a packet to the sender of a request.
func (r *request) answer(mad []byte) *ibwire.Packet {
	return &ibwire.Packet{
		SLID: r.dlid, DLID: r.lid, SL: r.sl, Global: r.global, SGID: r.dgid, DGID: r.sgid, PKey: r.pkey,
		DestQPN: r.qpn, SrcQPN: qpGeneral, QKey: qkeyGS, Payload: mad,
	}
}
