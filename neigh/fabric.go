package neigh

import (
	"ipoibd/ud/ipoib"
)

// fromFabric takes a message of the fabric.
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
	default:
		t.drop(DropEtherType)
	}
}

// deliver hands a frame to the host.
func (t *Table) deliver(frame []byte) {
	t.stats.ToHost++
	t.emit(SendHost{padded(frame)})
}

// macOf returns the MAC of a fabric's address, zero where nobody known has it.
func (t *Table) macOf(e endpoint) ipoib.MAC {
	if e == t.link.self {
		return t.mac.dest()
	}
	if p := t.peers.byEndpoint[e]; p != nil {
		return p.mac
	}
	return ipoib.MAC{}
}
