package neigh

import (
	"ipoibd/ud/ipoib"
)

// fromFabric handles a message from the fabric.
func (t *Table) fromFabric(ev FromFabric) {
	t.stats.FromFabric++
	e := endpoint{ev.SrcGID, ev.SrcQPN}
	typ, body, err := ipoib.ParseHeader(ev.Msg)
	switch {
	case err != nil:
		t.drop(DropRunt)
	case !t.link.up:
		t.drop(DropDetached)
	case !e.valid():
		t.drop(DropBadSource)
	case t.link.isOwn(e, t.now):
		t.drop(DropOwn)
	case typ == ipoib.EtherTypeARP || typ == ipoib.EtherTypeRARP:
		t.fabricARP(e, typ, body, ev.Multicast)
	case typ == ipoib.EtherTypeIPv6 && ipoib.IsND(body):
		t.fabricND(e, body, ev.Multicast)
	case typ == ipoib.EtherTypeEcho:
		t.fabricEcho(e, body, ev.Multicast)
	default:
		t.drop(DropEtherType)
	}
}

// deliver sends a frame to the host.
func (t *core) deliver(frame []byte) {
	t.stats.ToHost++
	t.emit(SendHost{padded(frame)})
}

// macOf returns the MAC for an endpoint, or zero if the endpoint is unknown.
func (t *roster) macOf(e endpoint) ipoib.MAC {
	if e == t.link.self {
		return t.mac.dest()
	}
	if p := t.peers.byEndpoint[e]; p != nil {
		return p.mac
	}
	return ipoib.MAC{}
}
