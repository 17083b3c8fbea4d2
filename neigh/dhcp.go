package neigh

import (
	"bytes"

	"ipoibd/ud/ipoib"
)

// dhcpClients are the clients whose requests were given the form of RFC 4390, by their transactions: answers of that
// form do not name a client. The first one makes room for a new one.
type dhcpClients struct {
	byXID map[uint32]ipoib.MAC
	order []uint32
}

func (c *dhcpClients) note(xid uint32, client ipoib.MAC) {
	if _, known := c.byXID[xid]; !known {
		if len(c.order) == maxDHCPClients {
			delete(c.byXID, c.order[0])
			c.order = c.order[1:]
		}
		c.order = append(c.order, xid)
	}
	c.byXID[xid] = client
}

// hostDHCP returns the message for a DHCP packet from the host. The answer to it is for all stations: a server would
// send it to the client's MAC otherwise.
func (x *translator) hostDHCP(f frame) []byte {
	msg := append(newMessage(f.typ), f.body()...)
	packet := msg[ipoib.HeaderLen:]
	d, err := ipoib.ParseDHCP(packet)
	if err == nil && x.rfc4390 && ipoib.DHCPToIPoIB(packet) {
		x.clients.note(d.XID, d.Client)
	} else {
		ipoib.WantBroadcast(packet)
	}
	return msg
}

// fabricDHCP delivers a DHCP packet from the fabric. A client learns its address from it, and the table learns where
// that is, unless another one has it.
func (t *Table) fabricDHCP(e endpoint, packet []byte, multicast bool) {
	d, err := ipoib.ParseDHCP(packet)
	if client, known := t.translator.clients.byXID[d.XID]; err == nil && known {
		if answer := bytes.Clone(packet); ipoib.DHCPToEther(answer, client) {
			packet, d.Client = answer, client
		}
	}
	ours := err == nil && d.Reply && t.host.stations.is(d.Client)
	if ours && d.ACK && isUnicast(d.Yours) && !t.host.stations.has(d.Yours) && t.peers.live.byIP[d.Yours] == nil {
		t.translator.hostClaims(d.Client, d.Yours)
	}
	ip, _ := ipoib.DestIP(ipoib.EtherTypeIPv4, packet)
	dst := ipoib.Broadcast
	switch {
	case multicast || !isUnicast(ip):
	case ours:
		dst = d.Client
	default:
		t.toStation(e, ipoib.EtherTypeIPv4, packet, false)
		return
	}
	t.host.deliver(append(newFrame(dst, t.peers.at(e).mac, ipoib.EtherTypeIPv4), packet...))
}
