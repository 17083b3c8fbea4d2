package neigh

import "ipoibd/ud/ipoib"

// fromHost handles a frame from the host.
func (t *Table) fromHost(raw []byte) {
	t.step.stats.FromHost++
	f, ok := parseFrame(raw)
	if !ok {
		t.step.drop(DropRunt)
		return
	}
	if why, ok := t.admit(f); !ok {
		t.step.drop(why)
		return
	}
	t.route(f, false)
}

// admit decides whether a frame may pass, and learns its source. It learns
// nothing from frames that IPoIB does not carry, because bridges send such
// frames with their own MACs.
func (t *Table) admit(f frame) (Reason, bool) {
	switch {
	case f.src.IsZero() || f.src.IsMulticast():
		return DropBadSource, false
	case !f.typ.Carried():
		return DropEtherType, false
	case t.peers.live.byMAC[f.src] != nil || t.peers.past.byMAC[f.src] != nil || t.host.isLooped(f.src):
		return DropLoopedMAC, false
	}
	switch {
	case !t.host.stations.admit(f.src, t.step.now):
		return DropStationsFull, false
	case t.host.stations.is(f.dst):
		return DropToSelf, false
	case !t.host.link.up:
		return DropDetached, false
	case len(f.body()) > t.host.link.mtu:
		return DropOversize, false
	}
	return 0, true
}

// route forwards a frame from the host; late is set if the frame was kept
// before.
func (t *Table) route(f frame, late bool) {
	o, ok := outgoing{control: true, late: late}, true
	switch {
	case f.isARP():
		o.msg, ok = t.translator.hostARP(f, late)
	case f.isND():
		o.msg, ok = t.translator.hostND(f, late)
	case ipoib.IsDHCP(f.typ, f.body()):
		o.control = false
		o.msg = t.translator.hostDHCP(f)
	case ipoib.IsMembership(f.typ, f.body()):
		if t.querier.fromStation(f.src, f.typ, f.body()) {
			t.step.drop(DropOwnAnswer)
			return
		}
		o.control = false
		o.msg = append(newMessage(f.typ), f.body()...)
	default:
		// An echo is a Ping: frames of the host with this type are not admitted.
		if o.control = f.typ == ipoib.EtherTypeEcho; !o.control {
			if _, ok = ipoib.DestIP(f.typ, f.body()); !ok {
				t.step.drop(DropRunt)
			}
		}
		o.msg = append(newMessage(f.typ), f.body()...)
	}
	if ok {
		t.forward(f, o)
	}
}

// forward sends o, which was made from f, to the destination of f.
func (t *Table) forward(f frame, o outgoing) {
	if f.dst.IsMulticast() {
		t.host.sendGroup(o.msg)
		t.step.sent(o.late)
		return
	}
	if p := t.peers.live.byMAC[f.dst]; p != nil {
		if !o.control {
			t.peers.promote(p)
		}
		t.handles.send(p, o)
		return
	}
	t.resolve(f)
}

// fromFabric handles a message from the fabric.
func (t *Table) fromFabric(ev FromFabric) {
	t.step.stats.FromFabric++
	e := endpoint{ev.From.GID, ev.From.QPN}
	typ, body, err := ipoib.ParseHeader(ev.Msg)
	switch {
	case err != nil:
		t.step.drop(DropRunt)
	case !t.host.link.up:
		t.step.drop(DropDetached)
	case t.host.link.lid != 0:
		t.fromSubnet(ev, typ, body)
	case !e.valid():
		t.step.drop(DropBadSource)
	case t.host.link.isOwn(e, t.step.now):
		t.step.drop(DropOwn)
	default:
		t.accept(e, typ, body, ev.Multicast)
	}
}

// accept handles a message from e.
func (t *Table) accept(e endpoint, typ ipoib.EtherType, body []byte, multicast bool) {
	switch {
	case typ == ipoib.EtherTypeARP || typ == ipoib.EtherTypeRARP:
		t.resolved(t.translator.fabricARP(e, typ, body, multicast))
	case typ == ipoib.EtherTypeIPv6 && ipoib.IsND(body):
		t.resolved(t.translator.fabricND(e, body, multicast))
	case typ == ipoib.EtherTypeEcho:
		t.fabricEcho(e, body, multicast)
	case ipoib.IsDHCP(typ, body):
		t.fabricDHCP(e, body, multicast)
	case typ == ipoib.EtherTypeIPv4 || typ == ipoib.EtherTypeIPv6:
		t.querier.fromPeer(typ, body)
		t.toStation(e, typ, body, multicast)
	default:
		t.step.drop(DropEtherType)
	}
}
